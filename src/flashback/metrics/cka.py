"""Linear centred kernel alignment (CKA, Kornblith et al., 2019): how similar two representations of images are.

Inputs are [n, ...] and are flattened to [n, features]. CKA is 1 for representations equal up to rotation and scale.
"""

import torch
from torch import Tensor

from flashback.errors import require


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

    It stores the rows [x ; y] while they are smaller than their second moments, then the moments only.
    """

    def __init__(self) -> None:
        self._rows: list[Tensor] = []
        self._moments: tuple[Tensor, Tensor] | None = None  # sums and sums of products, centred at the end
        self._count = self._width = 0  # of images, and of the features in x

    @torch.no_grad()
    def update(self, x: Tensor, y: Tensor) -> None:
        rows = torch.cat(_flat(x, y), dim=1)
        self._rows.append(rows)
        features = rows.shape[1]
        self._count, self._width = self._count + len(rows), features - y[0].numel()
        if self._count > features:
            self._moments = self._moments or (rows.new_zeros(features), rows.new_zeros(features, features))
            for stored in self._rows:
                self._moments[0].add_(stored.sum(0))
                self._moments[1].addmm_(stored.T, stored)
            self._rows.clear()

    def value(self) -> float:
        require(self._count > 0, "CKA needs images; call update first")
        p = self._width
        if self._moments is None:
            rows = torch.cat(self._rows)
            return linear_cka(rows[:, :p], rows[:, p:])
        sums, products = self._moments
        centred = products - torch.outer(sums, sums) / self._count
        return _ratio(*(block.square().sum() for block in (centred[p:, :p], centred[:p, :p], centred[p:, p:])))


def _flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    require(len(x) == len(y), f"CKA compares representations of the same images, not of {len(x)} and {len(y)} images")
    return x.detach().flatten(1).double(), y.detach().flatten(1).double()


def _ratio(xy: Tensor, xx: Tensor, yy: Tensor) -> float:
    return float(xy / (xx * yy).sqrt())
