"""A benchmark of arrays in memory is that of the same arrays in an .npz, and is checked alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashback import FlashbackError, load_benchmark
from flashback.benchmarks import Benchmark

Arrays = Callable[..., dict[str, np.ndarray]]


def assert_same(one: Benchmark, other: Benchmark) -> None:
    assert (one.checksum, one.order, one.sizes, one.class_names) == (
        other.checksum,
        other.order,
        other.sizes,
        other.class_names,
    )
    assert (one.mean, one.std) == (other.mean, other.std)
    for first, second in zip(one.tasks, other.tasks, strict=True):
        for part in ("train", "test"):
            assert torch.equal(getattr(first, part).x, getattr(second, part).x)
            assert torch.equal(getattr(first, part).y, getattr(second, part).y)


@pytest.mark.parametrize("shape", [(4, 4, 3), (4, 5, 1), (4, 5)])
@pytest.mark.parametrize(
    "convert",
    [
        lambda arrays: arrays,
        lambda arrays: {key: torch.from_numpy(array) for key, array in arrays.items()},
        lambda arrays: arrays | {key: arrays[key].tolist() for key in ("y_train", "y_test")},  # as torchvision has them
        lambda arrays: arrays | {"classes": "not asked for"},
    ],
)
def test_a_mapping_is_an_npz_in_memory(arrays: Arrays, npz: Callable[..., Path], convert: Any, shape: Any) -> None:
    options: dict[str, Any] = {"sizes": [3, 1, 2], "order": [5, 4, 3, 2, 1, 0], "validation": 0.2}
    benchmark = load_benchmark(convert(arrays(6, shape=shape)), **options)
    assert benchmark.name == "arrays"
    assert_same(benchmark, load_benchmark(npz(shape=shape), **options))


@pytest.mark.parametrize("convert", [list, np.array, tuple])
def test_classes_may_have_names(arrays: Arrays, npz: Callable[..., Path], convert: Callable[..., Any]) -> None:
    names = ["ash", "birch", "cedar, white", "elm", "fir", "Öland oak"]
    data = arrays(6) | {"class_names": convert(names)}
    for benchmark in (load_benchmark(data, sizes=[6]), load_benchmark(npz(class_names=convert(names)), sizes=[6])):
        assert benchmark.class_names == tuple(names)
        assert benchmark.checksum == load_benchmark(arrays(6), sizes=[6]).checksum
    reversed_ = load_benchmark(data, sizes=[2, 4], order=[5, 4, 3, 2, 1, 0])
    assert reversed_.class_names == tuple(reversed(names))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "b"], "class_names has 2 entries for 6 classes; name each label once"),
        (list("abcdefg"), "class_names has 7 entries for 6 classes"),
        ([1, 2, 3, 4, 5, 6], r"'class_names' is int64 \[6\]; it must be a list of texts, one for each label"),
        ("abcdef", r"'class_names' is <U6 \[\]; it must be a list of texts"),
        (np.array(list("abcdef"), object), r"'class_names' is object \[6\]; it must be a list of texts"),
        ([["a"] * 6], r"'class_names' is <U1 \[1, 6\]; it must be"),
    ],
)
def test_names_that_do_not_fit_are_refused(arrays: Arrays, npz: Callable[..., Path], names: Any, message: str) -> None:
    for source in (arrays(6) | {"class_names": names}, npz(class_names=names)):
        with pytest.raises(FlashbackError, match=message):
            load_benchmark(source, sizes=[6])


def test_the_arrays_may_change_afterwards(arrays: Arrays) -> None:
    data = arrays(4)
    benchmark, again = (load_benchmark(data, sizes=[2, 2]) for _ in range(2))
    data["x_train"][:] = 9
    assert_same(benchmark, again)
    assert not (benchmark.tasks[0].train.x == 9).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"x_train": None},
        {"y_test": None},
        {"x_train": np.zeros((36, 4, 4, 3), np.float32)},
        {"x_train": np.zeros((36, 3, 4, 4), np.uint8)},
        {"x_test": np.zeros((12, 5, 5, 3), np.uint8)},
        {"y_train": np.zeros(36)},
        {"y_train": np.arange(36) % 6 + 1},
        {"y_test": np.zeros(11, np.int64)},
        {"x_test": np.zeros((0, 4, 4, 3), np.uint8), "y_test": np.zeros(0, np.int64)},
    ],
)
def test_what_a_file_is_refused_for_a_mapping_is_refused_for(
    arrays: Arrays, npz: Callable[..., Path], changes: dict[str, Any]
) -> None:
    mapping = {key: value for key, value in {**arrays(6), **changes}.items() if value is not None}
    with pytest.raises(FlashbackError) as of_file:
        load_benchmark(path := npz(**changes), sizes=[2, 2, 2])
    with pytest.raises(FlashbackError) as of_mapping:
        load_benchmark(mapping, sizes=[2, 2, 2])
    assert str(of_mapping.value) == str(of_file.value).replace(str(path), "the mapping")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": [[0, 1], [0]]}, "'y_train' is not an array"),
        ({"x_train": torch.zeros(2, 4, 4, 3, dtype=torch.bfloat16)}, "'x_train' is not an array"),
        ({"x_train": object()}, r"'x_train' is object \[\]; it must be uint8"),
    ],
)
def test_what_is_no_array_is_refused(arrays: Arrays, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FlashbackError, match=f"the mapping: {message}"):
        load_benchmark({**arrays(6), **changes}, sizes=[2, 2, 2])


def test_a_mapping_says_nothing_about_tasks(arrays: Arrays) -> None:
    with pytest.raises(FlashbackError, match=r"a mapping of arrays has no information .* \(in Python sizes=2\)"):
        load_benchmark(arrays(6))


@pytest.mark.parametrize("value", [5, None, [1, 2], np.zeros(3), torch.utils.data.Dataset()])
def test_other_things_are_no_benchmark(value: Any) -> None:
    with pytest.raises(FlashbackError, match=f"a name, a path or a mapping of x_train, .*, not {type(value).__name__}"):
        load_benchmark(value, sizes=[2])


def test_sizes_of_equal_tasks_may_be_a_number(arrays: Arrays) -> None:
    assert load_benchmark(arrays(4), sizes=2).sizes == [2, 2]
