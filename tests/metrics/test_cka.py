from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashback.errors import FlashbackError
from flashback.metrics import LinearCKA, linear_cka


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def rotation(d: int) -> Tensor:
    return torch.linalg.qr(made(d, d, seed=9))[0]


def by_definition(x: Tensor, y: Tensor) -> float:
    """Through the centring matrix and the two Gram matrices."""
    n = len(x)
    h = torch.eye(n, dtype=torch.float64) - 1 / n

    def hsic(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
        return torch.trace(k @ h @ l @ h)

    k, l = x @ x.T, y @ y.T  # noqa: E741
    return float(hsic(k, l) / (hsic(k, k) * hsic(l, l)).sqrt())


SHAPES = [(20, 4, 3), (6, 9, 3), (6, 3, 9), (8, 8, 8)]


@pytest.mark.parametrize(("n", "p", "q"), SHAPES)
def test_direct_form_is_the_definition(n: int, p: int, q: int) -> None:
    x, y = made(n, p), made(n, q, seed=1)
    assert linear_cka(x, y) == pytest.approx(by_definition(x, y), rel=1e-9)
    assert linear_cka(y, x) == pytest.approx(linear_cka(x, y), rel=1e-9)
    assert 0 < linear_cka(x, y) < 1


@pytest.mark.parametrize(("n", "p"), [(30, 5), (6, 12)])
def test_invariances(n: int, p: int) -> None:
    x, y = made(n, p), made(n, p, seed=1)
    assert linear_cka(x, x) == pytest.approx(1)
    assert linear_cka(x, -3 * x @ rotation(p) + 7) == pytest.approx(1)
    assert linear_cka(x @ rotation(p), 0.1 * y) == pytest.approx(linear_cka(x, y))
    stretch = torch.ones(p, dtype=torch.float64)
    stretch[0] = 20
    assert linear_cka(x, x * stretch) < 0.9  # invertible and linear, but not a rotation


@pytest.mark.parametrize(("n", "p", "q"), [*SHAPES, (50, 2, 3)])
@pytest.mark.parametrize("batch", [1, 4, 7])
def test_streaming_equals_direct(n: int, p: int, q: int, batch: int) -> None:
    x, y, stream = made(n, p), made(n, q, seed=1), LinearCKA()
    for rows in zip(x.split(batch), y.split(batch), strict=True):
        stream.update(*rows)
    assert stream.value() == pytest.approx(linear_cka(x, y), rel=1e-9)


def test_streaming_keeps_the_smaller_of_rows_and_moments() -> None:
    few, many = LinearCKA(), LinearCKA()
    for seed in range(10):
        few.update(made(2, 40, seed=seed), made(2, 40, seed=seed + 50))
        many.update(made(20, 4, seed=seed), made(20, 4, seed=seed + 50))
    assert few._moments is None
    assert not many._rows


def test_feature_maps_are_flattened() -> None:
    x, y = made(8, 2, 3, 3).float(), made(8, 5, seed=1).float()
    assert linear_cka(x, y) == pytest.approx(linear_cka(x.reshape(8, 18), y))


def test_bad_input_is_refused() -> None:
    with pytest.raises(FlashbackError, match="same images"):
        linear_cka(made(3, 2), made(4, 2))
    with pytest.raises(FlashbackError, match="needs images"):
        LinearCKA().value()
