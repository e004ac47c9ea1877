"""SimpleCIL: the nearest class mean by the cosine, against loops over all images."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flashback as fb
from helpers import quick_flashback, quick_host, tiny_benchmark


@pytest.mark.parametrize("batch", [500, 5])
def test_an_image_goes_to_the_class_mean_with_the_smallest_angle(batch: int) -> None:
    benchmark = tiny_benchmark()
    host = quick_host("simplecil", benchmark, training__evaluation_batch=batch)
    fb.train(host)
    features, labels = [], []
    for task in benchmark.tasks:
        features.append(host.features(task.train).double().numpy())
        labels.append(task.train.y.numpy())
    all_features, all_labels = np.concatenate(features), np.concatenate(labels)
    for task in benchmark.tasks:
        for feature, predicted in zip(host.features(task.test).double().numpy(), host.predict(task.test), strict=True):
            cosines = []
            for label in range(7):
                mean = all_features[all_labels == label].mean(axis=0)
                cosines.append(feature @ mean / (np.linalg.norm(feature) * np.linalg.norm(mean)))
            assert int(predicted) == int(np.argmax(cosines))


def test_nothing_is_trained_and_no_step_is_taken() -> None:
    host = quick_host("simplecil")
    before = {name: tensor.clone() for name, tensor in host.net.backbone.state_dict().items()}
    result = fb.train(host)
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.net.backbone.state_dict().items())
    assert [(entry["steps"], entry["images"]) for entry in result.history.budget] == [(0, 0)] * 3


@pytest.mark.parametrize("name", ["simplecil", "ranpac"])
def test_columns_come_with_the_classes(name: str) -> None:
    host = quick_host(name, host__net="smallcnn")
    widths = []
    for task in host.benchmark.tasks:
        widths.append(len(host.net.head.sums))
        host.enter(task)
        for stage in host.stages():
            stage.allocate()
            stage.end()
    assert widths == [2, 2, 5]
    assert len(host.net.head.sums) == 7


@pytest.mark.parametrize("name", ["simplecil", "ranpac"])
def test_known_classes_can_be_learned_again(name: str) -> None:
    """Half of the images of a task and then the other half are the whole task."""
    settings = {"host__ridge": 1.0, "host__projection": 30} if name == "ranpac" else {}
    whole, halves = (quick_host(name, tiny_benchmark((4,)), **settings) for _ in range(2))
    images = whole.task.train
    for host, parts in ((whole, [slice(None)]), (halves, [slice(0, None, 2), slice(1, None, 2)])):
        for part in parts:
            task = host.benchmark.tasks[0]
            host.task = fb.benchmarks.Task(
                0, task.classes, fb.benchmarks.Images(images.x[part], images.y[part]), task.test
            )
            host.allocate()
            host.end()
    for key, tensor in whole.state_dict().items():
        torch.testing.assert_close(halves.state_dict()[key], tensor)


@pytest.mark.parametrize("name", ["simplecil", "ranpac"])
def test_flashback_is_refused_with_the_reason(name: str) -> None:
    reason = f"^{name} takes no gradient steps: its classifier is computed from sums over all tasks, so flashback has"
    with pytest.raises(fb.FlashbackError, match=reason):
        quick_flashback(name)


@pytest.mark.parametrize("name", ["simplecil", "ranpac"])
def test_a_rate_of_the_backbone_is_refused(name: str) -> None:
    with pytest.raises(fb.FlashbackError, match="backbone_lr_factor does nothing with"):
        quick_host(name, training__backbone_lr_factor=0.1)


@pytest.mark.parametrize("name", ["simplecil", "ranpac"])
def test_the_exported_module_predicts_as_the_host(name: str) -> None:
    host = quick_host(name)
    fb.train(host)
    images = torch.cat([task.test.x for task in host.benchmark.tasks])
    assert torch.equal(host.as_module()(images).argmax(1), host.predict(images))
