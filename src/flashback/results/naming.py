"""Names of methods: host, arm and the settings in which methods differ. What all share is left out."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from flashback.config import to_dict
from flashback.recipes import KINDS, configure, find_recipe
from flashback.records import dotted
from flashback.records.terms import FLASHBACK
from flashback.results.run import Run

# Where the settings came from and how the run was computed; all other keys decide what it computed.
IGNORED_KEYS = {"seed", "recipe", "fast", "capture", "compile", "training.precision", "training.evaluation_batch"}
WHOLE = {"benchmark.tasks": None, "benchmark.validation": 0.0}  # all tasks and all training images, in every recipe
MOST_LETTERS, DIGITS = 40, 8  # of a value in a name, of a checksum


def changed_settings(run: Run) -> dict[str, Any]:
    """The settings that differ from the recipe; where none is shipped, only those that shorten a run."""
    recipe = recipe_settings(run.host, run.benchmark, run.recipe, run.arm == FLASHBACK)
    expected = {key: value for key, value in (recipe | WHOLE).items() if key not in IGNORED_KEYS}
    return {key: value for key, value in run.flat_settings.items() if key in expected and value != expected[key]}


@cache
def recipe_settings(host: str, benchmark: str, recipe: str, flashback: bool) -> dict[str, Any]:
    """The settings of a recipe; the controlled one stands for any that is not shipped."""
    kind = recipe if recipe in KINDS else KINDS[0]
    if find_recipe(host, benchmark, kind) is None:
        return {}
    return dotted(to_dict(configure(host, benchmark, recipe=kind, flashback=flashback)))


def is_length(key: str) -> bool:
    """Whether a setting is a number of epochs of the host; flashback only divides them."""
    return key.endswith("epochs") and key.split(".")[0] in ("training", "host")


def shortens_run(key: str) -> bool:
    """Whether a change of this setting makes a run shorter than its recipe, or tests it on other images."""
    return is_length(key) or key in (*WHOLE, "benchmark.sizes")


def run_names(runs: Sequence[Run], changes: Sequence[Iterable[str]], with_arm: bool = True) -> list[str]:
    """Label or host, arm, the benchmark where there are several, and the changes that distinguish a run."""
    several, titles = len({run.benchmark for run in runs}) > 1, []
    for run in runs:
        arm = " with flashback" if with_arm and run.arm == FLASHBACK else ""
        titles.append(f"{run.label or run.host}{arm}" + (f" on {Path(run.benchmark).stem}" if several else ""))
    settings = [run.flat_settings | {"code": str(run.code or "unknown")[:DIGITS]} | data_facts(run) for run in runs]
    unlabelled = [() if run.label else some for run, some in zip(runs, changes, strict=True)]
    return distinct_names(titles, settings, unlabelled)


def data_facts(run: Run) -> dict[str, Any]:
    return {"data": str(run.data["data_checksum"])[:DIGITS], "class order": run.data["class_order"]}


def distinct_names(
    titles: Sequence[str], settings: Sequence[Mapping[str, Any]], changes: Sequence[Iterable[str]]
) -> list[str]:
    """Add to each title its changes that not all share; names that are still equal get all settings that differ."""
    varying_names = varying_keys(settings)
    keys = [[key for key in varying_names if key in method_changes] for method_changes in changes]
    names = list(map(_name, titles, settings, keys))
    for name in [name for name, count in Counter(names).items() if count > 1]:
        equal = [k for k, other in enumerate(names) if other == name]
        more = varying_keys([settings[k] for k in equal])
        for k in equal:
            names[k] = _name(titles[k], settings[k], [*keys[k], *more])
    repeats = [names[:k].count(name) for k, name in enumerate(names)]
    return [f"{name} #{count + 1}" if count else name for name, count in zip(names, repeats, strict=True)]


def _name(title: str, settings: Mapping[str, Any], keys: Collection[str]) -> str:
    words = [setting_in_words(key, value) for key, value in settings.items() if key in keys and value is not None]
    return f"{title} ({', '.join(words)})" if words else title


def varying_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    values: dict[str, set[str]] = {}
    for mapping in settings:
        for key, value in mapping.items():
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
