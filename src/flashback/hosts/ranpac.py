"""RanPAC (McDonnell et al. 2023): ridge regression on a random projection of frozen features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.config import Count, HostSettings, Positive
from flashback.errors import FlashbackError
from flashback.hosts.base import HOSTS, one_hot
from flashback.hosts.frozen_features import FrozenFeatureHost, StatisticsHead, with_rows
from flashback.nets import full_precision
from flashback.seeds import seeded_generator

RIDGES = [10.0**power for power in range(-8, 9)]  # the candidates of `ridge: null`
HELD_OUT = 5  # one in this many images is held out to choose the ridge


@dataclass(frozen=True)
class RanPACSettings(HostSettings):
    projection: Count = 2000  # M, the random features; the paper has 10,000
    ridge: Positive | None = None  # lambda; None: chosen at every task on a fifth of its training images


class RidgeHead(StatisticsHead):
    """Logits relu(f P) W with the ridge regression W = (G + ridge I)^-1 C, G = sum h h^T, C = sum h y^T, h = relu(f P).

    P is random and fixed. `sums` is C transposed and `weight` is W transposed: a row for each class.
    """

    projection: Tensor
    gram: Tensor
    sums: Tensor
    weight: Tensor
    ridge: Tensor

    def __init__(self, width: int, classes: int, size: int, ridge: float) -> None:
        super().__init__()
        self.register_buffer("projection", torch.randn(width, size))
        self.register_buffer("gram", torch.zeros(size, size, dtype=torch.float64))
        self.register_buffer("sums", torch.zeros(classes, size, dtype=torch.float64))
        self.register_buffer("weight", torch.zeros(classes, size, dtype=torch.float64))
        self.register_buffer("ridge", torch.tensor(ridge, dtype=torch.float64))

    def project(self, features: Tensor) -> Tensor:
        return F.relu(features.double() @ self.projection.double())

    def one_hot(self, labels: Tensor) -> Tensor:
        return one_hot(labels, slice(0, len(self.sums)), self.sums.dtype)

    def add(self, features: Tensor, labels: Tensor) -> None:
        projected = self.project(features)
        self.gram += projected.T @ projected
        self.sums += self.one_hot(labels).T @ projected

    def grow(self, classes: int) -> None:
        self.sums, self.weight = with_rows(self.sums, classes), with_rows(self.weight, classes)

    def solve(self, ridge: float) -> Tensor | None:
        """Return the weight [classes, M] for a ridge, or None if it is too small for the Gram matrix."""
        regularised = self.gram + ridge * torch.eye(len(self.gram), dtype=self.gram.dtype, device=self.gram.device)
        factor, info = torch.linalg.cholesky_ex(regularised)
        return torch.cholesky_solve(self.sums.T, factor).T if int(info) == 0 else None

    def forward(self, features: Tensor) -> Tensor:
        with full_precision(features):
            return (self.project(features) @ self.weight.T).float()


@HOSTS.register("ranpac")
class RanPAC(FrozenFeatureHost):
    """Ridge regression on random ReLU features of a frozen backbone, as exact as if all tasks were learned at once.

    This is the second phase of the paper, without the adapters that its first phase trains in the first task.
    """

    Settings = RanPACSettings
    accumulates_structure = False

    def new_head(self, width: int, classes: int) -> RidgeHead:
        return RidgeHead(width, classes, self.settings.projection, self.settings.ridge or 1.0)

    @property
    def head(self) -> RidgeHead:
        return cast(RidgeHead, self.net.head)

    @torch.no_grad()
    def end(self) -> None:
        """Add the images of the task and solve. The held-out ones choose the ridge before they are added."""
        generator = seeded_generator(self.config.seed, self.task.index, "held-out images")
        rows = torch.randperm(len(self.task.train), generator=generator)
        held_out = 0 if self.settings.ridge else len(rows) // HELD_OUT
        self.add(rows[held_out:].sort().values)
        if held_out:
            self.head.ridge.fill_(self.best_ridge(rows[:held_out]))
            self.add(rows[:held_out])
        weight = self.head.solve(float(self.head.ridge))
        if weight is None:
            raise FlashbackError(f"the regression has no solution with host.ridge={float(self.head.ridge):g}; raise it")
        self.head.weight.copy_(weight)

    def best_ridge(self, rows: Tensor) -> float:
        """Return the ridge with the smallest squared error on these images (Appendix F of McDonnell et al.)."""
        pieces = [self.features_and_labels(piece) for piece in self.pieces(rows)]
        projected = self.head.project(torch.cat([features for features, _ in pieces]))
        targets = self.head.one_hot(torch.cat([labels for _, labels in pieces]))
        errors: dict[float, float] = {}
        for ridge in RIDGES:
            weight = self.head.solve(ridge)
            if weight is not None:
                errors[ridge] = float((projected @ weight.T - targets).square().sum())
        return min(errors, key=errors.__getitem__, default=RIDGES[-1])
