"""What the charts show: pure functions of the records of one arm, thinned out to what an eye can tell apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashback.metrics import average_accuracies
from flashback.records import RunRecord
from flashback.reports.reading import Epoch

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Band:
    """A curve over tasks: the mean over seeds, and the lowest and highest of them."""

    mean: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Segment:
    """A stage of a task on the axis of all epochs of a run."""

    task: int
    stage: str
    start: int
    stop: int


@dataclass(frozen=True)
class Losses:
    """Loss terms over the epochs of a run, the mean over seeds; NaN where a term is not there."""

    segments: list[Segment]
    x: Array
    terms: dict[str, Array]


def accuracy_band(records: Sequence[RunRecord], setting: str) -> Band:
    """Average accuracy after each task."""
    curves = np.array([average_accuracies(record.results[setting]["matrix"]) for record in records])
    return Band(curves.mean(0), curves.min(0), curves.max(0))


def mean_matrix(records: Sequence[RunRecord], setting: str) -> Array:
    """The mean accuracy matrix, NaN above the diagonal."""
    matrices = [square(record.results[setting]["matrix"]) for record in records]
    return np.asarray(np.mean(matrices, axis=0))


def square(rows: Sequence[Sequence[float]]) -> Array:
    """A matrix of results.json with as many columns as rows, NaN above the diagonal."""
    matrix = np.full((len(rows), len(rows)), np.nan)
    for k, row in enumerate(rows):
        matrix[k, : k + 1] = row
    return matrix


def balance(records: Sequence[RunRecord], setting: str) -> tuple[Array, Array]:
    """Plasticity and stability of each task but the last: its accuracy when new, and how far it fell from its best.

    The mean over tasks of the second is `metrics.forgetting`.
    """
    learned, forgotten = [], []
    for record in records:
        matrix = square(record.results[setting]["matrix"])
        earlier = range(len(matrix) - 1)
        learned.append([matrix[j, j] for j in earlier])
        forgotten.append([matrix[j:-1, j].max() - matrix[-1, j] for j in earlier])
    return np.mean(learned, axis=0), np.mean(forgotten, axis=0)


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
    segments: list[Segment] = []
    for (task, stage), length in spans.items():
        start = segments[-1].stop if segments else 0
        segments.append(Segment(task, stage, start, start + length))
    names = list(dict.fromkeys(name for epochs in values.values() for epoch in epochs for name in epoch.losses))
    x, rows = [], []
    for segment in segments:
        own = sorted(number for task, stage, number in values if (task, stage) == (segment.task, segment.stage))
        share = max(1, round(points * (segment.stop - segment.start) / segments[-1].stop))
        for bucket in np.array_split(own, min(share, len(own))):
            epochs = [epoch for number in bucket for epoch in values[segment.task, segment.stage, int(number)]]
            x.append(segment.start + float(bucket.mean()) + 1)  # a loss is known when its epoch ends
            rows.append([mean_of(name, epochs) for name in names])
    table = np.array(rows)
    return Losses(segments, np.array(x), {name: table[:, k] for k, name in enumerate(names)})


def mean_of(name: str, epochs: Sequence[Epoch]) -> float:
    known = [epoch.losses[name] for epoch in epochs if name in epoch.losses]
    return float(np.mean(known)) if known else float("nan")


def thin(count: int, most: int) -> list[int]:
    """At most so many of `count` indices, evenly spread, the first and the last among them."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, most))})
