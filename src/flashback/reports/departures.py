"""What a run changes of its own recipe, and whether it is as long as that recipe asks for."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from flashback.config import to_dict
from flashback.recipes import KINDS, configure, find_recipe
from flashback.records.folder import dotted
from flashback.records.terms import FLASHBACK
from flashback.reports.reading import Run

# Where the settings of a run came from and how it was computed; what it computed is decided by all other keys.
BESIDE = {"seed", "recipe", "fast", "capture", "compile", "training.precision", "training.evaluation_batch"}
WHOLE = {"benchmark.tasks": None, "benchmark.validation": 0.0}  # all tasks, and all training images, in every recipe


def is_whole(run: Run) -> bool:
    """Trained on all tasks and all training images, with the epochs of its recipe: what printed values are about."""
    return not any(shortens(key) for key in departures(run))


def shortens(key: str) -> bool:
    epochs = key.endswith("epochs") and key.split(".")[0] in ("training", "host")  # flashback divides those it is given
    return epochs or key in (*WHOLE, "benchmark.sizes")


def departures(run: Run) -> dict[str, Any]:
    """The settings of a run that are not those of its recipe; without a recipe, those that shorten it."""
    expected = {key: value for key, value in (own_recipe(run) | WHOLE).items() if key not in BESIDE}
    return {key: value for key, value in flat_settings(run).items() if key in expected and value != expected[key]}


def changes(runs: Iterable[Run]) -> dict[str, Any]:
    """The departures of all runs of a comparison."""
    return {key: value for run in runs for key, value in departures(run).items()}


def flat_settings(run: Run) -> dict[str, Any]:
    """What a run was set up with, but for the seed and how often it was saved; flashback's settings where it is on."""
    ignored = ("seed", "checkpoint") if run.arm == FLASHBACK else ("seed", "checkpoint", "flashback")
    return dotted({key: value for key, value in run.settings.items() if key not in ignored})


def recipe_in_words(run: Run, changed: bool) -> str:
    """The recipe by name, where there is one; what a recipe file sets is no change of it."""
    if run.recipe.endswith((".yaml", ".yml")):
        return f"recipe {run.recipe}"
    known = run.recipe in KINDS and own_recipe(run)
    return f"recipe {run.recipe}{', changed' * changed}" if known else "no recipe"


def own_recipe(run: Run) -> dict[str, Any]:
    """What its recipe sets; where it names none of those shipped, as a recipe file does, the controlled one counts."""
    kind = run.recipe if run.recipe in KINDS else KINDS[0]
    return recipe_settings(run.host, run.benchmark, kind, run.arm == FLASHBACK)


@cache
def recipe_settings(host: str, benchmark: str, kind: str, flashback: bool) -> dict[str, Any]:
    """Nothing where no such recipe is shipped."""
    if find_recipe(host, benchmark, kind) is None:
        return {}
    return dotted(to_dict(configure(host, benchmark, recipe=kind, flashback=flashback)))
