from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from flashback.benchmarks import BENCHMARKS, Images, Task, describe_benchmarks, load_benchmark, mapped_images
from flashback.benchmarks.load import measure_channels
from flashback.errors import FlashbackError

EXPECTED = {
    "split-fashion-mini": ([2] * 5, "identity", "28x28x1"),
    "rotated-fashion-mini": ([10, 0, 0, 0, 0], "identity", "28x28x1"),
    "repeated-fashion-mini": ([2] * 5 + [0] * 3, "identity", "28x28x1"),
    "split-cifar10": ([2] * 5, "identity", "32x32x3"),
    "split-cifar100": ([10] * 10, "identity", "32x32x3"),
    "split-tinyimagenet": ([20] * 10, "identity", "64x64x3"),
    "cifar100-b0-10": ([10] * 10, "1993", "32x32x3"),
    "cifar100-b50-10": ([50, 10, 10, 10, 10, 10], "1993", "32x32x3"),
    "cifar100-b50-5": ([50] + [5] * 10, "1993", "32x32x3"),
    "cifar100-b50-2": ([50] + [2] * 25, "1993", "32x32x3"),
    "imagenet100-b0-10": ([10] * 10, "1993", "256x256x3"),
    "imagenet100-b50-10": ([50, 10, 10, 10, 10, 10], "1993", "256x256x3"),
}


def test_the_named_benchmarks_are_those_of_the_literature() -> None:
    rows = {row["name"]: row for row in describe_benchmarks()}
    assert set(rows) == set(BENCHMARKS) == set(EXPECTED)
    for name, (sizes, order, image) in EXPECTED.items():
        assert list(BENCHMARKS[name].sizes) == sizes
        row = rows[name]
        assert (row["tasks"], row["classes"], row["order"], row["image"]) == (len(sizes), sum(sizes), order, image)
    assert rows["cifar100-b50-5"]["sizes"] == "50 + 10x5"


@pytest.mark.parametrize("name", list(EXPECTED))
def test_class_names_are_complete_and_distinct(name: str) -> None:
    dataset = BENCHMARKS[name].dataset
    assert len(dataset.mean) == len(dataset.std) == dataset.image[0]
    assert len(set(dataset.class_names)) in (0, dataset.classes)


def test_a_task_knows_its_columns() -> None:
    images = Images(torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([4, 5, 6]))
    task = Task(1, range(4, 7), images, images)
    columns = list(range(9))
    assert len(task.train) == 3
    assert list(task.before) == [0, 1, 2, 3]
    assert (columns[task.old], columns[task.new]) == ([0, 1, 2, 3], [4, 5, 6])
    assert columns[task.seen] == [0, 1, 2, 3, 4, 5, 6]


def test_the_embedded_benchmark_is_balanced_and_needs_no_files(tmp_path: Path) -> None:
    benchmark = load_benchmark("split-fashion-mini", data=tmp_path, download=False)
    assert benchmark.image_shape == (1, 28, 28)
    assert (benchmark.classes, benchmark.sizes) == (10, [2] * 5)
    assert (benchmark.mean, benchmark.std) == ((0.2860,), (0.3530,))
    assert benchmark.class_names[:2] == ("t-shirt", "trouser")
    for task in benchmark.tasks:
        assert Counter(task.train.y.tolist()) == dict.fromkeys(task.classes, 500)
        assert Counter(task.test.y.tolist()) == dict.fromkeys(task.classes, 100)
    pixels = torch.cat([task.train.x for task in benchmark.tasks]).double() / 255
    assert pixels.mean().item() == pytest.approx(0.2860, abs=0.01)
    assert pixels.std().item() == pytest.approx(0.3530, abs=0.01)


