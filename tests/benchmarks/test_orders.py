from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flashback import configure
from flashback.benchmarks import class_order, imagenet100_classes, load_benchmark
from flashback.benchmarks.splits import task_ranges
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
    benchmark = load_benchmark(path, sizes=[2, 4], order="seed", seed=seed)
    same = load_benchmark(path, sizes=[2, 4], order=seed, seed=seed + 1)
    assert benchmark.order == same.order
    assert benchmark.tasks[1].train.x.equal(same.tasks[1].train.x)
    assert load_benchmark(path, sizes=[2, 4], order="identity", seed=seed).order == tuple(range(6))


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1], r"has 2 of 3 classes; it lacks label 2$"),
        ([], r"has 0 of 3 classes; it lacks label 0 and 2 more$"),
        ([0, 1, 1], r"names label 1 twice"),
        ([0, 1, 2, 3], r"has the label 3; labels go from 0 to 2"),
        ([0, 1.5, 2], r"has the label 1\.5; labels go from 0 to 2"),
    ],
)
def test_an_order_that_is_no_permutation_is_refused(order: list[int], message: str) -> None:
    with pytest.raises(FlashbackError, match=message):
        class_order(order, 3)


NAMES = ("shirt", "bag", "ankle boot")


@pytest.mark.parametrize("order", [["bag", "ankle boot", "shirt"], ["bag", 2, "shirt"], [1, 2, 0]])
def test_class_names_give_the_order_of_their_labels(order: list[int | str]) -> None:
    assert class_order(order, 3, class_names=NAMES) == (1, 2, 0)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (["shrit", "bag", "ankle boot"], r"^unknown class in benchmark\.order 'shrit'; did you mean 'shirt'\?$"),
        (["shirt", "bag"], r"lacks 'ankle boot' \(label 2\)$"),
        (["shirt", "bag", "bag"], r"names 'bag' \(label 1\) twice; name each class once$"),
        (["shirt", 0, "bag"], r"names 'shirt' \(label 0\) twice"),
    ],
)
def test_wrong_class_names_are_refused(order: list[int | str], message: str) -> None:
    with pytest.raises(FlashbackError, match=message):
        class_order(order, 3, class_names=NAMES)


def test_a_name_of_two_classes_is_refused() -> None:
    with pytest.raises(FlashbackError, match="labels 0 and 2 are both named 'crane'; order the classes by label"):
        class_order(["crane", "bag", "crane"], 3, class_names=("crane", "bag", "crane"))


def reversed_names(path: Path | str) -> tuple[list[str], list[int]]:
    names = load_benchmark(path, sizes=[2, 4], labels_only=True).class_names
    return list(names)[::-1], list(range(6))[::-1]


@pytest.mark.parametrize("source", ["npz", "folder"])
def test_a_configuration_with_names_equals_one_with_labels(npz: Callable, tmp_path: Path, source: str) -> None:
    path = npz(class_names=["f", "e", "d", "c", "b", "a"])
    if source == "folder":
        path = tmp_path / "pictures"
        for part, name in product(("train", "test"), "badcfe"):
            (path / part / name).mkdir(parents=True)
            Image.new("RGB", (4, 4)).save(path / part / name / "one.png")
    names, labels = reversed_names(path)
    by_name, by_label = (
        configure("finetune", str(path), settings={"benchmark.sizes": 2, "benchmark.order": order})
        for order in (names, labels)
    )
    assert by_name == by_label
    assert by_name.benchmark.order == tuple(labels)
    first, second = (load_benchmark(path, sizes=[2, 4], order=order) for order in (names, labels))
    assert first.order == second.order
    assert first.class_names == second.class_names == tuple(names)
    assert torch.equal(first.tasks[0].train.x[:], second.tasks[0].train.x[:])


def test_a_named_benchmark_is_ordered_by_its_class_names() -> None:
    names = load_benchmark("split-fashion-mini").class_names[::-1]
    config = configure("finetune", settings={"benchmark.order": list(names)})
    assert config.benchmark.order == tuple(range(10))[::-1]
    with pytest.raises(FlashbackError, match="did you mean 'sneaker'"):
        configure("finetune", settings={"benchmark.order": ["sneakers", *names[1:]]})


@pytest.mark.parametrize("order", ["alphabetical", "", -1, "4294967296"])
def test_an_unknown_order_is_refused(order: str | int) -> None:
    with pytest.raises(FlashbackError, match=f"class order '{order}' is unknown; give 'identity', a seed"):
        class_order(order, 3)


@pytest.mark.parametrize("letter", ["a", "1"])
def test_a_long_order_is_shortened_in_the_message(letter: str) -> None:
    with pytest.raises(FlashbackError, match=rf"class order '{letter}+\.\.\.' is unknown") as caught:
        class_order(letter * 100_000, 3)
    assert len(str(caught.value)) < 400


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
