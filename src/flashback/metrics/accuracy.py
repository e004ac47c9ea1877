"""Metrics of an accuracy matrix A, where A[k][j] is the accuracy in percent on task j after learning task k.

Only the lower triangle is used; entries above it may be None, NaN or missing. A matrix may stop after any task. In the
formulas T is the number of tasks. `zero_shot[k]` is the accuracy on task k + 1 after task k, just before it is learned;
`untrained[j]` is the accuracy of the freshly initialised model on task j; `sizes[j]` is the number of test images of
task j.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flashback.errors import FlashbackError, require, unknown

Matrix = Sequence[Sequence[float | None]] | NDArray[Any]
Values = Sequence[float | None] | NDArray[Any]
Variant = Literal["chaudhry", "paper", "mammoth"]

METRICS = {  # the compared metrics, and whether higher is better
    "average_accuracy": True,
    "average_incremental_accuracy": True,
    "forgetting": False,
    "backward_transfer": True,
    "forward_transfer": True,
    "stability_plasticity_ratio": False,
    "new_task_accuracy": True,
    "mean_new_task_accuracy": True,
}
OVER_IMAGES = {"average_incremental_accuracy_images": True, "last_accuracy_images": True}  # for tasks of unequal size
LAST_ROW_METRICS = ("average_accuracy", "last_accuracy_images", "new_task_accuracy")
ROUNDING = 1e-9  # rounding errors in sums of percentages


def average_accuracies(matrix: Matrix, weights: Values | None = None) -> list[float]:
    """Average accuracy after each task k: the (weighted) mean of A[k][0], ..., A[k][k]."""
    lower = lower_triangle(matrix)
    weight = np.ones(len(lower)) if weights is None else _known(weights, 0, len(lower))
    if weight is None or not (weight > 0).all():
        raise FlashbackError(f"an average over {len(lower)} tasks needs as many positive weights")
    return [float(np.average(row[: k + 1], weights=weight[: k + 1])) for k, row in enumerate(lower)]


def average_accuracy(matrix: Matrix, weights: Values | None = None) -> float:
    """`AA = 1/T sum_j A[T-1][j]`: the mean over tasks of the accuracy after the last one.

    Args:
        matrix: The accuracy matrix.
        weights: A weight for each task; by default all are equal.

    Returns:
        The average in percent.

    Raises:
        FlashbackError: If the lower triangle is incomplete, or a weight is missing or not positive.
    """
    return average_accuracies(matrix, weights)[-1]


def average_incremental_accuracy(matrix: Matrix, weights: Values | None = None) -> float:
    """`AIA = 1/T sum_k (1/(k+1) sum_{j<=k} A[k][j])`: the mean over time of the average accuracy.

    Args:
        matrix: The accuracy matrix.
        weights: A weight for each task in the inner mean; with numbers of test images, it is a mean over images.

    Returns:
        The average in percent.
    """
    return float(np.mean(average_accuracies(matrix, weights)))


def last_accuracy(matrix: Matrix, sizes: Values) -> float:
    """Accuracy over all test images after the last task: `sum_j n_j A[T-1][j] / sum_j n_j`.

    Args:
        matrix: The accuracy matrix.
        sizes: The number of test images of each task.

    Returns:
        The accuracy in percent.
    """
    return average_accuracy(matrix, sizes)


def forgetting(matrix: Matrix, variant: Variant = "chaudhry", zero_shot: Values | None = None) -> float | None:
    """`F = 1/(T-1) sum_{j<T-1} (max_k A[k][j] - A[T-1][j])`: how far earlier tasks fell below their best.

    Args:
        matrix: The accuracy matrix.
        variant: Where the maximum is taken. "chaudhry": k = j ... T-2 (Chaudhry et al., 2018). "paper": k <= j, which
            is `A[j][j]`, so that F = -BWT. "mammoth": all k, the zero-shot accuracy (0 if unknown) included.
        zero_shot: The zero-shot accuracies, for "mammoth".

    Returns:
        Forgetting in percentage points, or None for a single task.
    """
    lower = lower_triangle(matrix)
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
    """`BWT = 1/(T-1) sum_{j<T-1} (A[T-1][j] - A[j][j])` (Lopez-Paz and Ranzato, 2017).

    Args:
        matrix: The accuracy matrix.

    Returns:
        Percentage points, or None for a single task.
    """
    lower = lower_triangle(matrix)
    return float(np.mean((lower[-1] - lower.diagonal())[:-1])) if len(lower) > 1 else None


def forward_transfer(zero_shot: Values | None, untrained: Values | None) -> float | None:
    """`FWT = 1/(T-1) sum_{j>=1} (zero_shot[j-1] - untrained[j])` (Lopez-Paz and Ranzato, 2017).

    Args:
        zero_shot: The accuracy on each task from the second on, just before it is learned.
        untrained: The accuracy of the untrained model on each task.

    Returns:
        Percentage points, or None if an accuracy is unknown or there is a single task.
    """
    later = 0 if zero_shot is None else len(zero_shot)
    before, baseline = _known(zero_shot, 0, later), _known(untrained, 1, later + 1)
    return None if later == 0 or before is None or baseline is None else float(np.mean(before - baseline))


def new_task_accuracy(matrix: Matrix) -> float:
    """`A[T-1][T-1]`: the accuracy on the last task.

    Args:
        matrix: The accuracy matrix.
    """
    return float(lower_triangle(matrix)[-1, -1])


def mean_new_task_accuracy(matrix: Matrix) -> float:
    """`1/T sum_k A[k][k]`: the mean accuracy on each task just after learning it.

    Args:
        matrix: The accuracy matrix.
    """
    return float(lower_triangle(matrix).diagonal().mean())


def stability_plasticity_ratio(matrix: Matrix, variant: Variant = "chaudhry") -> float | None:
    """`SPR = 100 F / A[T-1][T-1]`: forgetting in percent of the accuracy on the last task; lower is better.

    Args:
        matrix: The accuracy matrix.
        variant: The variant of `forgetting`.

    Returns:
        The ratio, or None if it is undefined: for a single task, a last task that was not learned at all, or negative
        forgetting, where a worse last task would give a better ratio.
    """
    forgotten, learned = forgetting(matrix, variant), new_task_accuracy(matrix)
    if forgotten is None or learned == 0 or forgotten < -ROUNDING:
        return None
    return 100 * max(0.0, forgotten) / learned


def class_accuracies(confusion: Sequence[Sequence[int]] | NDArray[Any]) -> list[float | None]:
    """Accuracy of each class in percent, `100 C[c][c] / sum_p C[c][p]`, from a confusion matrix.

    Args:
        confusion: `C[c][p]` is the number of images of class c that were predicted as class p.

    Returns:
        One accuracy per class; None for a class without images.

    Raises:
        FlashbackError: If the matrix is not square or has negative counts.
    """
    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or (counts < 0).any():
        raise FlashbackError("a confusion matrix is square and has counts of 0 or more")
    totals, correct = counts.sum(1).tolist(), counts.diagonal().tolist()
    return [100 * right / total if total else None for right, total in zip(correct, totals, strict=True)]


def summarise(
    matrix: Matrix, sizes: Values, zero_shot: Values | None = None, untrained: Values | None = None
) -> dict[str, float | None]:
    """Compute every metric of one accuracy matrix.

    Args:
        matrix: The accuracy matrix.
        sizes: The number of test images of each task, for averages over images.
        zero_shot: The accuracy on each task but the first just before it is learned, if known.
        untrained: The accuracy of the untrained model on each task, if known.

    Returns:
        The metrics by name; None where a metric is undefined.
    """
    starts = [_entry(zero_shot, k) for k in range(len(matrix) - 1)]  # without that of a task still to come
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
    """Set metrics that need earlier rows to None, for a model trained on all tasks at once."""
    return {name: value if name in LAST_ROW_METRICS else None for name, value in metrics.items()}


def lower_triangle(matrix: Matrix) -> NDArray[np.float64]:
    """A matrix with NaN above its diagonal; a missing entry below is refused."""
    tasks = len(matrix)
    require(tasks != 0, "an accuracy matrix needs at least one row; train at least one task")
    lower = np.full((tasks, tasks), np.nan)
    for k, row in enumerate(matrix):
        known = _known(row, 0, k + 1)
        if known is None:
            raise FlashbackError(f"row {k} of an accuracy matrix needs a number for each of its first {k + 1} tasks")
        lower[k, : k + 1] = known
    return lower


def _known(values: Values | None, start: int, stop: int) -> NDArray[np.float64] | None:
    entries = [_entry(values, index) for index in range(start, stop)]
    return None if None in entries else np.array(entries, dtype=np.float64)


def _entry(values: Values | None, index: int) -> float | None:
    value = values[index] if values is not None and index < len(values) else None
    return None if value is None or not np.isfinite(value) else float(value)
