"""The shipped recipes: settings of a host on a benchmark, each value with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from flashback.config import AliasLoader, read_yaml

KINDS = ("controlled", "anchor", "as-published")


@dataclass(frozen=True)
class Recipe:
    """Settings by dotted key, and where each value comes from."""

    host: str
    benchmark: str
    kind: str
    settings: Mapping[str, Any]
    flashback_settings: Mapping[str, Any]  # differ in the flashback arm; only published recipes have any
    sources: Mapping[str, str]
    note: str = ""

    def values(self, flashback: bool) -> dict[str, Any]:
        return {**self.settings, **(self.flashback_settings if flashback else {})}


@cache
def list_recipes() -> tuple[Recipe, ...]:
    folder = resources.files("flashback.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return tuple(recipe for file in files for recipe in _read(file.read_text(encoding="utf-8"), file.name))


def _read(text: str, source: str) -> Iterator[Recipe]:
    document = read_yaml(text, source, AliasLoader)
    for entry in document["recipes"]:
        common = document.get("common", {})
        settings, first_sources = _split({**common, **entry.get("settings", {})})
        flashback, more_sources = _split(entry.get("flashback_settings", {}))
        yield Recipe(
            document["host"],
            entry["benchmark"],
            entry["kind"],
            settings,
            flashback,
            {**first_sources, **more_sources},
            entry.get("note", ""),
        )


def _split(entries: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
    return {k: e["value"] for k, e in entries.items()}, {k: e["from"] for k, e in entries.items()}


def find_recipe(host: str, benchmark: str, kind: str) -> Recipe | None:
    return next((r for r in list_recipes() if (r.host, r.benchmark, r.kind) == (host, benchmark, kind)), None)
