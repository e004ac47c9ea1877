"""Task sizes in a short form: a number for equal tasks, 5x2, 50+5x10."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from flashback import configure, load_benchmark
from flashback.benchmarks import describe_benchmarks
from flashback.benchmarks.specs import BENCHMARKS
from flashback.benchmarks.splits import read_sizes, task_sizes
from flashback.config import to_dict
from flashback.errors import FlashbackError
from flashback.recipes import config_from_dict


@pytest.mark.parametrize(
    ("given_sizes", "listed"),
    [
        (2, (2,) * 5),
        ("2", (2,) * 5),
        (10, (10,)),
        ("5x2", (2,) * 5),
        (" 5 x 2 ", (2,) * 5),
        ("4+3x2", (4, 2, 2, 2)),
        ("4 + 2x1 + 4", (4, 1, 1, 4)),
        ([4, 6], (4, 6)),
        ((4, 6), (4, 6)),
    ],
)
def test_every_form_becomes_a_list(given_sizes: Any, listed: tuple[int, ...]) -> None:
    assert task_sizes(given_sizes, 10) == listed
    assert configure("icarl", settings={"benchmark.sizes": given_sizes}).benchmark.sizes == listed
    assert tuple(load_benchmark("split-fashion-mini", sizes=given_sizes, labels_only=True).sizes) == listed


@pytest.mark.parametrize("numbers", [[np.int64(4), 6], np.int64(5)])
def test_numbers_of_numpy_are_numbers(numbers: Any) -> None:
    sizes = task_sizes(numbers, 10)
    assert sum(sizes) == 10
    assert all(type(size) is int for size in sizes)


def test_what_the_list_of_benchmarks_prints_is_understood() -> None:
    for row in describe_benchmarks():
        spec = BENCHMARKS[str(row["name"])]
        assert spec.revisit_after or task_sizes(str(row["sizes"]), int(row["classes"])) == spec.sizes


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), min_size=2, max_size=9))
def test_a_text_is_a_sum_of_equal_tasks(pairs: list[tuple[int, int]]) -> None:
    expected: list[int] = []
    for count, size in pairs:
        expected += [size] * count
    assert read_sizes("+".join(f"{count}x{size}" for count, size in pairs)) == tuple(expected)


@pytest.mark.parametrize(
    "wrong",
    ["", "x", "5x", "x2", "5x2x2", "5*2", "-2", "2.5", "0x2", "5x2+", "99999x1", "1" * 9, 2.5, True, [2, 2.5], {}],
)
def test_what_is_no_size_is_refused_with_examples(wrong: Any) -> None:
    with pytest.raises(FlashbackError, match=r"^the task sizes .* \[4, 3, 3\], .*5x2 or 50\+5x10, not [^;]+$"):
        task_sizes(wrong, 10)


@pytest.mark.parametrize("wrong", [0, -2, 3, 11, "4"])
def test_tasks_that_cannot_be_equal_are_told_the_sizes_that_can(wrong: Any) -> None:
    with pytest.raises(FlashbackError, match=rf"^10 classes cannot be split .* {wrong}; .* among 1, 2, 5, 10"):
        task_sizes(wrong, 10)


# ---------------------------------------------------------------- in configurations


@pytest.mark.parametrize("form", ["5", "2x5", "[5, 5]", "5 + 5"])
def test_a_configuration_holds_the_list(form: str) -> None:
    text = f"host: {{name: icarl}}\nbenchmark: {{name: split-cifar10, sizes: {form}}}"
    assert to_dict(config_from_dict(yaml.safe_load(text)))["benchmark"]["sizes"] == [5, 5]


def write_npz(path: Path, classes: int) -> None:
    images, labels = np.zeros((2 * classes, 8, 8), np.uint8), np.arange(classes).repeat(2)
    np.savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels)


def write_folder(path: Path, classes: int) -> None:
    from PIL import Image

    for part in ("train", "test"):
        for label in range(classes):
            folder = path / part / f"class{label}"
            folder.mkdir(parents=True)
            Image.fromarray(np.full((8, 8), label, np.uint8)).save(folder / "one.png")


@pytest.mark.parametrize("write", [write_npz, write_folder])
def test_classes_of_own_files_are_counted(write: Any, tmp_path: Path) -> None:
    path = tmp_path / ("own.npz" if write is write_npz else "own")
    write(path, 6)
    assert configure("icarl", str(path), settings={"benchmark.sizes": 2}).benchmark.sizes == (2, 2, 2)
    assert list(load_benchmark(path, sizes=3).sizes) == [3, 3]
    with pytest.raises(FlashbackError, match="6 classes cannot be split into equal tasks of 4"):
        configure("icarl", str(path), settings={"benchmark.sizes": 4})


def test_only_equal_tasks_need_the_data() -> None:
    assert configure("icarl", "none.npz", settings={"benchmark.sizes": "2x3"}).benchmark.sizes == (3, 3)
    with pytest.raises(FlashbackError, match=r"there is no file none\.npz"):
        configure("icarl", "none.npz", settings={"benchmark.sizes": 3})
    with pytest.raises(FlashbackError, match="did you mean 'split-cifar10'"):
        configure("icarl", "split-cifar1", settings={"benchmark.sizes": 2})


def test_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "own.npz")
    with pytest.raises(FlashbackError, match="neither a file nor a folder"):
        configure("icarl", str(tmp_path / "own.npz"), settings={"benchmark.sizes": 2})


def test_no_augmentation() -> None:
    for none in ("none", [], ()):
        assert configure("icarl", settings={"training.views": none}).training.views == ()