def trace(images: Images, arrays: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """(row, original label) of each image, from the row its first pixels spell."""
    x, y = np.concatenate([arrays["x_train"], arrays["x_test"]]), np.concatenate([arrays["y_train"], arrays["y_test"]])
    traced_rows = []
    for picture in images.x:
        flat = picture.permute(1, 2, 0).reshape(-1)
        row = int(flat[0]) * 256 + int(flat[1])
        assert (picture.permute(1, 2, 0).numpy() == x[row].reshape(picture.permute(1, 2, 0).shape)).all()
        traced_rows.append((row, int(y[row])))
    return traced_rows


@pytest.mark.parametrize("shape", [(4, 5, 3), (4, 5, 1), (4, 5)])
@pytest.mark.parametrize("order", ["identity", 1993, [3, 1, 5, 0, 2, 4]])
def test_labels_are_positions_in_the_order(
    npz: Callable, arrays: Callable, shape: tuple, order: str | int | list
) -> None:
    data = arrays(6, shape=shape)
    benchmark = load_benchmark(str(npz(shape=shape)), sizes=[3, 1, 2], order=order)
    assert benchmark.image_shape == ((1, 4, 5) if shape != (4, 5, 3) else (3, 4, 5))
    assert (benchmark.name, benchmark.dataset, benchmark.classes) == ("made", "made", 6)
    assert benchmark.class_names == tuple(str(label) for label in benchmark.order)
    rows: dict[str, list[int]] = {"train": [], "test": []}
    for task, classes in zip(benchmark.tasks, [range(3), range(3, 4), range(4, 6)], strict=True):
        assert task.classes == classes
        for part, images in (("train", task.train), ("test", task.test)):
            assert (images.x.dtype, images.y.dtype) == (torch.uint8, torch.int64)
            assert set(images.y.tolist()) == set(classes)
            traced = trace(images, data)
            assert [benchmark.order[y] for y in images.y.tolist()] == [label for _, label in traced]
            rows[part] += [row for row, _ in traced]
    assert sorted(rows["train"]) == list(range(36))
    assert sorted(rows["test"]) == list(range(36, 48))


def test_validation_images_are_cut_per_class_from_the_training_set(npz: Callable, arrays: Callable) -> None:
    data, path = arrays(6), str(npz())
    benchmark = load_benchmark(path, sizes=[3, 3], validation=0.34, seed=1)
    train = [traced for task in benchmark.tasks for traced in trace(task.train, data)]
    validation = [traced for task in benchmark.tasks for traced in trace(task.test, data)]
    assert sorted(row for row, _ in train + validation) == list(range(36)), (
        "disjoint, complete, and nothing of the test set"
    )
    assert Counter(label for _, label in validation) == dict.fromkeys(range(6), 2)

    def held_out(**options: object) -> set[tuple[int, int]]:
        again = load_benchmark(path, sizes=[3, 3], validation=0.34, **options)
        return {traced for task in again.tasks for traced in trace(task.test, data)}

    assert held_out(seed=1) == held_out(seed=1, order=5) == set(validation)
    assert held_out(seed=2) != set(validation)


@pytest.mark.parametrize("validation", [-0.1, 1.0, 1.5])
def test_validation_must_be_a_fraction(validation: float) -> None:
    with pytest.raises(FlashbackError, match=f"validation is {validation}; give a fraction"):
        load_benchmark("split-fashion-mini", validation=validation)


def test_the_seed_is_not_negative() -> None:
    with pytest.raises(FlashbackError, match="the seed is -1; give one from 0"):
        load_benchmark("split-fashion-mini", seed=-1)


def test_validation_leaves_something_to_train_on(npz: Callable) -> None:
    with pytest.raises(FlashbackError, match=r"class 0 has 6 training images, too few to hold out 0.95"):
        load_benchmark(str(npz()), sizes=[6], validation=0.95)


def test_only_the_first_tasks(npz: Callable) -> None:
    benchmark = load_benchmark(str(npz()), sizes=[1, 2, 3], tasks=2)
    assert (benchmark.sizes, benchmark.classes, len(benchmark.order)) == ([1, 2], 3, 6)


@pytest.mark.parametrize("tasks", [0, 4, -1])
def test_a_number_of_tasks_that_is_not_there(npz: Callable, tasks: int) -> None:
    with pytest.raises(FlashbackError, match=f"the benchmark has 3 tasks, not {tasks}; give a number from 1 to 3"):
        load_benchmark(str(npz()), sizes=[1, 2, 3], tasks=tasks)


def test_sizes_and_order_of_a_named_benchmark_can_be_replaced() -> None:
    benchmark = load_benchmark("split-fashion-mini", sizes=[4, 6], order="3")
    assert benchmark.sizes == [4, 6]
    assert benchmark.order == tuple(np.random.RandomState(3).permutation(10).tolist())
    assert benchmark.class_names[0] == load_benchmark("split-fashion-mini").class_names[benchmark.order[0]]


def test_mean_and_deviation_of_own_images_come_from_the_first_task(npz: Callable) -> None:
    y = np.repeat(np.arange(6), 6)
    x = np.full((36, 2, 2, 3), 200, np.uint8)
    x[:12] = np.random.default_rng(0).integers(0, 256, (12, 2, 2, 3))
    benchmark = load_benchmark(str(npz(x_train=x, y_train=y, shape=(2, 2, 3))), sizes=[2, 4])
    first = x[:12].reshape(-1, 3) / 255
    assert benchmark.mean == pytest.approx(first.mean(0))
    assert benchmark.std == pytest.approx(first.std(0))


@pytest.mark.parametrize("period", [2, 3])
def test_of_many_images_all_classes_are_measured(period: int) -> None:
    """Also if they alternate."""
    x = torch.tensor([20, 200, 50][:period], dtype=torch.uint8).repeat(2000)[:, None, None, None].expand(-1, 1, 2, 2)
    mean, std = measure_channels(x)
    assert mean == pytest.approx([x.float().mean().item() / 255], abs=0.02)
    assert std == pytest.approx([x.float().std().item() / 255], abs=0.02)


def test_which_images_are_measured_does_not_depend_on_other_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    read, rows_read = mapped_images._read, list[int]()
    monkeypatch.setattr(mapped_images, "_read", lambda x, rows: rows_read.extend(rows) or read(x, rows))
    x = mapped_images.MappedImages([np.full((1, 2, 2), number % 251, np.uint8) for number in range(2500)], (1, 2, 2))
    torch.manual_seed(1)
    first, state = measure_channels(x), torch.get_rng_state()
    assert len(set(rows_read)) == len(rows_read) == 2000
    torch.manual_seed(2)
    assert measure_channels(x) == first
    assert rows_read[:2000] == rows_read[2000:]
    torch.manual_seed(1)
    assert torch.equal(torch.get_rng_state(), state)


def test_images_are_measured_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """As numbers of eight bytes 2,000 images of 256 x 256 would take 3 GB."""
    read, at_once = mapped_images._read, list[int]()
    monkeypatch.setattr(mapped_images, "_read", lambda x, rows: at_once.append(len(rows)) or read(x, rows))
    picture = np.full((3, 2, 2), 7, np.uint8)
    assert measure_channels(mapped_images.MappedImages([picture] * 900, (3, 2, 2))) == ((7 / 255,) * 3, (1 / 255,) * 3)
    assert max(at_once) <= 16
    assert sum(at_once) == 900


def test_a_channel_that_never_varies_has_a_deviation_to_divide_by(npz: Callable) -> None:
    x = np.full((12, 4, 4, 3), 7, np.uint8)
    benchmark = load_benchmark(str(npz(classes=2, x_train=x)), sizes=[2])
    assert benchmark.std == pytest.approx((1 / 255,) * 3)


def test_every_class_gives_at_least_one_validation_image(npz: Callable) -> None:
    benchmark = load_benchmark(str(npz()), sizes=[3, 3], validation=0.05)  # of 6 images a class, rounded to none
    assert [torch.bincount(task.test.y)[task.new].tolist() for task in benchmark.tasks] == [[1, 1, 1]] * 2


def test_classes_do_not_hold_out_the_same_places(npz: Callable) -> None:
    y, x = np.repeat(np.arange(6), 6), np.zeros((36, 4, 4, 3), np.uint8)
    x[:, 0, 0, 0] = np.tile(np.arange(6), 6)  # the place of an image in its class
    (task,) = load_benchmark(str(npz(x_train=x, y_train=y)), sizes=[6], validation=0.34).tasks
    places = {tuple(sorted(task.test.x[task.test.y == c][:, 0, 0, 0].tolist())) for c in task.classes}
    assert len(places) > 1


def test_mean_and_deviation_rest_on_up_to_2000_images(npz: Callable) -> None:
    x = np.random.default_rng(0).integers(0, 256, (600, 2, 2, 3), np.uint8)
    benchmark = load_benchmark(str(npz(x_train=x, y_train=np.repeat(np.arange(6), 100), shape=(2, 2, 3))), sizes=[6])
    assert benchmark.mean == pytest.approx((x.reshape(-1, 3) / 255).mean(0))
    assert benchmark.std == pytest.approx((x.reshape(-1, 3) / 255).std(0))
