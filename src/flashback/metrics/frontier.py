"""The trade-off of stability and plasticity: accuracy on old tasks against accuracy on new ones, and curves of it.

A curve has one point for each value of a setting, such as the weight of the stability loss, in the order of the values.
Its height at a new-task accuracy x is the highest old-task accuracy that the line through its points has there.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flashback.metrics.accuracy import Matrix, lower_triangle

CELLS = 1000  # of the common range of two curves; the mean gap is over their midpoints


class TradeOff(NamedTuple):
    """Accuracy in percent on new tasks and on old ones."""

    new: float
    old: float


Curve = Sequence[TradeOff]


class Gap(NamedTuple):
    """How far one curve lies above another over the range of new-task accuracy that both reach."""

    height: float  # mean difference in old-task accuracy
    area: float  # height times the width of the range
    low: float
    high: float
    share: float  # of the range of the lower curve


def trade_off(matrix: Matrix) -> TradeOff | None:
    """Accuracy on the new task and on earlier tasks, both after each task k > 0, as means over these tasks.

    `new = 1/(T-1) sum_{k>0} A[k][k]` and `old = 1/(T-1) sum_{k>0} (1/k sum_{j<k} A[k][j])`.

    Args:
        matrix: The accuracy matrix.

    Returns:
        Both accuracies; None for a single task, after which nothing is old.
    """
    lower = lower_triangle(matrix)
    later = range(1, len(lower))
    if not later:
        return None
    new = [float(lower[k, k]) for k in later]
    old = [float(lower[k, :k].mean()) for k in later]
    return TradeOff(float(np.mean(new)), float(np.mean(old)))


def height(curve: Curve, new: ArrayLike) -> NDArray[np.float64]:
    """The old-task accuracy that a curve reaches at a new-task accuracy; NaN outside its range.

    The curve is the line through its points in their order. Where it folds back, its highest point counts.
    """
    x: NDArray[Any] = np.asarray(new, dtype=np.float64)
    best = np.full(x.shape, np.nan)
    for first, second in pairwise([*curve, *curve[-1:]]):  # the last point alone too, so that one point is a curve
        (x0, y0), (x1, y1) = sorted((first, second))
        inside = (x >= x0) & (x <= x1)
        y = y0 + (x - x0) / (x1 - x0) * (y1 - y0) if x1 > x0 else np.full(x.shape, max(y0, y1))
        best = np.where(inside, np.fmax(best, y), best)
    return best


def gap(lower: Curve, upper: Curve) -> Gap | None:
    """The mean height of one curve above another, over the range of new-task accuracy that both reach.

    Args:
        lower: The curve to start from, such as that of the host alone.
        upper: The other curve. The gap is positive where it lies above.

    Returns:
        The gap, or None if the ranges do not overlap.
    """
    if not lower or not upper:
        return None
    ranges = [(min(point.new for point in curve), max(point.new for point in curve)) for curve in (lower, upper)]
    low, high = max(start for start, _ in ranges), min(end for _, end in ranges)
    if low >= high:
        return None
    width = high - low
    midpoints = low + width * (np.arange(CELLS) + 0.5) / CELLS
    mean = float(np.mean(height(upper, midpoints) - height(lower, midpoints)))
    return Gap(mean, mean * width, low, high, width / (ranges[0][1] - ranges[0][0]))


def dominated(points: Sequence[TradeOff | None]) -> list[bool]:
    """Whether another point is at least as good on old and new tasks, and better on one of them."""

    def beats(other: TradeOff | None, point: TradeOff) -> bool:
        return other is not None and other.new >= point.new and other.old >= point.old and other != point

    return [point is not None and any(beats(other, point) for other in points) for point in points]
