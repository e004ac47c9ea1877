"""LwF.MC and iCaRL: the loss they share, exemplars, and the nearest mean, against slow loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from flashback import FlashbackError, Trainer, build_host, evaluate
from flashback.batches import Batch
from flashback.hosts import Host
from flashback.hosts.prediction import features_of
from helpers import quick_host, tiny_benchmark


def after_tasks(name: str, tasks: int, **settings: Any) -> Host:
    """A host that has learned some tasks and has begun the next one."""
    memory = {"host__memory_size": 14} if name == "icarl" else {}
    host = quick_host(name, **{"training__epochs": 1, **memory, **settings})
    trainer = Trainer(host, host.benchmark)
    for task in host.benchmark.tasks[:tasks]:
        trainer.run_task(task)
    host.enter(host.benchmark.tasks[min(tasks, 2)])
    if tasks < 3:
        trainer.allocate(host.stages()[0])
    return host


def batch_of(host: Host, every: int = 4) -> Batch:
    stream = host.stream()
    rows = torch.arange(0, len(stream), every)
    raw = stream.images[rows]
    return Batch(host.views.plain(raw), stream.labels[rows], raw, stream.slots[rows])


# ---------------------------------------------------------------- the loss


def slow_loss(host: Host, batch: Batch, logits: Tensor, teacher: Tensor | None, columns: int) -> tuple[float, float]:
    """Old and new columns of the mean of one binary cross-entropy per sample and column."""
    old, new = 0.0, 0.0
    for row, label in enumerate(batch.y.tolist()):
        for column in range(columns):
            if column < host.task.classes.start:
                assert teacher is not None
                target = 1 / (1 + math.exp(-float(teacher[row, column])))
            else:
                target = float(label == column)
            answer = 1 / (1 + math.exp(-float(logits[row, column])))
            loss = -(target * math.log(answer) + (1 - target) * math.log(1 - answer)) / (len(batch) * columns)
            old, new = (old + loss, new) if column < host.task.classes.start else (old, new + loss)
    return old, new


@pytest.mark.parametrize(("name", "settings", "columns"), [
    ("lwf-mc", {}, 5),
    ("lwf-mc", {"host__columns": "all"}, 7),
    ("icarl", {}, 5),
    ("icarl", {"host__columns": "all"}, 7),
])  # fmt: skip
def test_the_loss_of_a_later_task(name: str, settings: dict[str, Any], columns: int) -> None:
    host = after_tasks(name, 1, **settings)
    with torch.no_grad():
        for parameter in host.net.parameters():
            parameter.mul_(1.1)  # so that the net is not its own teacher any more
    batch = batch_of(host)
    step = host.forward(batch)
    terms = host.losses(step)
    teacher = host.stable(batch.x).logits  # type: ignore[misc]
    old, new = slow_loss(host, batch, step.output.logits.detach(), teacher, columns)
    assert terms.keys() == {"task", "stability"}
    assert float(terms["stability"].detach()) == pytest.approx(old, rel=1e-4)
    assert float(terms["task"].detach()) == pytest.approx(new, rel=1e-4)


@pytest.mark.parametrize("name", ["lwf-mc", "icarl"])
def test_the_loss_of_the_first_task(name: str) -> None:
    host = quick_host(name, **({"host__memory_size": 14} if name == "icarl" else {}))
    batch = batch_of(host)
    step = host.forward(batch)
    terms = host.losses(step)
    assert terms.keys() == {"task"}
    _, new = slow_loss(host, batch, step.output.logits.detach(), None, 2)
    assert float(terms["task"].detach()) == pytest.approx(new, rel=1e-4)


def test_the_label_of_an_exemplar_enters_through_the_teacher_alone() -> None:
    host = after_tasks("icarl", 1)
    batch = batch_of(host, every=1)
    old = batch.y < host.task.classes.start
    assert 0 < old.sum() < len(batch)
    other = Batch(batch.x, torch.where(old, 1 - batch.y, batch.y), batch.raw, batch.slots)
    one, swapped = (host.losses(host.forward(b)) for b in (batch, other))
    assert torch.equal(one["task"], swapped["task"])
    assert torch.equal(one["stability"], swapped["stability"])


def test_icarl_sees_new_images_and_exemplars_once() -> None:
    host = after_tasks("icarl", 1)
    stream, new = host.stream(), len(host.task.train)
    assert len(stream) == new + 14
    assert (stream.slots[:new] == -1).all()
    assert stream.slots[new:].tolist() == list(range(14))
    assert torch.equal(stream.images[new:], host.memory.images[:14])  # type: ignore[union-attr]


@pytest.mark.parametrize("penalty", [0.0, 0.01])
def test_the_penalty_of_lwf_mc(penalty: float) -> None:
    host = after_tasks("lwf-mc", 1, host__penalty=penalty)
    terms = host.losses(host.forward(batch_of(host)))
    if not penalty:
        assert "penalty" not in terms
        return
    slow = sum(float(value) ** 2 for parameter in host.net.parameters() for value in parameter.detach().flatten())
    assert float(terms["penalty"].detach()) == pytest.approx(penalty * slow, rel=1e-4)


def test_the_stable_model_is_the_model_at_the_end_of_the_last_task() -> None:
    host = after_tasks("lwf-mc", 1)
    batch = batch_of(host)
    with torch.no_grad():
        before = host.net.eval()(batch.x).logits
        host.train()
        host.net(batch.x)  # moves the statistics of batch norm, not those of the copy
    assert torch.equal(host.stable(batch.x).logits, before)  # type: ignore[misc]


# ---------------------------------------------------------------- exemplars


def exemplars(host: Host) -> dict[int, list[bytes]]:
    """The exemplars of every class, in their stored order."""
    memory, found = host.memory, {}
    assert memory is not None
    for image, label in zip(memory.images[: memory.filled], memory.labels[: memory.filled].tolist(), strict=True):
        found.setdefault(label, []).append(image.numpy().tobytes())
    return found


def test_quotas_shrink_and_keep_the_head_of_the_herding_order() -> None:
    host = quick_host("icarl", host__memory_size=14, training__epochs=1)
    trainer, before = Trainer(host, host.benchmark), dict[int, list[bytes]]()
    for task, quota in zip(host.benchmark.tasks, (7, 2, 2), strict=True):
        trainer.run_task(task)
        now = exemplars(host)
        assert {label: len(images) for label, images in now.items()} == dict.fromkeys(range(task.seen.stop), quota)
        assert all(now[label] == before[label][:quota] for label in before)
        for label, images in now.items():
            own = {image.numpy().tobytes() for t in host.benchmark.tasks for image in t.train.x[t.train.y == label]}
            assert len(set(images)) == quota
            assert set(images) <= own
        before = now


@pytest.mark.parametrize("normalise", [False, True])
def test_exemplars_are_herded(normalise: bool) -> None:
    """Each pick brings the mean of the picks as near as it can to the mean of the class."""
    host = quick_host("icarl", host__memory_size=14, host__normalise=normalise, training__epochs=1)
    Trainer(host, host.benchmark).run_task(host.benchmark.tasks[0])
    chosen, train = exemplars(host), host.benchmark.tasks[0].train
    for label in (0, 1):
        images = train.x[train.y == label]
        features = host.embed(images, features_of).double()
        if normalise:
            features = features / features.norm(dim=1, keepdim=True)
        mean, picked = features.mean(dim=0), list[int]()
        for k in range(1, 8):
            free = [j for j in range(len(images)) if j not in picked]
            picked.append(min(free, key=lambda j: float((mean - features[[*picked, j]].sum(dim=0) / k).norm())))
        assert chosen[label] == [images[j].numpy().tobytes() for j in picked]


def test_a_number_per_class_never_shrinks() -> None:
    host = quick_host("icarl", host__memory_per_class=3, host__memory_size=None, training__epochs=1)
    Trainer(host, host.benchmark).run()
    assert {label: len(images) for label, images in exemplars(host).items()} == dict.fromkeys(range(7), 3)
    assert host.memory.capacity == 21  # type: ignore[union-attr]


def test_a_class_with_few_images_gives_all_of_them() -> None:
    host = quick_host("icarl", tiny_benchmark((2, 2), per_class=3), host__memory_size=40, training__epochs=1)
    Trainer(host, host.benchmark).run()
    assert {label: len(images) for label, images in exemplars(host).items()} == dict.fromkeys(range(4), 3)


@pytest.mark.parametrize(
    ("size", "sentence"), [(6, "less than one exemplar for each of the 7 classes"), (0, "at least")]
)
def test_a_memory_too_small_is_refused(size: int, sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        quick_host("icarl", host__memory_size=size)


# ---------------------------------------------------------------- the nearest mean


def slow_nearest_mean(host: Host, images: dict[int, Tensor], test: Tensor, normalise: bool) -> list[list[float]]:
    """Minus the squared distance of each test image to the mean of each class."""

    def feature(image: Tensor) -> Tensor:
        found = host.embed(image[None], features_of)[0].double()
        return found / found.norm() if normalise else found

    means = []
    for label in sorted(images):
        mean = torch.stack([feature(image) for image in images[label]]).mean(dim=0)
        means.append(mean / mean.norm() if normalise else mean)
    return [[-float((feature(image) - mean).square().sum()) for mean in means] for image in test]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("midway", [False, True], ids=["after the task", "in the middle of it"])
def test_nearest_mean_of_exemplars(normalise: bool, midway: bool) -> None:
    """In the middle of a task all images of a new class stand for it; it has no exemplars yet."""
    host = after_tasks("icarl", 1 if midway else 2, host__normalise=normalise)
    if not midway:
        host.enter(host.benchmark.tasks[1])
    memory, train = host.memory, host.task.train
    assert memory is not None
    images, labels = memory.images[: memory.filled], memory.labels[: memory.filled]
    standing = {c: images[labels == c] for c in host.task.before}
    standing |= {c: train.x[train.y == c] if midway else images[labels == c] for c in host.task.classes}
    test = host.task.test.x[::3]
    host.eval()
    with torch.no_grad():
        scores = host.classifiers()["nearest-mean"](host.views.plain(test))
    expected = torch.tensor(slow_nearest_mean(host, standing, test, normalise), dtype=torch.float64)
    torch.testing.assert_close(scores[:, :5].double(), expected, rtol=1e-4, atol=1e-6)


def test_both_classifiers_are_reported() -> None:
    host = after_tasks("icarl", 1)
    assert list(evaluate(host, host.benchmark.tasks[:2])) == ["nearest-mean", "linear"]


def test_close_means_are_told_apart_far_from_the_origin() -> None:
    """Rounding of large squares must not decide."""
    host = quick_host("icarl", host__memory_size=14)
    generator = torch.Generator().manual_seed(0)
    means = 3000 + 0.01 * torch.randn(7, host.net.backbone.width, generator=generator)  # type: ignore[union-attr]
    host.__dict__["exemplar_features"] = lambda: (means, torch.arange(7))
    host.net.forward = lambda x: type("", (), {"features": means[x.long().flatten()] + 1e-3})()  # type: ignore[method-assign]
    scores = host.classifiers()["nearest-mean"](torch.arange(7.0))
    assert scores.argmax(dim=1).tolist() == list(range(7))


@pytest.mark.parametrize("training", [True, False])
def test_embedding_looks_at_plain_images_in_evaluation_mode(training: bool) -> None:
    host = quick_host("lwf-mc", training__evaluation_batch=5)
    host.train(training)
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    images = host.task.train.x[:12]
    found = host.embed(images, features_of)
    assert host.net.training is training
    assert not found.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.state_dict().items())
    one_by_one = [host.net.eval()(host.views.plain(image[None])).features[0].detach() for image in images]
    torch.testing.assert_close(found, torch.stack(one_by_one))


def test_embedding_of_another_view() -> None:
    host = quick_host("lwf-mc", training__evaluation_batch=5)
    images = host.task.train.x[:12]
    found = host.embed(images, features_of, view=lambda raw: -host.views.plain(raw))
    expected = host.net.eval()(-host.views.plain(images)).features.detach()
    torch.testing.assert_close(found, expected)
    assert not torch.allclose(found, host.embed(images, features_of))


def test_unknown_settings_of_the_columns_are_refused() -> None:
    with pytest.raises(FlashbackError, match=r"host.columns is one of seen, all"):
        quick_host("icarl", host__columns="old")


def test_the_net_follows_the_size_of_the_images() -> None:
    small = build_host(quick_host("lwf-mc").config, tiny_benchmark((2,), shape=(1, 28, 28)), "cpu")
    large = build_host(quick_host("lwf-mc").config, tiny_benchmark((2,), per_class=1, shape=(3, 32, 32)), "cpu")
    assert small.net.backbone.width == 64  # type: ignore[union-attr]
    assert large.net.backbone.width == 512  # type: ignore[union-attr]


def test_exemplars_by_class_have_room_for_every_class_there_will_be() -> None:
    host = quick_host("icarl", host__memory_per_class=400)  # with host.memory_size as it is, which says nothing then
    assert host.memory is not None
    assert host.memory.capacity == 400 * host.benchmark.classes > host.settings.memory_size
