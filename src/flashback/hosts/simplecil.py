"""SimpleCIL (Zhou et al. 2023): the nearest class mean of frozen features, by the cosine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.hosts.base import HOSTS, one_hot
from flashback.hosts.frozen_features import FrozenFeatureHost, StatisticsHead, with_rows
from flashback.nets import full_precision


class PrototypeHead(StatisticsHead):
    """cos(features, class mean); the sum of a class has the direction of its mean."""

    sums: Tensor

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(classes, width, dtype=torch.float64))

    def add(self, features: Tensor, labels: Tensor) -> None:
        self.sums += one_hot(labels, slice(0, len(self.sums)), self.sums.dtype).T @ features.double()

    def grow(self, classes: int) -> None:
        self.sums = with_rows(self.sums, classes)

    def forward(self, features: Tensor) -> Tensor:
        with full_precision(features):
            return (F.normalize(features.double()) @ F.normalize(self.sums).T).float()


@HOSTS.register("simplecil")
class SimpleCIL(FrozenFeatureHost):
    """Predicts the class whose mean feature has the smallest angle; the backbone is frozen, so nothing is trained."""

    accumulates_structure = False

    def new_head(self, width: int, classes: int) -> PrototypeHead:
        return PrototypeHead(width, classes)
