"""Means, standard deviations, confidence intervals and paired tests, with a sentence about the result."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashback.errors import FlashbackError
from flashback.metrics.accuracy import Matrix, average_accuracies

Sample = Sequence[float] | NDArray[Any]
Paired = Mapping[Any, float | None] | Sequence[float | None]
ABSENT = "–"
SIGNIFICANT = 0.05  # p-values below it are called significant
FEW = 5  # with fewer pairs a t-test misses most effects of the size seen in continual learning


def mean(values: Sample) -> float | None:
    """The mean; None without values."""
    return float(np.mean(values)) if len(values) else None


def deviation(values: Sample) -> float | None:
    """The sample standard deviation (n - 1); None for fewer than two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def confidence_interval(values: Sample, level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean; None for fewer than two values."""
    from scipy import stats

    n = len(values)
    if n < 2:
        return None
    half = float(stats.t.ppf((1 + level) / 2, n - 1)) * float(np.std(values, ddof=1)) / n**0.5
    return float(np.mean(values)) - half, float(np.mean(values)) + half


@dataclass(frozen=True)
class PairedTest:
    """A two-sided paired t-test of second minus first; t, p and the interval are None if no test is possible."""

    difference: float | None
    t: float | None
    p: float | None
    pairs: int
    low: float | None
    high: float | None
    unit: str = "seed"


def paired_test(first: Paired, second: Paired, unit: str = "seed") -> PairedTest:
    """Compare two methods by a two-sided paired t-test, t = d / (s / sqrt(n)) for n differences with mean d.

    Args:
        first: Values of one method, such as the host alone, by key (such as the seed) or by position.
        second: Values of the other method. Pairs with a missing value are ignored.
        unit: What a pair stands for, in sentences.

    Returns:
        The mean of second minus first with its 95 % interval, t and p. There is no test for fewer than two pairs, or if
        all differences are equal.

    Raises:
        FlashbackError: If two sequences differ in length.
    """
    from scipy import stats

    left, right = _pairs(first, second)
    difference = right - left
    pairs = len(difference)
    if pairs < 2 or np.allclose(difference, difference[0], rtol=0, atol=1e-9):
        return PairedTest(mean(difference), None, None, pairs, None, None, unit)
    result, interval = stats.ttest_rel(right, left), confidence_interval(difference)
    assert interval is not None
    return PairedTest(mean(difference), float(result.statistic), float(result.pvalue), pairs, *interval, unit)


def paired_over_methods(
    host: Mapping[str, Mapping[str, float]], flashback: Mapping[str, Mapping[str, float]]
) -> PairedTest:
    """The paper's test: one pair of average accuracies per method and setting (class- and task-incremental).

    It tests the mean gain over these methods, and says nothing about seeds or about a single method.

    Args:
        host: The accuracies of each method without flashback, by method and setting.
        flashback: The same with flashback.
    """
    first, second = (
        {(method, setting): value for method, row in table.items() for setting, value in row.items()}
        for table in (host, flashback)
    )
    return paired_test(first, second, unit="method and setting")


def paired_over_tasks(host: Matrix, flashback: Matrix) -> PairedTest:
    """The paper's test for oEWC: one pair per task, of the average accuracies after it.

    Args:
        host: The accuracy matrix without flashback.
        flashback: The accuracy matrix with flashback.
    """
    return paired_test(average_accuracies(host), average_accuracies(flashback), unit="task")


def holm(values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiple tests (Holm, 1979): the smallest of n is multiplied by n, the next by n - 1, ...

    If all adjusted values below 0.05 count as significant, the chance of any false finding is at most 5 %.

    Args:
        values: The p-values.

    Returns:
        The adjusted p-values, in the same order.
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for done, k in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, values[k] * (len(values) - done)))
        adjusted[k] = largest
    return adjusted


def number(value: float | None, form: str = ".2f") -> str:
    """Format a number so that rounding errors in the last bits never show, and zero has no sign."""
    if value is None or math.isnan(value):
        return ABSENT
    return format(round(float(value), 9), f"+z{form[1:]}" if form.startswith("+") else f"z{form}")


def signed(difference: float | None) -> str:
    return number(difference, "+.2f")


def probability(p: float | None, equals: str = "") -> str:
    """Format a p-value to two digits, or more if it would round to 0.05; `equals` goes before all but a bound."""
    if p is None or p < 1e-4:
        return ABSENT if p is None else "< 0.0001"
    texts = (f"{p:.{digits}g}" for digits in range(2, 18))
    return equals + next(text for text in texts if float(text) != SIGNIFICANT or p == SIGNIFICANT)


def interval(test: PairedTest) -> str:
    return ABSENT if test.low is None or test.high is None else f"{signed(test.low)} to {signed(test.high)}"


def verdict(test: PairedTest, higher_is_better: bool = True, subject: str = "") -> str:
    """Describe a paired test in one sentence, at the 5 % level.

    Args:
        test: The result of `paired_test`.
        higher_is_better: Whether a positive difference is an improvement.
        subject: The name of the second arm, if it is not flashback.
    """
    if test.difference is None:
        return "There is no pair to compare."
    changes = f"{subject} differs by" if subject else "flashback changes this by"
    pairs = f"{test.pairs} pair{'s' * (test.pairs > 1)} (one per {test.unit})"
    if test.pairs < 2:
        return f"Too few pairs for a test: {changes} {signed(test.difference)} in {pairs}."
    if test.p is None:
        return f"No test is possible: {changes} exactly {signed(test.difference)} in each of {pairs}."
    p = probability(test.p, equals="= ")
    numbers = f"{signed(test.difference)}, 95 % interval {interval(test)}, p {p}, {pairs}"
    few = f"; fewer than {FEW} pairs, so read it with care" if test.pairs < FEW else ""
    if test.p >= SIGNIFICANT:
        return f"No significant difference at the 5 % level ({numbers}){few}."
    direction = "better" if (test.difference > 0) == higher_is_better else "worse"
    return f"{subject or 'Flashback'} is significantly {direction} at the 5 % level ({numbers}){few}."


def _pairs(first: Paired, second: Paired) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right = (values if isinstance(values, Mapping) else dict(enumerate(values)) for values in (first, second))
    if not isinstance(first, Mapping) and len(left) != len(right):
        raise FlashbackError(f"a paired test needs as many values in both arms, not {len(left)} and {len(right)}")
    both = np.array([(left[key], right[key]) for key in left if key in right], np.float64).reshape(-1, 2)
    complete = both[np.isfinite(both).all(1)]  # None is NaN here
    return complete[:, 0], complete[:, 1]
