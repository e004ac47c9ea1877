from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from flashback.hosts.replay import balanced_quotas
from flashback.memory import first_of_each_class


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_balanced_quotas_of_the_third_cifar100_task() -> None:
    assert balanced_quotas(2000, 20, 10, generator()) == [66] * 20 + [68] * 10


@given(st.integers(0, 30), st.integers(1, 12), st.integers(0, 300), st.integers(0, 99))
def test_balanced_quotas_fill_the_memory(old: int, new: int, spare: int, seed: int) -> None:
    capacity = old + new + spare
    quotas = balanced_quotas(capacity, old, new, generator(seed))
    assert sum(quotas) == capacity
    assert quotas[:old] == [capacity // (old + new)] * old
    assert max(quotas[old:]) - min(quotas[old:]) <= 1


def test_the_remainder_goes_to_random_classes() -> None:
    winners = {tuple(balanced_quotas(10, 0, 4, generator(seed))) for seed in range(60)}
    assert len(winners) == 6  # every way to give 2 of 4 classes one more
    assert balanced_quotas(10, 0, 4, generator(1)) == balanced_quotas(10, 0, 4, generator(1))


@given(st.lists(st.integers(0, 4), max_size=20), st.lists(st.integers(0, 4), max_size=4))
def test_first_of_each_class(labels: list[int], quotas: list[int]) -> None:
    left, expected = list(quotas), []
    for position, label in enumerate(labels):
        if label < len(left) and left[label]:
            left[label] -= 1
            expected.append(position)
    assert first_of_each_class(torch.tensor(labels, dtype=torch.int64), quotas).tolist() == expected
