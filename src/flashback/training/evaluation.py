"""Accuracy in both settings from one forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from flashback.benchmarks import Benchmark, Task
from flashback.errors import require
from flashback.hosts.base import Classifier, Host
from flashback.nets import evaluating
from flashback.plugin import Flashback
from flashback.records.terms import SETTINGS

Accuracies = dict[str, list[float]]  # by setting: percent for each task evaluated


@contextmanager
def evaluation_mode(host: Host) -> Iterator[None]:
    """Nothing is compiled here: batches of evaluation have other sizes than those of training."""
    with evaluating(host), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        yield


def host_of(method: Host | Flashback, what: str) -> Host:
    require(
        isinstance(method, Host | Flashback),
        f"{what} takes a host, bare or wrapped by fb.Flashback, not {type(method).__name__}; build one with "
        "fb.build_host",
    )
    return method.host


def evaluate(method: Host | Flashback, tasks: Benchmark | Sequence[Task]) -> dict[str, Accuracies]:
    """Percent correct on each task of a benchmark, or on some of them, for each of the host's classifiers.

    Class-incremental: over the columns of all classes learned so far, and of the tasks given. Task-incremental: over
    the own columns of the sample's task. Columns outside are never predicted.
    """
    host = host_of(method, "fb.evaluate")
    tasks = tasks.tasks if isinstance(tasks, Benchmark) else tasks
    require(
        isinstance(tasks, Sequence) and len(tasks) > 0 and all(isinstance(task, Task) for task in tasks),
        "fb.evaluate takes a benchmark or a list of its tasks",
    )
    own, given = host.benchmark.image_shape, tuple(tasks[0].test.x.shape[1:])
    require(
        own == given,
        f"this host was built for images of shape {list(own)}, and these are {list(given)}; evaluate it on such images",
    )
    seen = max(task.seen.stop for task in (host.task, *tasks))
    with evaluation_mode(host):
        return {name: _accuracies(host, classifier, tasks, seen) for name, classifier in host.classifiers().items()}


def evaluate_ahead(host: Host, tasks: Sequence[Task]) -> dict[str, Accuracies] | None:
    """Accuracy on tasks not learned yet, each over the columns up to its own; None without columns for them."""
    if not host.scores_unseen:
        return None
    with evaluation_mode(host):
        result: dict[str, Accuracies] = {}
        for name, classifier in host.classifiers().items():
            rows = [_accuracies(host, classifier, [task], task.seen.stop) for task in tasks]
            result[name] = {setting: [row[setting][0] for row in rows] for setting in SETTINGS}
        return result


def _accuracies(host: Host, classifier: Classifier, tasks: Sequence[Task], seen: int) -> Accuracies:
    correct = torch.stack([_count_correct(host, classifier, task, seen) for task in tasks]).cpu().tolist()
    totals = [len(task.test) for task in tasks]
    return {
        setting: [100.0 * row[k] / total for row, total in zip(correct, totals, strict=True)]
        for k, setting in enumerate(SETTINGS)
    }


def _count_correct(host: Host, classifier: Classifier, task: Task, seen: int) -> Tensor:
    counts = torch.zeros(2, dtype=torch.int64, device=host.device)
    batch = host.config.training.evaluation_batch
    for images, labels in zip(torch.split(task.test.x, batch), torch.split(task.test.y, batch), strict=True):
        labels = labels.to(host.device)
        scores = classifier(host.views.plain(images.to(host.device)))
        counts[0] += (scores[:, :seen].argmax(dim=1) == labels).sum()
        counts[1] += (scores[:, task.new].argmax(dim=1) + task.new.start == labels).sum()
    return counts
