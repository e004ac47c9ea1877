"""Recipes: settings of a host on a benchmark, each value with its source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from flashback.benchmarks import canonical_name
from flashback.errors import FlashbackError
from flashback.plain_yaml import AliasLoader, read_yaml

KINDS = CONTROLLED, ANCHOR, AS_PUBLISHED, IMPROVED = "controlled", "anchor", "as-published", "improved"
DEFAULTS = "defaults"  # no recipe


@dataclass(frozen=True)
class Recipe:
    """Settings by dotted key, and the source of each value."""

    host: str
    benchmark: str
    kind: str
    settings: Mapping[str, Any]
    flashback_settings: Mapping[str, Any]  # only in the flashback arm; published and improved recipes have some
    sources: Mapping[str, str]
    note: str = ""

    def is_for(self, host: str, benchmark: str) -> bool:
        names = canonical_name(str(self.benchmark)), canonical_name(str(benchmark))  # YAML may read a number
        return self.host == host and names[0] == names[1]

    def values(self, flashback: bool) -> dict[str, Any]:
        return {**self.settings, **(self.flashback_settings if flashback else {})}


@cache
def list_recipes() -> tuple[Recipe, ...]:
    folder = resources.files("flashback.recipes")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    documents = (read_yaml(file.read_text(encoding="utf-8"), file.name, AliasLoader) for file in files)
    return tuple(recipe for document in documents for recipe in _recipes(document))


def read_recipe_file(path: Path) -> list[Recipe]:
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
        settings = {**document.get("common", {}), **entry.get("settings", {})}
        flashback = entry.get("flashback_settings", {})
        values, more = ({key: each["value"] for key, each in group.items()} for group in (settings, flashback))
        sources = {key: each["from"] for key, each in (settings | flashback).items()}
        yield Recipe(document["host"], entry["benchmark"], entry["kind"], values, more, sources, entry.get("note", ""))


def find_recipe(host: str, benchmark: str, kind: str) -> Recipe | None:
    return next((r for r in list_recipes() if (r.host, r.benchmark, r.kind) == (host, benchmark, kind)), None)
