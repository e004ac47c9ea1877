"""Names of methods: host, arm and the settings in which methods differ. What all share is left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flashback.config import to_dict
from flashback.recipes import KINDS, configure, find_recipe
from flashback.records import dotted
from flashback.records.terms import FLASHBACK
from flashback.results.run import Run

# Where the settings came from and how the run was computed; all other keys decide what it computed.
BESIDE = {"seed", "recipe", "fast", "capture", "compile", "training.precision", "training.evaluation_batch"}
WHOLE = {"benchmark.tasks": None, "benchmark.validation": 0.0}  # all tasks and all training images, in every recipe
FIRST = ("recipe", "benchmark.tasks", "training.epochs", "benchmark.validation")  # the most important differences
UNNAMED = {**WHOLE, "recipe": KINDS[0]}  # values that names leave out
MOST_SETTINGS, MOST_LETTERS, DIGITS = 4, 40, 8  # of a name, of a value in it, of a checksum

# ---------------------------------------------------------------- settings that differ from the recipe


def departures(run: Run) -> dict[str, Any]:
    """The settings that differ from the recipe; where none is shipped, only those that shorten a run."""
    recipe = recipe_settings(run.host, run.benchmark, run.recipe, run.arm == FLASHBACK)
    expected = {key: value for key, value in (recipe | WHOLE).items() if key not in BESIDE}
    return {key: value for key, value in run.flat_settings.items() if key in expected and value != expected[key]}


@cache
def recipe_settings(host: str, benchmark: str, recipe: str, flashback: bool) -> dict[str, Any]:
    """The settings of a recipe; the controlled one stands for any that is not shipped."""
    kind = recipe if recipe in KINDS else KINDS[0]
    if find_recipe(host, benchmark, kind) is None:
        return {}
    return dotted(to_dict(configure(host, benchmark, recipe=kind, flashback=flashback)))


def shortens(key: str) -> bool:
    """Whether a change of this setting makes a run shorter than its recipe, or tests it on other images."""
    epochs = key.endswith("epochs") and key.split(".")[0] in ("training", "host")  # flashback only divides epochs
    return epochs or key in (*WHOLE, "benchmark.sizes")


# ---------------------------------------------------------------- names


def method_title(run: Run, with_benchmark: bool, with_arm: bool = True) -> str:
    arm = " with flashback" if with_arm and run.arm == FLASHBACK else ""
    return f"{run.label or run.host}{arm}" + (f" on {Path(run.benchmark).stem}" if with_benchmark else "")


def distinguishing(run: Run) -> dict[str, Any]:
    """All that may distinguish a run from others: the length of a run first, how it was computed last."""
    keys = sorted(run.flat_settings, key=lambda key: FIRST.index(key) if key in FIRST else len(FIRST) + (key in BESIDE))
    settings = {key: run.flat_settings[key] for key in keys}
    facts = {"data": str(run.data["data_checksum"])[:DIGITS], "class order": run.data["class_order"]}
    return settings | {"code": str(run.code or "unknown")[:DIGITS]} | facts


def distinct_names(
    titles: Sequence[str], settings: Sequence[Mapping[str, Any]], changes: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """Add to each title its changes that not all share, and more settings until all names differ.

    Args:
        titles: The names to begin with.
        settings: What may distinguish each of them, in order of importance.
        changes: The keys that a reader should know of each, such as those that differ from a recipe.
    """
    varying = varying_keys(settings)
    keys = [[key for key in varying if key in some] for some in changes or [()] * len(titles)]
    names = list(map(_name, titles, settings, keys))
    for name in [name for name, count in Counter(names).items() if count > 1]:
        alike = [k for k, other in enumerate(names) if other == name]
        more = varying_keys([settings[k] for k in alike])
        longer = [
            [_name(titles[k], settings[k], keys[k], more[:length]) for k in alike] for length in range(len(more) + 1)
        ]
        for k, best in zip(alike, max(longer, key=lambda tried: len(set(tried))), strict=True):
            names[k] = best
    repeats = [names[:k].count(name) for k, name in enumerate(names)]
    return [f"{name} #{count + 1}" if count else name for name, count in zip(names, repeats, strict=True)]


def _name(title: str, settings: Mapping[str, Any], changes: Sequence[str], needed: Sequence[str] = ()) -> str:
    candidates = dict.fromkeys([*needed, *changes])
    keys = [key for key in candidates if settings.get(key) != UNNAMED.get(key)]
    most = max(MOST_SETTINGS, len(needed))
    words = [setting_in_words(key, settings[key]) for key in settings if key in keys[:most]]
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return f"{title} ({', '.join(words)}{rest})" if words else title


def varying_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys with several values among those that have them."""
    values: dict[str, set[str]] = {}
    for one in settings:
        for key, value in one.items():
            values.setdefault(key, set()).add(value_in_words(value))
    return [key for key, several in values.items() if len(several) > 1]


def setting_in_words(key: str, value: Any) -> str:
    if key in ("benchmark.tasks", "training.epochs") and isinstance(value, int):
        return f"{value} {key.split('.')[-1].removesuffix('s')}{'s' * (value != 1)}"
    text = value_in_words(value)
    short = text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
    return f"{key.removeprefix('benchmark.')} {short}"


def value_in_words(value: Any) -> str:
    """A setting as YAML has it; an empty name leaves the choice to the package."""
    return (value or "automatic") if isinstance(value, str) else json.dumps(value, default=str)
