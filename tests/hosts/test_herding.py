"""Herding against the greedy rule written out."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashback.hosts import exemplars
from flashback.hosts.exemplars import class_means, herd_classes
from helpers import herd


def made(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)) + 1


def mean_distance(features: Tensor, rows: list[int]) -> float:
    return float((features.mean(0) - features[rows].mean(0)).norm())


def greedy(features: Tensor, quota: int) -> list[int]:
    features, selection = features.double(), []
    while len(selection) < min(quota, len(features)):
        free = [j for j in range(len(features)) if j not in selection]
        selection.append(min(free, key=lambda j: mean_distance(features, [*selection, j])))
    return selection


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 14), st.integers(0, 999))
def test_every_pick_is_the_best_one_left(n: int, d: int, quota: int, seed: int) -> None:
    features = made(n, d, seed).double()
    selection = herd(features, quota).tolist()
    assert len(set(selection)) == len(selection) == min(quota, n)
    for step, pick in enumerate(selection):
        before = selection[:step]
        distances = {j: mean_distance(features, [*before, j]) for j in range(n) if j not in before}
        assert distances[pick] <= min(distances.values()) + 1e-12


def test_first_pick_is_nearest_to_the_mean_and_prefixes_agree() -> None:
    features = made(30, 4)
    order = herd(features, 30)
    assert order[0] == (features - features.mean(0)).norm(dim=1).argmin()
    for quota in (1, 7, 29):
        assert torch.equal(herd(features, quota), order[:quota])


def test_normalised_herding_looks_at_directions_only() -> None:
    features = made(20, 3)
    stretched = features * torch.rand(20, 1, generator=torch.Generator().manual_seed(1)).add(0.1) * 9
    assert torch.equal(herd(stretched, 10, normalise=True), herd(features, 10, normalise=True))
    assert not torch.equal(herd(stretched, 10), herd(features, 10))
    unit = torch.nn.functional.normalize(features.double(), dim=1)
    assert herd(features, 10, normalise=True).tolist() == greedy(unit, 10)


def test_of_duplicates_the_first_is_taken() -> None:
    features = made(5, 37).repeat(3, 1)
    order = herd(features, 15).tolist()
    for j in range(5):
        copies = [position for position in order if position % 5 == j]
        assert copies == sorted(copies)


def test_classes_together_equal_each_alone() -> None:
    equal = torch.stack([made(12, 4, seed) for seed in range(3)])
    for together, alone in zip(herd_classes(equal, 5), equal, strict=True):
        assert torch.equal(together, herd(alone, 5))
    unequal = [made(3, 4, 1), made(9, 4, 2), made(0, 4), made(6, 4, 3)]
    result = herd_classes(unequal, 7, normalise=True)
    assert [len(order) for order in result] == [3, 7, 0, 6]
    for together, alone in zip(result, unequal, strict=True):
        assert torch.equal(together, herd(alone, 7, normalise=True))
    assert herd_classes([], 5) == []
    assert herd(made(4, 2), 0).tolist() == []


def test_class_means() -> None:
    features, labels = made(10, 3), torch.tensor([0, 2, 2, 0, 5, 2, 0, 0, 2, 2])
    means = class_means(features, labels, 4)  # label 5 is not asked for
    assert means.dtype == features.dtype
    torch.testing.assert_close(means[0], features[labels == 0].mean(0))
    torch.testing.assert_close(means[2], features[labels == 2].mean(0))
    assert not means[[1, 3]].any()


def test_normalised_class_means() -> None:
    features, labels = made(6, 3), torch.tensor([0, 0, 0, 1, 1, 1])
    means = class_means(features, labels, 2, normalise=True)
    mean = (features[:3] / features[:3].norm(dim=1, keepdim=True)).mean(0)
    torch.testing.assert_close(means[0], mean / mean.norm())
    torch.testing.assert_close(means.norm(dim=1), torch.ones(2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_herding_a_task_is_quick_on_a_gpu() -> None:
    features = torch.stack([made(500, 512, seed) for seed in range(10)])
    on_device = features.cuda()
    seconds = []
    for _ in range(4):  # the best counts: the first one starts CUDA, and others may share the machine
        start = time.perf_counter()
        orders = herd_classes(on_device, 500)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3
    assert torch.equal(orders[0].cpu(), herd(features[0], 500))


def test_one_large_class_does_not_make_the_others_large(monkeypatch: pytest.MonkeyPatch) -> None:
    padded: list[int] = []

    def pad(rows: list[Tensor], batch_first: bool) -> Tensor:
        padded.append(len(rows) * max(map(len, rows)))
        return pad_sequence(rows, batch_first)

    monkeypatch.setattr(exemplars, "pad_sequence", pad)
    features = [made(n, 3, seed) for seed, n in enumerate((5, 300, 4, 0, 7, 290, 1))]
    together = herd_classes(features, 6)
    assert sum(padded) < 2 * sum(map(len, features))
    for selected, rows in zip(together, features, strict=True):
        assert selected.tolist() == greedy(rows, 6)


def test_the_padding_of_a_small_class_is_never_chosen() -> None:
    small = torch.tensor([[2.0], [-2.0]])  # zero, the padding, would be nearest to its mean
    large = torch.tensor([[5.0], [1.0], [4.0], [2.0]])
    rankings = herd_classes([small, large], 4)
    assert [ranking.tolist() for ranking in rankings] == [herd(small, 4).tolist(), herd(large, 4).tolist()]
    assert sorted(rankings[0].tolist()) == [0, 1]
