"""Accuracy in both settings, against one image at a time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from flashback import Host, evaluate
from flashback.benchmarks import Task
from flashback.training.evaluation import evaluate_unlearned
from helpers import quick_host, tiny_benchmark


class Judge:
    """Scores every class by a fixed linear map of the pixels, and always likes the last classes best."""

    def __init__(self, host: Host, lure: float) -> None:
        pixels, classes = host.benchmark.image_shape[1] * host.benchmark.image_shape[2], host.benchmark.classes
        self.weights = torch.randn(pixels, classes, generator=torch.Generator().manual_seed(1))
        self.lure = lure * torch.arange(classes)
        self.sizes: list[int] = []

    def __call__(self, x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.sizes.append(len(x))
        return x.flatten(1) @ self.weights + self.lure


def judged_host(lure: float, batch: int = 5) -> tuple[Host, Judge]:
    host = quick_host("finetune", tiny_benchmark((2, 3, 2), test_per_class=9), training__evaluation_batch=batch)
    judge = Judge(host, lure)
    host.__dict__["classifiers"] = lambda: {"judge": judge, "other": lambda x: -judge(x)}
    return host, judge


def slow_accuracy(host: Host, judge: Judge, task: Task, columns: Sequence[int], sign: float = 1.0) -> float:
    """Percent of the test images whose best column, of those allowed, is their own."""
    right = 0
    for image, label in zip(task.test.x, task.test.y, strict=True):
        x = (image.float() / 255 - torch.tensor(host.benchmark.mean)[:, None, None]) / host.benchmark.std[0]
        with torch.no_grad():
            scores = sign * judge(x[None])[0]
        best = max(columns, key=lambda column: float(scores[column]))
        right += best == int(label)
    return 100 * right / len(task.test)


@pytest.mark.parametrize("positions", [[0], [2, 0], [1]])
def test_some_tasks_are_still_told_among_all_classes_learned(positions: list[int]) -> None:
    host, judge = judged_host(10.0)
    host.task = host.benchmark.tasks[-1]
    tasks = [host.benchmark.tasks[k] for k in positions]
    accuracies = evaluate(host, tasks)["judge"]["class_incremental"]
    assert accuracies == [slow_accuracy(host, judge, task, range(host.benchmark.classes)) for task in tasks]
    whole = evaluate(host, host.benchmark)["judge"]["class_incremental"]
    assert accuracies == [whole[k] for k in positions]


@pytest.mark.parametrize("lure", [0.0, 10.0, 1e6])
@pytest.mark.parametrize("upto", [0, 1, 2])
def test_accuracy_counts_seen_columns_alone(upto: int, lure: float) -> None:
    host, judge = judged_host(lure)
    tasks = host.benchmark.tasks[: upto + 1]
    seen = range(tasks[-1].classes.stop)
    result = evaluate(host, tasks)
    for name, sign in (("judge", 1.0), ("other", -1.0)):
        assert result[name]["class_incremental"] == [slow_accuracy(host, judge, t, seen, sign) for t in tasks]
        assert result[name]["task_incremental"] == [slow_accuracy(host, judge, t, t.classes, sign) for t in tasks]


def test_the_slow_loop_sees_a_difference() -> None:
    """The lure of unseen columns is real: over all columns the answer would be another one."""
    host, judge = judged_host(1e6)
    first = host.benchmark.tasks[0]
    assert slow_accuracy(host, judge, first, range(7)) == 0.0
    assert evaluate(host, [first])["judge"]["class_incremental"] == [50.0]


def test_tasks_ahead_are_judged_over_the_columns_up_to_their_own() -> None:
    host, judge = judged_host(0.0)
    result = evaluate_unlearned(host, host.benchmark.tasks)
    tasks = host.benchmark.tasks
    expected = [slow_accuracy(host, judge, t, range(t.seen.stop)) for t in tasks]
    assert result["judge"]["class_incremental"] == expected
    assert result["judge"]["task_incremental"] == [slow_accuracy(host, judge, t, t.classes) for t in tasks]


def test_hosts_without_columns_for_later_classes_are_not_asked_about_them() -> None:
    host = quick_host("icarl", host__memory_size=14)
    assert evaluate_unlearned(host, host.benchmark.tasks) == {}


def test_test_sets_are_taken_in_batches() -> None:
    host, judge = judged_host(0.0, batch=5)
    evaluate(host, host.benchmark.tasks[:1])
    assert judge.sizes == [5, 5, 5, 3] * 2


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_mode_as_it_was(training: bool) -> None:
    host = quick_host("finetune")
    host.train(training)
    modes: list[bool] = []
    host.__dict__["classifiers"] = lambda: {"linear": lambda x: modes.append(host.net.training) or host.scores(x)}
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    evaluate(host, host.benchmark.tasks)
    assert set(modes) == {False}
    assert host.training is host.net.training is training
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.state_dict().items())


def test_the_mode_comes_back_after_an_error() -> None:
    host = quick_host("finetune")

    def broken(x: Tensor) -> Tensor:
        raise RuntimeError

    host.__dict__["classifiers"] = lambda: {"linear": broken}
    with pytest.raises(RuntimeError):
        evaluate(host, host.benchmark.tasks)
    assert host.training
