"""The words of a report: names of metrics, arms and settings, and numbers as people read them."""

from __future__ import annotations

import json
from typing import Any

from flashback.metrics import PairedTest
from flashback.training.compare import METRICS, OVER_IMAGES, Comparison
from flashback.training.jobs import FLASHBACK, HOST

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
ARM_TITLES = {HOST: "host", FLASHBACK: "with flashback"}
SETTING_TITLES = {"class_incremental": "class-incremental", "task_incremental": "task-incremental"}
ABSENT = "–"
SIGNIFICANT = 0.05


def number(value: float | None, form: str = ".2f") -> str:
    """The same text on every machine: what sums leave in the last bits decides no rounding, and zero has no sign."""
    if value is None:
        return ABSENT
    return format(round(float(value), 9), f"+z{form[1:]}" if form.startswith("+") else f"z{form}")


def signed(difference: float | None) -> str:
    return number(difference, "+.2f")


def spread(mean: float | None, deviation: float | None) -> str:
    return number(mean) + ("" if deviation is None else f" ± {number(deviation)}")


def probability(p: float | None) -> str:
    return ABSENT if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def interval(test: PairedTest) -> str:
    return ABSENT if test.low is None or test.high is None else f"{signed(test.low)} to {signed(test.high)}"


def unmatched_seeds(comparison: Comparison) -> str:
    """What the means of a table rest on and its differences do not; nothing where both arms have the same seeds."""
    each = [f"{ARM_TITLES[arm]}: {', '.join(map(str, seeds))}" for arm, seeds in comparison.unmatched.items()]
    if not each:
        return ""
    return f"Seeds that only one arm has ({'; '.join(each)}) count for its mean, not for the difference and its test."


def direction(metric: str, difference: float | None) -> str:
    """Better, worse, or nothing to say, whichever way the metric counts."""
    if not difference:
        return ""
    return "better" if (difference > 0) == HIGHER_IS_BETTER[metric] else "worse"


def written(value: Any) -> str:
    """A setting as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
