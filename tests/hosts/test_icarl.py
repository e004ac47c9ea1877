"""iCaRL: its loss against slow loops, the images it sees, and the nearest mean of exemplars."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from later_tasks import batch_of, check_binary_losses, in_later_task
from torch import Tensor

from flashback import FlashbackError, evaluate
from flashback.batches import Batch
from flashback.hosts import Host
from flashback.hosts.prediction import features_of
from helpers import quick_host, tiny_benchmark


def begun(task: int = 1, **settings: Any) -> Any:
    """iCaRL at the beginning of a task."""
    return in_later_task("icarl", task, small={"host__memory_size": 14, "training__epochs": 1}, **settings).host


@pytest.mark.parametrize(("columns", "trained"), [("seen", 5), ("all", 7)])
def test_the_loss_of_a_later_task(columns: str, trained: int) -> None:
    check_binary_losses(begun(host__columns=columns), trained)


def test_the_loss_of_the_first_task() -> None:
    check_binary_losses(begun(task=0), 2)


def test_the_label_of_an_exemplar_enters_through_the_teacher_alone() -> None:
    host = begun()
    batch = batch_of(host, host.stages()[0], every=1)
    old = batch.y < host.task.classes.start
    assert 0 < old.sum() < len(batch)
    other = Batch(batch.x, torch.where(old, 1 - batch.y, batch.y), batch.raw, batch.slots)
    one, swapped = (host.losses(host.forward(b)) for b in (batch, other))
    assert torch.equal(one["task"], swapped["task"])
    assert torch.equal(one["stability"], swapped["stability"])


def test_icarl_sees_new_images_and_exemplars_once() -> None:
    host = begun()
    stream, new = host.stream(), len(host.task.train)
    assert len(stream) == new + 14
    assert (stream.slots[:new] == -1).all()
    assert stream.slots[new:].tolist() == list(range(14))
    assert torch.equal(stream.images[new:], host.memory.images[:14])


def slow_nearest_mean(host: Host, images: dict[int, Tensor], test: Tensor, normalise: bool) -> list[list[float]]:
    """Minus the squared distance of each test image to the mean of each class."""

    def feature(image: Tensor) -> Tensor:
        vector = host.embed(image[None], features_of)[0].double()
        return vector / vector.norm() if normalise else vector

    means = []
    for label in sorted(images):
        mean = torch.stack([feature(image) for image in images[label]]).mean(dim=0)
        means.append(mean / mean.norm() if normalise else mean)
    return [[-float((feature(image) - mean).square().sum()) for mean in means] for image in test]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("midway", [False, True], ids=["after the task", "in the middle of it"])
def test_nearest_mean_of_exemplars(normalise: bool, midway: bool) -> None:
    """In the middle of a task all images of a new class stand for it; it has no exemplars yet."""
    host = begun(1 if midway else 2, host__normalise=normalise)
    if not midway:
        host.task = host.benchmark.tasks[1]
    memory, train = host.memory, host.task.train
    assert memory is not None
    images, labels = memory.images[: memory.filled], memory.labels[: memory.filled]
    current = {c: images[labels == c] for c in host.task.before}
    current |= {c: train.x[train.y == c] if midway else images[labels == c] for c in host.task.classes}
    test = host.task.test.x[::3]
    host.eval()
    with torch.no_grad():
        scores = host.classifiers()["nearest-mean"](host.views.plain(test))
    expected = torch.tensor(slow_nearest_mean(host, current, test, normalise), dtype=torch.float64)
    torch.testing.assert_close(scores[:, :5].double(), expected, rtol=1e-4, atol=1e-6)


def test_both_classifiers_are_reported() -> None:
    host = begun()
    assert list(evaluate(host, host.benchmark.tasks[:2])) == ["nearest-mean", "linear"]


def test_close_means_are_told_apart_far_from_the_origin() -> None:
    """Rounding of large squares must not decide."""
    host = quick_host("icarl", tiny_benchmark((7,)), host__memory_size=14)
    generator = torch.Generator().manual_seed(0)
    means = 3000 + 0.01 * torch.randn(7, host.net.backbone.width, generator=generator)
    host.__dict__["exemplar_features"] = lambda: (means, torch.arange(7))
    host.net.forward = lambda x: type("", (), {"features": means[x.long().flatten()] + 1e-3})()  # type: ignore[method-assign]
    scores = host.classifiers()["nearest-mean"](torch.arange(7.0))
    assert scores.argmax(dim=1).tolist() == list(range(7))


def test_unknown_settings_of_the_columns_are_refused() -> None:
    with pytest.raises(FlashbackError, match=r"host.columns must be one of seen, all"):
        quick_host("icarl", host__columns="old")
