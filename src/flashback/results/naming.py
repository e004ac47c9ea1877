"""Names of methods: host, arm and the settings in which methods differ. What all share is left out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashback.recipes import KINDS
from flashback.records.terms import FLASHBACK
from flashback.results.departures import BESIDE, WHOLE
from flashback.results.run import Run

FIRST = ("recipe", "benchmark.tasks", "training.epochs", "benchmark.validation")  # the most important differences
UNNAMED = {**WHOLE, "recipe": KINDS[0]}  # values that go without saying
MOST_SETTINGS, MOST_LETTERS, DIGITS = 4, 40, 8  # of a name, of a value in it, of a checksum


def method_title(run: Run, with_benchmark: bool, with_arm: bool = True) -> str:
    arm = " with flashback" if with_arm and run.arm == FLASHBACK else ""
    return f"{run.label or run.host}{arm}" + (f" on {Path(run.benchmark).stem}" if with_benchmark else "")


def distinguishing(run: Run) -> dict[str, Any]:
    """All that may distinguish a run from others, what matters most first."""
    facts = {"data": str(run.data["data_checksum"])[:DIGITS], "class order": run.data["class_order"]}
    return in_order(run.flat_settings) | {"code": str(run.code or "unknown")[:DIGITS]} | facts


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
    keys = [
        [key for key in in_order(dict.fromkeys(some)) if key in varying] for some in changes or [[] for _ in titles]
    ]
    names = list(map(_name, titles, settings, keys))
    for name, count in Counter(names).items():
        if count > 1:
            alike = [k for k, other in enumerate(names) if other == name]
            more = varying_keys([settings[k] for k in alike])
            longer = [
                [_name(titles[k], settings[k], keys[k], more[:length]) for k in alike]
                for length in range(len(more) + 1)
            ]
            for k, best in zip(alike, max(longer, key=lambda tried: len(set(tried))), strict=True):
                names[k] = best
    counts: Counter[str] = Counter()
    for k, name in enumerate(names):
        counts[name] += 1
        names[k] = name if counts[name] == 1 else f"{name} #{counts[name]}"
    return names


def varying_keys(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys with several values among those that have them."""
    values: dict[str, set[str]] = {}
    for one in settings:
        for key, value in one.items():
            values.setdefault(key, set()).add(value_in_words(value))
    return [key for key, several in values.items() if len(several) > 1]


def in_order(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The length of a run first, how it was computed last."""
    rank = {key: k - len(FIRST) for k, key in enumerate(FIRST)} | {key: 1 for key in BESIDE if key not in FIRST}
    return dict(sorted(settings.items(), key=lambda item: rank.get(item[0], 0)))


def _name(title: str, settings: Mapping[str, Any], changes: Sequence[str], needed: Sequence[str] = ()) -> str:
    optional = [key for key in changes if key not in needed]
    chosen = {*needed, *optional[: max(0, MOST_SETTINGS - len(needed))]}
    keys = [key for key in in_order(dict.fromkeys([*changes, *needed])) if key in chosen]
    words = [setting_in_words(key, settings[key]) for key in keys if settings.get(key) != UNNAMED.get(key)]
    rest = f" and {len(optional) - len(chosen) + len(needed)} more" if len(chosen) < len(optional) + len(needed) else ""
    return f"{title} ({', '.join(words)}{rest})" if words else title


def setting_in_words(key: str, value: Any) -> str:
    if key in ("benchmark.tasks", "training.epochs") and isinstance(value, int):
        return f"{value} {key.split('.')[-1].removesuffix('s')}{'s' * (value != 1)}"
    text = value_in_words(value)
    short = text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 1]}…"
    return f"{key.removeprefix('benchmark.')} {short}"


def value_in_words(value: Any) -> str:
    """A setting as YAML has it; an empty name leaves the choice to the package."""
    return (value or "automatic") if isinstance(value, str) else json.dumps(value, default=str)
