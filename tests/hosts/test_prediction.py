"""Predicting with a trained host: on raw images, in evaluation mode, as the evaluation of a run does."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import flashback as fb
from flashback.benchmarks import Images
from flashback.hosts import HOSTS
from flashback.hosts.prediction import features_of
from helpers import quick_flashback, quick_host, revisiting_benchmark, small_settings, tiny_benchmark

FAST = {"icarl", "lwf-mc", "der++", "ewc", "foster", "beef-compress"}  # one of each way to predict
SHIPPED = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for name in HOSTS
    if HOSTS[name].__module__.startswith("flashback.")
]


@cache
def trained(name: str = "icarl") -> fb.Host:
    """Seen test images are as many as leave an incomplete batch."""
    benchmark = tiny_benchmark((2, 3), per_class=6, test_per_class=7)
    host = quick_host(name, benchmark, training__epochs=1, training__evaluation_batch=4, **small_settings(name))
    fb.train(host)
    return host


def accuracy(columns: torch.Tensor, images: Images) -> float:
    return 100.0 * int((columns == images.y).sum()) / len(images)


# ---------------------------------------------------------------- what is predicted


@pytest.mark.parametrize("name", SHIPPED)
def test_predictions_are_right_as_often_as_the_evaluation_says(name: str) -> None:
    host = trained(name)
    for classifier, accuracies in fb.evaluate(host, host.benchmark).items():
        for task in host.benchmark.tasks:
            among_all = host.predict(task.test, classifier)
            among_own = host.predict(task.test, classifier, task)
            assert set(among_own.tolist()) <= set(task.classes)
            assert accuracy(among_all, task.test) == accuracies["class_incremental"][task.index]
            assert accuracy(among_own, task.test) == accuracies["task_incremental"][task.index]


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_and_the_other_images_of_a_batch_make_no_difference(mode: bool) -> None:
    host = trained()
    images = host.benchmark.tasks[0].test.x
    alone = [int(host.predict(images[k : k + 1])) for k in range(len(images))]
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    try:
        host.train(mode)
        assert host.predict(images).tolist() == alone
        assert host.training is mode
    finally:
        host.eval()
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.state_dict().items())


def test_training_mode_would_make_a_difference() -> None:
    host = trained()
    x = host.views.plain(host.benchmark.tasks[0].test.x[:3])
    with torch.no_grad():
        resting = host.scores(x)
        host.train()
        assert not torch.allclose(host.scores(x), resting)
    host.eval()


def test_images_come_as_tensors_arrays_or_a_data_set() -> None:
    host = trained()
    images = host.benchmark.tasks[1].test
    expected = host.predict(images)
    assert expected.dtype == torch.int64
    assert expected.device.type == "cpu"
    locked = images.x.numpy().copy()
    locked.flags.writeable = False
    assert torch.equal(host.predict(images.x), expected)
    assert torch.equal(host.predict(images.x.numpy()), expected)
    assert torch.equal(host.predict(locked), expected)
    assert torch.equal(host.predict(images.x.numpy()[::-1]), expected.flip(0))
    assert host.predict(images.x[:0]).shape == (0,)


def test_a_classifier_is_chosen_by_its_name() -> None:
    host = trained()
    names = list(host.classifiers())
    images = host.benchmark.tasks[0].test
    assert names[0] == "nearest-mean"
    assert torch.equal(host.predict(images), host.predict(images, names[0]))
    with pytest.raises(fb.FlashbackError, match=r"unknown classifier 'linaer'; did you mean 'linear'\?"):
        host.predict(images, "linaer")


def test_classes_not_learned_yet_are_never_predicted() -> None:
    host = quick_host("finetune", tiny_benchmark((2, 3)))
    with torch.no_grad():
        host.net.head.bias += 100.0 * torch.arange(5)  # type: ignore[union-attr, operator]
    images = host.benchmark.tasks[1].test
    assert set(host.predict(images).tolist()) == {1}
    host.enter(host.benchmark.tasks[1])
    assert set(host.predict(images).tolist()) == {4}
    assert set(host.predict(images, task=0).tolist()) == {1}
    assert set(host.predict(images, task=host.benchmark.tasks[1]).tolist()) == {4}


def test_known_classes_that_come_again_in_a_task_are_predicted() -> None:
    host = quick_host("er", revisiting_benchmark())
    for task in host.benchmark.tasks[1:]:
        host.enter(task)
    with torch.no_grad():
        host.net.head.weight.zero_()  # type: ignore[union-attr, operator]
        host.net.head.bias.copy_(torch.tensor([3.0, 2.0, 0.0, 1.0]))  # type: ignore[union-attr, operator]
    images = host.benchmark.tasks[0].test
    assert host.benchmark.tasks[1].columns == (1, 2, 3)
    assert set(host.predict(images, task=1).tolist()) == {1}
    assert set(host.predict(images, task=2).tolist()) == {0}  # no class of this task is new


@pytest.mark.parametrize("task", [1, -1, "first", 1.0])
def test_a_task_that_was_not_learned_is_refused(task: Any) -> None:
    host = quick_host("finetune", tiny_benchmark((2, 3)))
    with pytest.raises(fb.FlashbackError, match=f"this host has not learned task {task}"):
        host.predict(host.benchmark.tasks[0].test, task=task)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 12, 12), r"not float32 \[2, 1, 12, 12\]"),
        (torch.zeros(1, 12, 12, dtype=torch.uint8), r"not uint8 \[1, 12, 12\]"),
        (np.zeros((2, 12, 12, 1), np.uint8), r"not uint8 \[2, 12, 12, 1\]"),
        (np.zeros((2, 1, 10, 12), np.uint8), r"not uint8 \[2, 1, 10, 12\]"),
        (np.array(["a"]), r"not <U1 \[1\]"),
        ([[0]], "not list"),
        ("image.png", "not str"),
    ],
)
def test_other_images_are_refused(images: Any, message: str) -> None:
    host = trained()
    for look in (host.predict, host.features):
        with pytest.raises(fb.FlashbackError, match=rf"a uint8 tensor or array of shape \[n, 1, 12, 12\], {message}"):
            look(images)


@pytest.mark.parametrize("name", SHIPPED)
def test_features_are_what_the_last_layer_is_given(name: str) -> None:
    host = trained(name)
    images = host.benchmark.tasks[1].test
    with torch.no_grad():
        expected = host.predictor()(host.views.plain(images.x)).features
    host.train()
    try:
        features = host.features(images)
    finally:
        host.eval()
    torch.testing.assert_close(features, expected)
    assert features.shape[0] == len(images)


# ---------------------------------------------------------------- modes, and what is accepted


def test_a_host_is_left_in_evaluation_mode() -> None:
    bare, wrapped = quick_host("lwf-mc"), quick_flashback("lwf-mc")
    fb.train(bare)
    fb.train(wrapped)
    for host in (bare, wrapped.host):
        assert not any(module.training for module in host.modules())


def test_a_wrapped_host_and_a_whole_benchmark_can_be_evaluated() -> None:
    method = quick_flashback("lwf-mc")
    host, benchmark = method.host, method.host.benchmark
    assert fb.evaluate(method, benchmark) == fb.evaluate(host, benchmark.tasks) == fb.evaluate(host, benchmark)


@pytest.mark.parametrize("tasks", [[], None, "tasks", [0, 1]])
def test_what_is_no_task_cannot_be_evaluated_on(tasks: Any) -> None:
    with pytest.raises(fb.FlashbackError, match="takes a benchmark or a list of its tasks"):
        fb.evaluate(quick_host("finetune"), tasks)
    with pytest.raises(fb.FlashbackError, match=r"takes a host or fb.Flashback\(host\), not str"):
        fb.evaluate("icarl", tiny_benchmark())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name", ["lwf-mc", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lucir", "foster"))]
)
def test_a_model_can_be_exported_with_what_goes_before_it(name: str) -> None:
    host = quick_host(name, **small_settings(name))
    fb.train(host)
    raw = host.benchmark.tasks[1].test.x[:5]
    module = host.as_module()
    scores = module(raw)
    assert torch.equal(scores.argmax(1), host.predict(raw))
    assert scores.shape == (5, host.benchmark.classes)
    exported = torch.export.export(module, (raw,), dynamic_shapes={"raw": {0: torch.export.Dim("n")}}).module()
    torch.testing.assert_close(exported(raw[:3]), scores[:3])
    host.task = host.benchmark.tasks[0]
    assert host.as_module()(raw).shape == (5, len(host.benchmark.tasks[0].classes))


# ---------------------------------------------------------------- embedding


@pytest.mark.parametrize("training", [True, False])
def test_embedding_looks_at_plain_images_in_evaluation_mode(training: bool) -> None:
    host = quick_host("lwf-mc", training__evaluation_batch=5)
    host.train(training)
    before = {name: tensor.clone() for name, tensor in host.state_dict().items()}
    images = host.task.train.x[:12]
    features = host.embed(images, features_of)
    assert host.net.training is training
    assert not features.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in host.state_dict().items())
    one_by_one = [host.net.eval()(host.views.plain(image[None])).features[0].detach() for image in images]
    torch.testing.assert_close(features, torch.stack(one_by_one))


def test_embedding_of_another_view() -> None:
    host = quick_host("lwf-mc", training__evaluation_batch=5)
    images = host.task.train.x[:12]
    features = host.embed(images, features_of, view=lambda raw: -host.views.plain(raw))
    expected = host.net.eval()(-host.views.plain(images)).features.detach()
    torch.testing.assert_close(features, expected)
    assert not torch.allclose(features, host.embed(images, features_of))


def test_the_net_follows_the_size_of_the_images() -> None:
    small = fb.build_host(quick_host("lwf-mc").config, tiny_benchmark((2,), shape=(1, 28, 28)), "cpu")
    large = fb.build_host(quick_host("lwf-mc").config, tiny_benchmark((2,), per_class=1, shape=(3, 32, 32)), "cpu")
    assert small.net.backbone.width == 64  # type: ignore[union-attr]
    assert large.net.backbone.width == 512  # type: ignore[union-attr]
