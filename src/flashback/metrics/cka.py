"""Linear centred kernel alignment (CKA, Kornblith et al., 2019): how similar two representations of images are.

Inputs are [n, ...] and are flattened to [n, features]. CKA is 1 for representations equal up to rotation and scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashback.errors import FlashbackError, require


def linear_cka(x: Tensor, y: Tensor) -> float:
    """Linear CKA = |Y'X|^2 / (|X'X| |Y'Y|) with centred columns and Frobenius norms.

    Args:
        x: The representation of n images by one model, [n, ...].
        y: The representation of the same images by another model, [n, ...].

    Returns:
        A value from 0 to 1; NaN if a representation is constant.
    """
    x, y = _flat(x, y)
    x, y = x - x.mean(0), y - y.mean(0)
    if len(x) < max(x.shape[1], y.shape[1]):
        k, l = x @ x.T, y @ y.T  # noqa: E741 - the names of the two Gram matrices in the literature
        return _ratio((k * l).sum(), k.square().sum(), l.square().sum())
    return _ratio((y.T @ x).square().sum(), (x.T @ x).square().sum(), (y.T @ y).square().sum())


class LinearCKA:
    """`linear_cka` over batches, exact: without the bias of averaging minibatches.

    It stores the rows while they are smaller than the moments over features, then the moments only.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[Tensor, Tensor]] = []
        self._moments: _Moments | None = None

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor) -> None:
        x, y = _flat(x, y)
        p, q = x.shape[1], y.shape[1]
        if self._moments is not None:
            self._moments.add(x, y)
            return
        self._rows.append((x, y))
        if sum(len(rows) for rows, _ in self._rows) * (p + q) > p * p + q * q + p * q:
            self._moments = _Moments(x, y)
            for rows in self._rows:
                self._moments.add(*rows)
            self._rows.clear()

    def value(self) -> float:
        if self._moments is not None:
            return self._moments.cka()
        if not self._rows:
            raise FlashbackError("CKA needs images; call update first")
        return linear_cka(torch.cat([x for x, _ in self._rows]), torch.cat([y for _, y in self._rows]))


class _Moments:
    """Sums and sums of products of features in float64, centred at the end."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        p, q = x.shape[1], y.shape[1]
        self.n = 0
        self.x, self.y = x.new_zeros(p), x.new_zeros(q)
        self.xx, self.yy, self.yx = x.new_zeros(p, p), x.new_zeros(q, q), x.new_zeros(q, p)

    def add(self, x: Tensor, y: Tensor) -> None:
        self.n += len(x)
        self.x += x.sum(0)
        self.y += y.sum(0)
        self.xx.addmm_(x.T, x)
        self.yy.addmm_(y.T, y)
        self.yx.addmm_(y.T, x)

    def cka(self) -> float:
        def norm(product: Tensor, a: Tensor, b: Tensor) -> Tensor:
            return (product - torch.outer(a, b) / self.n).square().sum()

        return _ratio(norm(self.yx, self.y, self.x), norm(self.xx, self.x, self.x), norm(self.yy, self.y, self.y))


class MinibatchCKA:
    """CKA from unbiased minibatch estimates of HSIC (Nguyen et al., 2021), averaged before dividing.

    All batches must have the size of the first; a shorter one (the last) is ignored.
    """

    def __init__(self) -> None:
        self._size = 0
        self._sums: Tensor | None = None

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor) -> None:
        x, y = _flat(x, y)
        self._size = self._size or len(x)
        require(len(x) <= self._size, f"minibatch CKA needs batches of one size, not {self._size} and {len(x)}")
        if len(x) == self._size:
            k, l = x @ x.T, y @ y.T  # noqa: E741
            terms = torch.stack([hsic1(k, l), hsic1(k, k), hsic1(l, l)])
            self._sums = terms if self._sums is None else self._sums + terms

    def value(self) -> float:
        if self._sums is None:
            raise FlashbackError("CKA needs images; call update first")
        return _ratio(*self._sums)


def hsic1(k: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """The unbiased estimate of HSIC from two Gram matrices (Song et al., 2012)."""
    n = len(k)
    require(n >= 4, f"the unbiased HSIC needs batches of at least 4 images, not {n}")
    k, l = k - k.diag().diag(), l - l.diag().diag()  # noqa: E741
    trace = (k * l).sum()  # of the product of two symmetric matrices
    sums = k.sum() * l.sum() / ((n - 1) * (n - 2))
    return (trace + sums - 2 * (k.sum(0) @ l.sum(1)) / (n - 2)) / (n * (n - 3))


def _flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    require(len(x) == len(y), f"CKA compares representations of the same images, not of {len(x)} and {len(y)} images")
    return x.detach().flatten(1).double(), y.detach().flatten(1).double()


def _ratio(xy: Tensor, xx: Tensor, yy: Tensor) -> float:
    return float(xy / (xx * yy).sqrt())
