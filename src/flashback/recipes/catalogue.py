"""Recipes: settings of a host on a benchmark, each value with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.errors import FlashbackError
from flashback.plain_yaml import AliasLoader, read_yaml

KINDS = CONTROLLED, ANCHOR, AS_PUBLISHED = "controlled", "anchor", "as-published"
DEFAULTS = "defaults"  # no recipe


@dataclass(frozen=True)
class Recipe:
    """Settings by dotted key, and the source of each value."""

    host: str
    benchmark: str
    kind: str
    settings: Mapping[str, Any]
    flashback_settings: Mapping[str, Any]  # only in the flashback arm; only published recipes have any
    sources: Mapping[str, str]
    note: str = ""

    def is_for(self, host: str, benchmark: str) -> bool:
        return (self.host, canonical_name(str(self.benchmark))) == (
            host,
            canonical_name(str(benchmark)),
        )  # YAML may read a number

    def values(self, flashback: bool) -> dict[str, Any]:
        return {**self.settings, **(self.flashback_settings if flashback else {})}


@cache
def list_recipes() -> tuple[Recipe, ...]:
    folder = resources.files("flashback.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    documents = (read_yaml(file.read_text(encoding="utf-8"), file.name, AliasLoader) for file in files)
    return tuple(recipe for document in documents for recipe in _recipes(document))


def read_recipe_file(path: Path) -> list[Recipe]:
    """Read recipes from a user's file, such as one that `flashback tune` wrote."""
    try:
        return list(_recipes(read_yaml(path.read_text(encoding="utf-8"), str(path))))
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"the recipe file {path} cannot be read") from None
    except (KeyError, TypeError, AttributeError):
        raise FlashbackError(
            f"{path} is not a recipe: it needs host, and recipes with benchmark, kind and settings {{value, from}}"
        ) from None


def _recipes(document: Any) -> Iterator[Recipe]:
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
