"""Metrics of an accuracy matrix: matrix[k][j] is the accuracy in percent on task j after learning task k.

Only the lower triangle counts; what stands above it (None, NaN, nothing) is ignored. A matrix may stop after any task.
`zero_shot[k]` is the accuracy on task k + 1 after task k, just before it is learned; `untrained[j]` is the accuracy of
the freshly initialised model on task j; `sizes[j]` is the number of test images of task j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flashback.errors import FlashbackError, unknown

Matrix = Sequence[Sequence[float | None]] | NDArray[Any]

METRICS = {  # what is compared, and whether more of it is better
    "average_accuracy": True,
    "average_incremental_accuracy": True,
    "forgetting": False,
    "backward_transfer": True,
    "forward_transfer": True,
    "stability_plasticity_ratio": False,
    "new_task_accuracy": True,
    "mean_new_task_accuracy": True,
}
OVER_IMAGES = {"average_incremental_accuracy_images": True, "last_accuracy_images": True}  # of tasks of unequal size
Values = Sequence[float | None] | NDArray[Any]
Variant = Literal["chaudhry", "paper", "mammoth"]
OF_THE_END = ("average_accuracy", "last_accuracy_images", "new_task_accuracy")  # metrics of the last row alone
ROUNDING = 1e-9  # what sums of percentages may leave of zero


def average_accuracies(matrix: Matrix, weights: Values | None = None) -> list[float]:
    """The average accuracy after each task, over the tasks learned so far."""
    lower = _lower(matrix)
    weight = np.ones(len(lower)) if weights is None else _known(weights, 0, len(lower))
    if weight is None or not (weight > 0).all():
        raise FlashbackError(f"an average over {len(lower)} tasks needs as many positive weights")
    return [float(np.average(row[: k + 1], weights=weight[: k + 1])) for k, row in enumerate(lower)]


def average_accuracy(matrix: Matrix, weights: Values | None = None) -> float:
    """AA: the mean over tasks of the accuracy after the last one."""
    return average_accuracies(matrix, weights)[-1]


def average_incremental_accuracy(matrix: Matrix, weights: Values | None = None) -> float:
    """AIA: the mean over time of the average accuracy; a task mean, or with test-set sizes as weights an image mean."""
    return float(np.mean(average_accuracies(matrix, weights)))


def last_accuracy(matrix: Matrix, sizes: Values) -> float:
    """Accuracy over all test images after the last task."""
    return average_accuracy(matrix, sizes)


def forgetting(matrix: Matrix, variant: Variant = "chaudhry", zero_shot: Values | None = None) -> float | None:
    """F: how far earlier tasks fell below their best, on average; None for a single task.

    chaudhry: best over the steps from learning the task to the last but one (Chaudhry et al., 2018).
    paper: best over the steps up to learning the task, which is the accuracy when it was learned, so F = -BWT.
    mammoth: best over all steps, the last included, with the zero-shot accuracy (0 where unknown) as one more step.
    """
    lower = _lower(matrix)
    earlier = len(lower) - 1
    if earlier == 0:
        return None
    best: list[float]
    if variant == "chaudhry":
        best = [lower[j:-1, j].max() for j in range(earlier)]
    elif variant == "paper":
        best = [lower[j, j] for j in range(earlier)]
    elif variant == "mammoth":
        before = [0.0, *(_entry(zero_shot, k) or 0.0 for k in range(earlier - 1))]
        best = [max(lower[j:, j].max(), before[j]) for j in range(earlier)]
    else:
        raise unknown("variant of forgetting", variant, ("chaudhry", "paper", "mammoth"))
    return float(np.mean(best - lower[-1, :-1]))


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT: the change of earlier tasks since each was learned (Lopez-Paz and Ranzato, 2017); None for a single task."""
    lower = _lower(matrix)
    return float(np.mean((lower[-1] - lower.diagonal())[:-1])) if len(lower) > 1 else None


def forward_transfer(zero_shot: Values | None, untrained: Values | None) -> float | None:
    """FWT: how much better than an untrained model each later task starts; None where that is unknown."""
    later = 0 if zero_shot is None else len(zero_shot)
    before, baseline = _known(zero_shot, 0, later), _known(untrained, 1, later + 1)
    return None if later == 0 or before is None or baseline is None else float(np.mean(before - baseline))


def new_task_accuracy(matrix: Matrix) -> float:
    """Accuracy on the last task, just learned."""
    return float(_lower(matrix)[-1, -1])


def mean_new_task_accuracy(matrix: Matrix) -> float:
    """Accuracy on each task just after learning it, on average: plasticity over the whole run."""
    return float(_lower(matrix).diagonal().mean())


def stability_plasticity_ratio(matrix: Matrix, variant: Variant = "chaudhry") -> float | None:
    """SPR: forgetting in percent of the accuracy on the last task; lower is better, None where there is no ratio.

    Of negative forgetting there is none: the worse the last task were learned, the lower it would be.
    """
    forgotten, learned = forgetting(matrix, variant), new_task_accuracy(matrix)
    if forgotten is None or learned == 0 or forgotten < -ROUNDING:
        return None
    return 100 * max(0.0, forgotten) / learned


def summarise(
    matrix: Matrix, sizes: Values, zero_shot: Values | None = None, untrained: Values | None = None
) -> dict[str, float | None]:
    """Every metric of one matrix by name; `sizes` are the test images of each task, for averages over images."""
    starts = [_entry(zero_shot, k) for k in range(len(matrix) - 1)]  # the next task's, if measured, is no part of it
    return {
        "average_accuracy": average_accuracy(matrix),
        "average_incremental_accuracy": average_incremental_accuracy(matrix),
        "average_incremental_accuracy_images": average_incremental_accuracy(matrix, sizes),
        "last_accuracy_images": last_accuracy(matrix, sizes),
        "forgetting": forgetting(matrix),
        "forgetting_paper": forgetting(matrix, "paper"),
        "forgetting_mammoth": forgetting(matrix, "mammoth", zero_shot),
        "backward_transfer": backward_transfer(matrix),
        "forward_transfer": forward_transfer(starts, untrained),
        "stability_plasticity_ratio": stability_plasticity_ratio(matrix),
        "new_task_accuracy": new_task_accuracy(matrix),
        "mean_new_task_accuracy": mean_new_task_accuracy(matrix),
    }


def without_history(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """What holds for a model that learned everything at the end: it has no history to tell of."""
    return {name: value if name in OF_THE_END else None for name, value in metrics.items()}


def _lower(matrix: Matrix) -> NDArray[np.float64]:
    """The lower triangle as a square array, NaN above the diagonal."""
    tasks = len(matrix)
    if tasks == 0:
        raise FlashbackError("an accuracy matrix needs at least one row; train at least one task")
    lower = np.full((tasks, tasks), np.nan)
    for k, row in enumerate(matrix):
        known = _known(row, 0, k + 1)
        if known is None:
            raise FlashbackError(f"row {k} of an accuracy matrix needs a number for each of its first {k + 1} tasks")
        lower[k, : k + 1] = known
    return lower


def _known(values: Values | None, start: int, stop: int) -> NDArray[np.float64] | None:
    """Entries start .. stop - 1, or None if any of them is missing."""
    entries = [_entry(values, index) for index in range(start, stop)]
    return None if None in entries else np.array(entries, dtype=np.float64)


def _entry(values: Values | None, index: int) -> float | None:
    value = values[index] if values is not None and index < len(values) else None
    return None if value is None or not np.isfinite(value) else float(value)
