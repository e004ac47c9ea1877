"""RanPAC: ridge regression task by task, against one regression in numpy on all images at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import flashback as fb
from flashback.benchmarks import Benchmark, Images, Task
from flashback.hosts.ranpac import RIDGES
from helpers import quick_host, tiny_benchmark

Array = npt.NDArray[np.float64]


def trained(benchmark: Benchmark, **settings: Any) -> Any:
    host = quick_host("ranpac", benchmark, host__projection=30, **settings)
    fb.train(host)
    return host


def projected(host: Any, images: Any) -> Array:
    features = host.features(images).double().numpy()
    return np.maximum(features @ host.net.head.projection.double().numpy(), 0)


def regression(inputs: Array, labels: Array, classes: int, ridge: float) -> Array:
    targets = np.eye(classes)[labels]
    weight: Array = np.linalg.solve(inputs.T @ inputs + ridge * np.eye(inputs.shape[1]), inputs.T @ targets)
    return weight


@pytest.mark.parametrize("batch", [500, 7])
def test_learning_task_by_task_is_one_regression_on_all_images(batch: int) -> None:
    benchmark = tiny_benchmark()
    host = trained(benchmark, host__ridge=0.5, training__evaluation_batch=batch)
    inputs = np.concatenate([projected(host, task.train) for task in benchmark.tasks])
    labels = np.concatenate([task.train.y.numpy() for task in benchmark.tasks])
    weight = regression(inputs, labels, 7, 0.5)
    np.testing.assert_allclose(host.net.head.weight.T.numpy(), weight, rtol=1e-6, atol=1e-9)
    for task in benchmark.tasks:
        expected = (projected(host, task.test) @ weight).argmax(axis=1)
        assert host.predict(task.test).tolist() == expected.tolist()


def test_the_ridge_is_chosen_on_held_out_images_and_all_images_count_in_the_end() -> None:
    benchmark = tiny_benchmark((3,))
    host = trained(benchmark)
    task = benchmark.tasks[0]
    assert float(host.net.head.ridge) in RIDGES
    inputs = projected(host, task.train)
    weight = regression(inputs, task.train.y.numpy(), 3, float(host.net.head.ridge))
    np.testing.assert_allclose(host.net.head.weight.T.numpy(), weight, rtol=1e-5, atol=1e-8)


def test_the_chosen_ridge_has_the_smallest_squared_error() -> None:
    benchmark = tiny_benchmark((3,))
    host = quick_host("ranpac", benchmark, host__projection=30)
    images = benchmark.tasks[0].train
    rows = torch.arange(len(images))
    held_out, rest = rows[::5], torch.tensor([row for row in rows.tolist() if row % 5])
    host.add(rest)
    best = host.best_ridge(held_out)
    inputs, labels = projected(host, images), images.y.numpy()
    errors = {}
    for ridge in RIDGES[2:]:  # solve() of numpy is not exact enough for the smallest
        weight = regression(inputs[rest], labels[rest], 3, ridge)
        errors[ridge] = np.square(inputs[held_out] @ weight - np.eye(3)[labels[held_out]]).sum()
    assert best == min(errors, key=lambda ridge: errors[ridge])


def test_a_single_image_leaves_the_ridge_as_it_was() -> None:
    benchmark = tiny_benchmark((1, 1), per_class=1)
    assert float(trained(benchmark).net.head.ridge) == 1.0


def test_the_projection_depends_on_the_seed_alone() -> None:
    one, same, other = (quick_host("ranpac", seed=seed).net.head.projection for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_regression_without_a_solution_is_explained() -> None:
    host = quick_host("ranpac", host__projection=30, host__ridge=1e-3)
    host.net.head.gram -= 1e6 * torch.eye(30)  # as rounding may do, by less
    with pytest.raises(fb.FlashbackError, match=r"no solution with host\.ridge=0\.001; raise it"):
        fb.train(host)


def test_the_order_of_tasks_does_not_matter() -> None:
    """The statistics are sums, so that later tasks take nothing away from earlier ones."""
    benchmark = tiny_benchmark((4,))
    images = benchmark.tasks[0].train
    weights = []
    for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
        host = quick_host("ranpac", benchmark, host__projection=30, host__ridge=1.0)
        for label in order:
            rows = images.y == label
            host.task = Task(0, range(4), Images(images.x[rows], images.y[rows]), benchmark.tasks[0].test)
            host.end()
        weights.append(host.net.head.weight)
    torch.testing.assert_close(*weights)
