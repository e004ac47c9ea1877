from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashback.benchmarks import class_order, imagenet100_classes, load_benchmark
from flashback.benchmarks.orders import task_ranges
from flashback.errors import FlashbackError


@pytest.mark.parametrize("order", [1993, "1993"])
def test_the_order_of_seed_1993_has_its_published_values(order: int | str) -> None:
    labels = class_order(order, 100)
    assert labels[:10] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)
    assert labels[-3:] == (49, 57, 33)


def test_a_seed_shuffles_as_numpys_legacy_generator_does() -> None:
    labels = np.arange(30)
    np.random.RandomState(7).shuffle(labels)
    assert class_order(7, 30) == tuple(labels.tolist())


def test_identity_and_explicit_orders() -> None:
    assert class_order("identity", 4) == (0, 1, 2, 3)
    assert class_order([2, 0, 1], 3) == (2, 0, 1)
    assert class_order(np.array([1, 0]), 2) == (1, 0)


@pytest.mark.parametrize("seed", [0, 3, 1993])
def test_the_seed_of_a_run_draws_the_order_of_that_number(seed: int, npz: Callable[..., Path]) -> None:
    assert class_order("seed", 30, seed) == class_order(seed, 30) != class_order("seed", 30, seed + 1)
    path = npz()
    drawn = load_benchmark(path, sizes=[2, 4], order="seed", seed=seed)
    same = load_benchmark(path, sizes=[2, 4], order=seed, seed=seed + 1)
    assert drawn.order == same.order
    assert drawn.tasks[1].train.x.equal(same.tasks[1].train.x)
    assert load_benchmark(path, sizes=[2, 4], order="identity", seed=seed).order == tuple(range(6))


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [1, 2, 3], [0, 1, 2, 3], [0, 0.5, 2], []])
def test_an_order_that_is_no_permutation_is_refused(order: list[int]) -> None:
    with pytest.raises(FlashbackError, match=f"has {len(order)} entries but is no permutation of the labels 0 to 2"):
        class_order(order, 3)


@pytest.mark.parametrize("order", ["alphabetical", "", -1, "4294967296"])
def test_an_unknown_order_is_refused(order: str | int) -> None:
    with pytest.raises(FlashbackError, match=f"class order '{order}' is unknown; give 'identity', a seed"):
        class_order(order, 3)


def test_imagenet100_is_the_published_choice_among_the_sorted_ids() -> None:
    positions = imagenet100_classes()
    assert positions[:12] == [7, 11, 14, 44, 54, 62, 75, 77, 85, 105, 108, 123]
    assert positions[-5:] == [979, 988, 989, 990, 999]
    assert len(set(positions)) == 100
    np.random.seed(1993)
    assert positions == sorted(np.random.choice(1000, 100, replace=False).tolist())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_ranges_are_contiguous_and_complete(sizes: list[int]) -> None:
    ranges = task_ranges(sizes, sum(sizes))
    assert [len(classes) for classes in ranges] == sizes
    assert [label for classes in ranges for label in classes] == list(range(sum(sizes)))


@pytest.mark.parametrize("sizes", [[], [2, 2], [4, 2], [6, 0, -1], [0, 5]])
def test_sizes_that_do_not_fit_are_refused(sizes: list[int]) -> None:
    with pytest.raises(FlashbackError, match=rf"sum to {sum(sizes)}, but the dataset has 5 classes; give positive"):
        task_ranges(sizes, 5)
