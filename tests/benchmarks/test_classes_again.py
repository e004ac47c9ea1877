"""Benchmarks whose classes come again: rotated, or with other images of the same kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import flashback as fb
from flashback.benchmarks import Benchmark, Task
from flashback.benchmarks.from_record import DATA, benchmark_from_record, describe_data
from flashback.benchmarks.rotation import rotated
from flashback.errors import FlashbackError

BOTH = ("rotated-fashion-mini", "repeated-fashion-mini")


def rows_of(task: Task) -> list[bytes]:
    return [image.numpy().tobytes() for image in task.train.x]


def record_of(benchmark: Benchmark) -> dict[str, Any]:
    return {
        "benchmark": benchmark.name,
        "class_order": list(benchmark.order),
        "task_sizes": benchmark.sizes,
        "data_checksum": benchmark.checksum,
        DATA: describe_data(benchmark),
    }


def test_two_new_classes_a_task_come_again_one_and_three_tasks_later() -> None:
    benchmark = fb.load_benchmark("repeated-fashion-mini")
    pairs = [[0], [1, 0], [2, 1], [3, 2, 0], [4, 3, 1], [4, 2], [3], [4]]
    for task, present in zip(benchmark.tasks, pairs, strict=True):
        columns = sorted(column for pair in present for column in (2 * pair, 2 * pair + 1))
        assert sorted(task.columns) == columns == task.train.y.unique().tolist() == task.test.y.unique().tolist()
    assert benchmark.sizes == [2, 2, 2, 2, 2, 0, 0, 0]


def test_every_training_image_comes_once() -> None:
    rows = [row for task in fb.load_benchmark("repeated-fashion-mini").tasks for row in rows_of(task)]
    known = [row for task in fb.load_benchmark("split-fashion-mini").tasks for row in rows_of(task)]
    assert sorted(rows) == sorted(known)


def test_each_task_after_the_first_has_all_classes_in_another_rotation() -> None:
    benchmark = fb.load_benchmark("rotated-fashion-mini")
    assert benchmark.sizes == [10, 0, 0, 0, 0]
    upright = benchmark.tasks[0].test
    for task, degrees in zip(benchmark.tasks, (0, 30, 60, 90, 120), strict=True):
        assert sorted(task.columns) == list(range(10))
        assert torch.equal(task.test.x, rotated(upright.x, degrees))
        assert torch.equal(task.test.y, upright.y)
        assert task.train.y.bincount().tolist() == [100] * 10


def test_right_angles_are_exact_and_anticlockwise() -> None:
    images = torch.randint(0, 256, (5, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for turns in range(4):
        assert np.array_equal(rotated(images, 90 * turns).numpy(), np.rot90(images.numpy(), turns, axes=(2, 3)))


def test_a_rotation_interpolates_between_four_pixels() -> None:
    image = torch.zeros(1, 1, 3, 3, dtype=torch.uint8)
    image[0, 0, 1] = torch.tensor([200, 100, 50])
    rotated_image = rotated(image, 45)[0, 0]
    assert rotated_image[1, 1] == 100
    side = 2**0.5  # how far the sources of the corners lie from the centre, above it and right of it
    assert rotated_image[0, 0].item() == 0
    assert rotated_image[0, 2].item() == round((2 - side) * 50)
    assert rotated_image[0, 1].item() == round((1 - side / 2) * (side / 2 * 50 + (1 - side / 2) * 100))


@pytest.mark.parametrize("name", BOTH)
def test_fewer_tasks_are_the_first_ones(name: str) -> None:
    whole, few = fb.load_benchmark(name), fb.load_benchmark(name, tasks=3)
    for one, other in zip(whole.tasks, few.tasks, strict=False):
        assert torch.equal(one.train.x, other.train.x)
        assert one.columns == other.columns
    assert len(few.tasks) == 3


@pytest.mark.parametrize("name", BOTH)
def test_an_order_names_the_classes_that_come(name: str) -> None:
    straight, reversed_benchmark = fb.load_benchmark(name), fb.load_benchmark(name, order=list(range(10))[::-1])
    assert [task.columns for task in straight.tasks] == [task.columns for task in reversed_benchmark.tasks]
    assert reversed_benchmark.class_names == straight.class_names[::-1]
    first = reversed_benchmark.tasks[0]
    classes = [reversed_benchmark.order[column] for column in first.columns]
    assert sorted(classes) == (list(range(10)) if name == BOTH[0] else [8, 9])


@pytest.mark.parametrize("name", BOTH)
def test_validation_images_are_held_out_of_every_task(name: str) -> None:
    benchmark = fb.load_benchmark(name, validation=0.2, seed=3)
    whole = fb.load_benchmark(name)
    images = sum(len(task.train) for task in benchmark.tasks)
    assert images == 0.8 * sum(len(task.train) for task in whole.tasks)
    assert [task.columns for task in benchmark.tasks] == [task.columns for task in whole.tasks]
    assert all(sorted(task.columns) == task.test.y.unique().tolist() for task in benchmark.tasks)


@pytest.mark.parametrize("name", BOTH)
def test_their_sizes_are_fixed(name: str) -> None:
    with pytest.raises(FlashbackError, match=f"the tasks of {name} are fixed"):
        fb.load_benchmark(name, sizes=2)


@pytest.mark.parametrize("name", BOTH)
def test_a_record_rebuilds_the_benchmark(name: str) -> None:
    benchmark = fb.load_benchmark(name, tasks=4)
    rebuilt = benchmark_from_record(record_of(benchmark), lambda: benchmark)
    assert rebuilt is not None
    assert repr(rebuilt) == repr(benchmark)
    assert rebuilt.sizes == benchmark.sizes
    for one, other in zip(rebuilt.tasks, benchmark.tasks, strict=True):
        assert (one.classes, one.revisited) == (other.classes, other.revisited)
        assert torch.equal(one.test.x, other.test.x)


@pytest.mark.parametrize(
    "revisited", [[[], [0], [5]], [[0], [0], [0]], [[], [], []], [[], [0]], [[], [-1], [0]]], ids=str
)
def test_a_record_that_contradicts_itself_is_refused(revisited: list[list[int]]) -> None:
    record = record_of(fb.load_benchmark("split-fashion-mini", tasks=3))
    record["task_sizes"] = [2, 2, 0]
    record[DATA]["revisited"] = revisited
    with pytest.raises(FlashbackError, match="contradict"):
        benchmark_from_record(record, lambda: pytest.fail("not needed"))
