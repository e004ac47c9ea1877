"""The settings of a run that differ from its recipe."""

from __future__ import annotations

from functools import cache
from typing import Any

from flashback.config import to_dict
from flashback.recipes import KINDS, configure, find_recipe
from flashback.records import dotted
from flashback.records.terms import FLASHBACK
from flashback.results.run import Run

# Where the settings came from and how the run was computed; all other keys decide what it computed.
BESIDE = {"seed", "recipe", "fast", "capture", "compile", "training.precision", "training.evaluation_batch"}
WHOLE = {"benchmark.tasks": None, "benchmark.validation": 0.0}  # all tasks and all training images, in every recipe


def shortens(key: str) -> bool:
    """Whether a change of this setting makes a run shorter than its recipe, or tests it on other images."""
    epochs = key.endswith("epochs") and key.split(".")[0] in ("training", "host")  # flashback only divides epochs
    return epochs or key in (*WHOLE, "benchmark.sizes")


def departures(run: Run) -> dict[str, Any]:
    """The settings that differ from the recipe; where none is shipped, only those that shorten a run."""
    expected = {key: value for key, value in (recipe_of(run) | WHOLE).items() if key not in BESIDE}
    return {key: value for key, value in run.flat_settings.items() if key in expected and value != expected[key]}


def recipe_in_words(run: Run, changed: bool) -> str:
    """The name of the recipe; the settings of a recipe file are no change of it."""
    if run.recipe.endswith((".yaml", ".yml")):
        return f"recipe {run.recipe}"
    known = run.recipe in KINDS and recipe_of(run)
    return f"recipe {run.recipe}{', changed' * changed}" if known else "no recipe"


def recipe_of(run: Run) -> dict[str, Any]:
    """The settings of its recipe; the controlled one where the run names none of those shipped."""
    kind = run.recipe if run.recipe in KINDS else KINDS[0]
    return _recipe_settings(run.host, run.benchmark, kind, run.arm == FLASHBACK)


@cache
def _recipe_settings(host: str, benchmark: str, kind: str, flashback: bool) -> dict[str, Any]:
    if find_recipe(host, benchmark, kind) is None:
        return {}
    return dotted(to_dict(configure(host, benchmark, recipe=kind, flashback=flashback)))
