"""Accuracy in both settings, and confusion counts, from one forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from flashback.benchmarks import Benchmark, Task
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.prediction import Classifier
from flashback.nets import evaluating
from flashback.nets.growing import pad_classes
from flashback.plugin import Flashback
from flashback.records.terms import SETTINGS

Accuracies = dict[str, list[float]]  # by setting: percent correct of each task evaluated
Confusion = list[list[int]]  # counts by true column and predicted column


@contextmanager
def evaluation_mode(host: Host) -> Iterator[None]:
    """Evaluate without gradients, and without compilation, whose shapes are those of training batches."""
    with evaluating(host), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        yield


def host_of(method: Host | Flashback, function: str) -> Host:
    require(
        isinstance(method, Host | Flashback),
        f"{function} takes a host or fb.Flashback(host), not {type(method).__name__}; build one with fb.build_host",
    )
    return method.host


def evaluate(method: Host | Flashback, tasks: Benchmark | Sequence[Task]) -> dict[str, Accuracies]:
    """Measure the accuracy of a host on the test images of tasks, with each of its classifiers.

    Class-incremental accuracy chooses among the columns of all classes learned so far and of the tasks given;
    task-incremental accuracy among the columns of the image's own task. A class that has no column yet is never chosen.

    Args:
        method: A host, or `Flashback(host)`.
        tasks: A benchmark, or a list of its tasks.

    Returns:
        Percent correct of each task, by classifier and setting: `result["linear"]["class_incremental"][task]`.

    Raises:
        FlashbackError: If the images have another shape than those the host was built for.
    """
    host = host_of(method, "fb.evaluate")
    tasks = tasks.tasks if isinstance(tasks, Benchmark) else tasks
    require(
        isinstance(tasks, Sequence) and len(tasks) > 0 and all(isinstance(task, Task) for task in tasks),
        "fb.evaluate takes a benchmark or a list of its tasks",
    )
    expected, actual = host.benchmark.image_shape, tuple(tasks[0].test.x.shape[1:])
    require(
        expected == actual,
        f"this host was built for images of shape {list(expected)}, not {list(actual)}; evaluate it on such images",
    )
    return {name: accuracies for name, (accuracies, _) in measure(host, tasks).items()}


def measure(host: Host, tasks: Sequence[Task]) -> dict[str, tuple[Accuracies, Tensor]]:
    """The accuracies and the predicted class-incremental columns of the test images, by classifier."""
    seen = max(task.seen.stop for task in (host.task, *tasks))
    with evaluation_mode(host):
        return {name: _measure(host, classifier, tasks, seen) for name, classifier in host.classifiers().items()}


def evaluate_unlearned(host: Host, tasks: Sequence[Task]) -> dict[str, Accuracies]:
    """Accuracy on tasks not learned yet, each over the columns up to its own; empty if they have no columns."""
    result: dict[str, Accuracies] = {}
    if host.scores_unseen:
        with evaluation_mode(host):
            for name, classifier in host.classifiers().items():
                rows = [_measure(host, classifier, [task], task.seen.stop)[0] for task in tasks]
                result[name] = {setting: [row[setting][0] for row in rows] for setting in SETTINGS}
    return result


def _measure(host: Host, classifier: Classifier, tasks: Sequence[Task], seen: int) -> tuple[Accuracies, Tensor]:
    counts, predicted = zip(*(_predict_task(host, classifier, task, seen) for task in tasks), strict=True)
    correct = torch.stack(counts, dim=1).tolist()  # by setting, of each task
    accuracies = {
        setting: [100.0 * count / len(task.test) for count, task in zip(row, tasks, strict=True)]
        for setting, row in zip(SETTINGS, correct, strict=True)
    }
    return accuracies, torch.cat(predicted)


def _predict_task(host: Host, classifier: Classifier, task: Task, seen: int) -> tuple[Tensor, Tensor]:
    """Correct predictions in both settings, and the predicted class-incremental column of every image."""
    counts = torch.zeros(2, dtype=torch.int64, device=host.device)
    batch, predicted = host.config.training.evaluation_batch, []
    columns = torch.tensor(task.columns, device=host.device)
    for images, labels in zip(torch.split(task.test.x, batch), torch.split(task.test.y, batch), strict=True):
        labels = labels.to(host.device)
        scores = classifier(host.views.plain(images.to(host.device)))
        if scores.shape[1] < seen:
            scores = pad_classes(scores, seen)  # of tasks that the host has not entered yet
        predicted.append(scores[:, :seen].argmax(dim=1))
        counts[0] += (predicted[-1] == labels).sum()
        counts[1] += (columns[scores[:, columns].argmax(dim=1)] == labels).sum()
    return counts, torch.cat(predicted)


def count_confusion(tasks: Sequence[Task], predicted: Tensor) -> Confusion:
    """How many images of each true column were predicted as each column, over all columns of these tasks."""
    classes = tasks[-1].seen.stop
    truth = torch.cat([task.test.y for task in tasks]).to(predicted.device)
    counts = torch.bincount(truth * classes + predicted, minlength=classes * classes)
    confusion: Confusion = counts.view(classes, classes).tolist()
    return confusion
