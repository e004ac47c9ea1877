"""The numbers of the charts: pure functions of the runs of one method."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flashback.metrics.accuracy import average_accuracies
from flashback.results import Comparison, Epoch, Method, Run

Array = NDArray[np.float64]


class Segment(NamedTuple):
    """A stage of a task on the axis of all epochs of a run."""

    task: int
    stage: str
    start: int
    stop: int


class Losses(NamedTuple):
    """Loss terms over the epochs of a run, mean over seeds; NaN where a term is absent."""

    segments: list[Segment]
    x: Array
    terms: dict[str, Array]


def accuracy_band(runs: Iterable[Run], setting: str) -> dict[str, Array]:
    """Average accuracy after each task: the mean over seeds, with the lowest and highest seed."""
    curves = np.array([average_accuracies(run.matrix(setting)) for run in runs])
    return {"mean": curves.mean(0), "low": curves.min(0), "high": curves.max(0)}


def mean_matrix(runs: Iterable[Run], setting: str) -> Array:
    """The mean accuracy matrix, NaN above the diagonal."""
    return np.asarray(np.mean([square(run.matrix(setting)) for run in runs], axis=0))


def mean_difference(pairing: Comparison, setting: str) -> Array | None:
    """The mean accuracy matrix with flashback minus that of the host, over the seeds of both; None if there are none.

    The mean of row k is the difference in average accuracy after task k.
    """
    seeds = pairing.common_seeds
    if not seeds:
        return None
    left, right = (mean_matrix([side.runs[seed] for seed in seeds], setting) for side in (pairing.left, pairing.right))
    return np.asarray(right - left)


def square(rows: Sequence[Sequence[float]]) -> Array:
    """Fill up a matrix of results.json: as many columns as rows, NaN above the diagonal.

    Args:
        rows: Row k has an entry for each of the first k + 1 tasks.
    """
    return np.array([[*row, *[np.nan] * (len(rows) - len(row))] for row in rows])


def balance(runs: Iterable[Run], setting: str) -> tuple[Array, Array]:
    """For each task but the last: its accuracy when new, and how far it fell below its best.

    The mean of the second is `metrics.forgetting`.
    """
    learned, forgotten = [], []
    for run in runs:
        matrix = square(run.matrix(setting))
        earlier = range(len(matrix) - 1)
        learned.append([matrix[j, j] for j in earlier])
        forgotten.append([matrix[j:-1, j].max() - matrix[-1, j] for j in earlier])
    return np.mean(learned, axis=0), np.mean(forgotten, axis=0)


def mean_confusion(runs: Iterable[Run]) -> tuple[list[str], Array] | None:
    """Class names and, in percent of each true class, the mean confusion matrix; None unless all runs recorded one.

    Classes of runs with other class orders are brought into the order of the first run.
    """
    matrices, names = [], list[str]()
    for run in runs:
        counts = run.confusion()
        if not counts:
            return None
        matrix, classes = np.array(counts, dtype=np.float64), run.class_names[: len(counts)]
        names = names or classes
        if len(classes) != len(counts) or sorted(classes) != sorted(names) or len(set(classes)) < len(classes):
            return None
        order = [classes.index(name) for name in names]
        totals = matrix.sum(axis=1, keepdims=True)
        matrices.append((100 * matrix / np.where(totals > 0, totals, np.nan))[np.ix_(order, order)])
    return names, np.asarray(np.mean(matrices, axis=0))


def aligned_confusions(methods: Sequence[Method]) -> tuple[list[str], dict[str, Array]]:
    """Class names, and by arm the mean confusion matrix of each method that has one, all in the order of the first.

    NaN where a method has not learned a class.
    """
    known = {m.arm: confusion for m in methods if (confusion := mean_confusion(m.runs.values())) is not None}
    names = list(dict.fromkeys(name for classes, _ in known.values() for name in classes))
    aligned = {arm: np.full((len(names), len(names)), np.nan) for arm in known}
    for arm, (classes, matrix) in known.items():
        places = [names.index(name) for name in classes]
        aligned[arm][np.ix_(places, places)] = matrix
    return names, aligned


def loss_curves(runs: Sequence[Sequence[Epoch]], points: int) -> Losses | None:
    """The losses of several runs of one configuration, averaged and thinned out to about `points` points."""
    spans: dict[tuple[int, str], int] = {}
    values: dict[tuple[int, str, int], list[Epoch]] = {}
    for epoch in (epoch for epochs in runs for epoch in epochs):
        key = (epoch.task, epoch.stage)
        spans[key] = max(spans.get(key, 0), epoch.epochs, epoch.number + 1)
        values.setdefault((*key, epoch.number), []).append(epoch)
    if not values:
        return None
    ends = list(accumulate(spans.values()))
    segments = [Segment(*key, stop - spans[key], stop) for key, stop in zip(spans, ends, strict=True)]
    names = list(dict.fromkeys(name for epochs in values.values() for epoch in epochs for name in epoch.losses))
    x, rows = [], []
    for segment in segments:
        numbers = sorted(number for task, stage, number in values if (task, stage) == (segment.task, segment.stage))
        share = max(1, round(points * (segment.stop - segment.start) / segments[-1].stop))
        for bucket in np.array_split(numbers, min(share, len(numbers))):
            epochs = [epoch for number in bucket for epoch in values[segment.task, segment.stage, int(number)]]
            x.append(segment.start + float(bucket.mean()) + 1)  # a loss is known when its epoch ends
            rows.append([_mean_loss(name, epochs) for name in names])
    table = np.array(rows)
    return Losses(segments, np.array(x), {name: table[:, k] for k, name in enumerate(names)})


def _mean_loss(name: str, epochs: Sequence[Epoch]) -> float:
    known = [epoch.losses[name] for epoch in epochs if name in epoch.losses]
    return float(np.mean(known)) if known else float("nan")


def thin(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices, evenly spread, with the first and the last."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))})
