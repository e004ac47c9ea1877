"""The words of a report: names of metrics, arms and settings, and numbers as people read them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from flashback.errors import unknown
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.metrics.formatting import ABSENT as ABSENT
from flashback.metrics.formatting import number as number
from flashback.metrics.formatting import probability as probability
from flashback.metrics.formatting import signed as signed
from flashback.metrics.statistics import PairedTest
from flashback.metrics.statistics import interval as interval
from flashback.records.terms import FLASHBACK, HOST
from flashback.studies.comparison import Comparison, Row

HIGHER_IS_BETTER = METRICS | OVER_IMAGES
TITLES = {  # the short name, and what it says
    "average_accuracy": ("AA", "average accuracy"),
    "average_incremental_accuracy": ("AIA", "average incremental accuracy"),
    "forgetting": ("F", "forgetting"),
    "backward_transfer": ("BWT", "backward transfer"),
    "forward_transfer": ("FWT", "forward transfer"),
    "stability_plasticity_ratio": ("SPR", "stability-plasticity ratio"),
    "new_task_accuracy": ("NTA", "new-task accuracy, last task"),
    "mean_new_task_accuracy": ("mean NTA", "new-task accuracy, mean over tasks"),
    "average_incremental_accuracy_images": ("AIA, images", "average incremental accuracy over test images"),
    "last_accuracy_images": ("LA, images", "last accuracy over test images"),
}
ALL_AT_ONCE = "it learned all tasks at once"
ONE_TASK = "there is no earlier task"
NO_VALUE = {  # why a metric may have none at any seed
    "forgetting": ONE_TASK,
    "backward_transfer": ONE_TASK,
    "forward_transfer": "its classifier gives no score to classes it has not met",
    "stability_plasticity_ratio": "nothing was forgotten, or the last task not learned",
}
ARM_TITLES = {HOST: "host", FLASHBACK: "with flashback"}
SETTING_TITLES = {"class_incremental": "class-incremental", "task_incremental": "task-incremental"}
SIGNIFICANT = 0.05


def spread(mean: float | None, deviation: float | None) -> str:
    return number(mean) + ("" if deviation is None else f" ± {number(deviation)}")


def tested(test: PairedTest) -> str:
    """The difference, with p where there is a test and a word where there is none."""
    alone = " (one seed)" if test.pairs == 1 else ""
    return signed(test.difference) + (alone if test.p is None else f" (p {probability(test.p)})")


def unmatched_seeds(comparison: Comparison) -> str:
    """What the means of a table rest on and its differences do not; nothing where both arms have the same seeds."""
    alone = by_arm(comparison.unmatched)
    said = f"Seeds that only one arm has ({alone}) count for its mean, not for the difference and its test."
    return said if alone else ""


def unvalued_seeds(comparison: Comparison, metrics: Collection[str] = TITLES) -> list[str]:
    """Where some seeds of an arm have a value and others none, as an SPR where forgetting is negative."""
    said = []
    for row in (row for row in comparison.rows if row.metric in metrics):
        none = {arm: [seed for seed, value in own.items() if value is None] for arm, own in row.values.items()}
        partly = {arm: seeds for arm, seeds in none.items() if seeds and len(seeds) < len(row.values[arm])}
        if partly:
            what = f"{TITLES[row.metric][0]}, {SETTING_TITLES[row.setting]}"
            said.append(
                f"{what}, has no value at some seeds ({by_arm(partly)}), so neither mean nor test: the others would be "
                "a choice by outcome."
            )
    return said


def missing_values(comparison: Comparison, metrics: Sequence[str]) -> list[str]:
    """Which of the metrics have no value at any seed of any arm in either setting, and why."""
    values: dict[str, list[float | None]] = {}
    for row in comparison.rows:
        values.setdefault(row.metric, []).extend(value for own in row.values.values() for value in own.values())
    none = [metric for metric in metrics if metric in values and set(values[metric]) == {None}]
    reasons: dict[str, list[str]] = {}
    whole = "average_incremental_accuracy" in values and set(values["average_incremental_accuracy"]) == {None}
    for metric in none:
        why = ALL_AT_ONCE if whole else NO_VALUE.get(metric, "its records have none")
        reasons.setdefault(why, []).append(TITLES[metric][0])
    return [f"no {', '.join(names)}, since {why}." for why, names in reasons.items()]


def metric_called(name: str) -> str:
    """A metric by its short name in tables, in any case, or by its key in results.json."""
    short = {title.lower(): metric for metric, (title, _) in TITLES.items()}
    name = name.strip()
    found = name if name in TITLES else short.get(name.lower())
    if found is None:
        raise unknown("metric", name, [key if "," in title else title for key, (title, _) in TITLES.items()])
    return found


def heading(metric: str) -> str:
    return f"{TITLES[metric][0]} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def seeds_with_value(row: Row, arm: str) -> int:
    """What the mean of an arm rests on."""
    return sum(value is not None for value in row.values[arm].values())


def by_arm(seeds: Mapping[str, Sequence[int]]) -> str:
    said = {arm: f"seed{'s' * (len(own) > 1)} {', '.join(map(str, own))}" for arm, own in seeds.items()}
    return "; ".join(f"{ARM_TITLES[arm]}: {own}" for arm, own in said.items())


def direction(metric: str, difference: float | None) -> str:
    """Better, worse, or nothing to say, whichever way the metric counts; what is written as 0.00 has no direction."""
    if difference is None or round(difference, 2) == 0:
        return ""
    return "better" if (difference > 0) == HIGHER_IS_BETTER[metric] else "worse"


def written(value: Any) -> str:
    """A setting as YAML has it; one that names nothing leaves the choice to the package."""
    return (value or "automatic") if isinstance(value, str) else json.dumps(value, default=str)


def enumerated(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
