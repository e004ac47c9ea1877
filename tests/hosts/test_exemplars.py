"""Exemplars: quotas, herding against a slow loop, and how many there is room for."""

from __future__ import annotations

import pytest

from flashback import FlashbackError, Trainer
from flashback.hosts import Host
from flashback.hosts.prediction import features_of
from helpers import quick_host, tiny_benchmark


def exemplars(host: Host) -> dict[int, list[bytes]]:
    """The exemplars of every class, in their stored order."""
    memory, images = host.memory, {}
    assert memory is not None
    for image, label in zip(memory.images[: memory.filled], memory.labels[: memory.filled].tolist(), strict=True):
        images.setdefault(label, []).append(image.numpy().tobytes())
    return images


def test_quotas_shrink_and_keep_the_head_of_the_herding_order() -> None:
    host = quick_host("icarl", host__memory_size=14, training__epochs=1)
    trainer, before = Trainer(host, host.benchmark), dict[int, list[bytes]]()
    for task, quota in zip(host.benchmark.tasks, (7, 2, 2), strict=True):
        trainer.run_task(task)
        now = exemplars(host)
        assert {label: len(images) for label, images in now.items()} == dict.fromkeys(range(task.seen.stop), quota)
        assert all(now[label] == before[label][:quota] for label in before)
        for label, images in now.items():
            pictures = {
                image.numpy().tobytes() for t in host.benchmark.tasks for image in t.train.x[t.train.y == label]
            }
            assert len(set(images)) == quota
            assert set(images) <= pictures
        before = now


@pytest.mark.parametrize("normalise", [False, True])
def test_exemplars_are_herded(normalise: bool) -> None:
    """Each pick brings the mean of the picks as near as it can to the mean of the class."""
    host = quick_host("icarl", host__memory_size=14, host__normalise=normalise, training__epochs=1)
    Trainer(host, host.benchmark).run_task(host.benchmark.tasks[0])
    stored, train = exemplars(host), host.benchmark.tasks[0].train
    for label in (0, 1):
        images = train.x[train.y == label]
        features = host.embed(images, features_of).double()
        if normalise:
            features = features / features.norm(dim=1, keepdim=True)
        mean, picked = features.mean(dim=0), list[int]()
        for k in range(1, 8):
            free = [j for j in range(len(images)) if j not in picked]
            picked.append(min(free, key=lambda j: float((mean - features[[*picked, j]].sum(dim=0) / k).norm())))
        assert stored[label] == [images[j].numpy().tobytes() for j in picked]


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


def test_exemplars_by_class_have_room_for_every_class_so_far() -> None:
    host = quick_host("icarl", host__memory_per_class=400)  # with host.memory_size as it is, which says nothing then
    assert host.memory is not None
    for task, classes in zip(host.benchmark.tasks, (2, 5, 7), strict=True):
        host.enter(task)
        assert host.memory.capacity == 400 * classes
