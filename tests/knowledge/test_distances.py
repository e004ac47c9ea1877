"""The distances to knowledge, against slow loops."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from flashback.knowledge import cosine_distance, soft_binary_cross_entropy, soft_cross_entropy, squared_error


@pytest.fixture
def pair() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(5, 4, generator=generator).double(), torch.randn(5, 4, generator=generator).double()


def test_soft_binary_cross_entropy(pair: tuple[Tensor, Tensor]) -> None:
    logits, targets = pair[0], pair[1].sigmoid()
    slow = [
        -(t * math.log(1 / (1 + math.exp(-z))) + (1 - t) * math.log(1 - 1 / (1 + math.exp(-z))))
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True)
        for z, t in zip(row, target, strict=True)
    ]
    assert float(soft_binary_cross_entropy(logits, targets)) == pytest.approx(sum(slow) / len(slow))


@pytest.mark.parametrize("tau", [1.0, 2.0, 0.5])
def test_soft_cross_entropy(pair: tuple[Tensor, Tensor], tau: float) -> None:
    slow = 0.0
    for student, teacher in zip(*(tensor.tolist() for tensor in pair), strict=True):
        below = [sum(math.exp(z / tau) for z in row) for row in (student, teacher)]
        slow -= sum(
            math.exp(t / tau) / below[1] * math.log(math.exp(s / tau) / below[0])
            for s, t in zip(student, teacher, strict=True)
        )
    assert float(soft_cross_entropy(*pair, tau)) == pytest.approx(slow / 5)


def test_cosine_distance(pair: tuple[Tensor, Tensor]) -> None:
    slow = [
        1 - sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
        for one, other in zip(pair[0].tolist(), pair[1].tolist(), strict=True)
    ]
    assert float(cosine_distance(*pair)) == pytest.approx(sum(slow) / 5)
    assert float(cosine_distance(pair[0], 3 * pair[0])) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("counted", [None, [True, False, True, True, False], [False] * 5])
def test_squared_error(pair: tuple[Tensor, Tensor], counted: list[bool] | None) -> None:
    rows = [
        sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / 4
        for one, other in zip(pair[0].tolist(), pair[1].tolist(), strict=True)
    ]
    rows_with_target = [row for k, row in enumerate(rows) if counted is None or counted[k]]
    mask = None if counted is None else torch.tensor(counted)
    assert float(squared_error(*pair, mask)) == pytest.approx(sum(rows_with_target) / max(1, len(rows_with_target)))
