"""The trade-off of stability and plasticity: accuracy on old tasks against accuracy on new ones, and curves of it.

A curve has one point for each value of a setting, such as the weight of the stability loss, in the order of the values.
Its height at a new-task accuracy is the highest old-task accuracy that the line through its points has there or beyond.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flashback.metrics.accuracy import Matrix, lower_triangle

OUTLINE_POINTS = 100
CELLS = 1000  # of the range over which two curves are compared; the mean gap is over their midpoints


class TradeOff(NamedTuple):
    """Accuracy in percent on new tasks and on old ones."""

    new: float
    old: float


Curve = Sequence[TradeOff]


class Gap(NamedTuple):
    """How far one curve lies above another, over a range of new-task accuracy."""

    height: float  # mean difference in old-task accuracy
    area: float  # height times the width of the range
    low: float
    high: float


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
    """The highest old-task accuracy of a curve where its new-task accuracy is `new` or higher; NaN outside its range.

    The curve is the line through its points in their order. So a height never rises with `new`, and parts of the line
    that are worse on both than another part have no effect.
    """
    x: NDArray[Any] = np.asarray(new, dtype=np.float64)
    best = np.full(x.shape, np.nan)
    for first, second in pairwise([*curve, *curve[-1:]]):  # the last point alone too, so that one point is a curve
        (x0, y0), (x1, y1) = sorted((first, second))
        start = np.maximum(x, x0)  # of the part of this piece at x or beyond
        y = y1 if x1 == x0 else y0 + (start - x0) / (x1 - x0) * (y1 - y0)
        best = np.where(x <= x1, np.fmax(best, np.maximum(y, y1)), best)
    return np.where(x >= min(point.new for point in curve), best, np.nan)


def peak(curve: Curve) -> float:
    """The new-task accuracy of the highest point of a curve, left of which it trades nothing."""
    return max(curve, key=lambda point: (point.old, point.new)).new


def outline(curve: Curve) -> list[TradeOff]:
    """Points on a curve's height from its peak to its end, for a picture."""
    x = np.linspace(peak(curve), max(point.new for point in curve), OUTLINE_POINTS)
    return [TradeOff(float(new), float(old)) for new, old in zip(x, height(curve, x), strict=True)]


def gap(lower: Curve, upper: Curve) -> Gap | None:
    """The mean height of one curve above another, over the new-task accuracies that both reach.

    Left of both peaks no curve trades anything, so the range begins at the first of them.

    Args:
        lower: The curve to start from, such as that of the host alone.
        upper: The other curve. The gap is positive where it lies above.

    Returns:
        The gap, or None if the curves reach no new-task accuracy in common.
    """
    if not lower or not upper:
        return None
    ranges = [[point.new for point in curve] for curve in (lower, upper)]
    low = max(*map(min, ranges), min(peak(lower), peak(upper)))
    high = min(map(max, ranges))
    if low > high:
        return None
    midpoints = low + (high - low) * (np.arange(CELLS) + 0.5) / CELLS
    mean = float(np.mean(height(upper, midpoints) - height(lower, midpoints)))
    return Gap(mean, mean * (high - low), low, high)


def dominated(points: Sequence[TradeOff | None]) -> list[bool]:
    """Whether another point is at least as good on old and new tasks, and better on one of them."""

    def beats(other: TradeOff | None, point: TradeOff) -> bool:
        return other is not None and other.new >= point.new and other.old >= point.old and other != point

    return [point is not None and any(beats(other, point) for other in points) for point in points]
