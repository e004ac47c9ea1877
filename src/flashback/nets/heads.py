"""Classifier heads, always computed in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def full_precision(x: Tensor) -> torch.autocast:
    """Disable autocast on the device of a tensor."""
    return torch.autocast(x.device.type, enabled=False)


class LinearHead(nn.Linear):
    """A linear classifier with the default initialisation of PyTorch."""

    def forward(self, input: Tensor) -> Tensor:
        with full_precision(input):
            return super().forward(input.float())


class CosineHead(nn.Module):
    """sigma * cos(features, class vectors), no bias (LUCIR, eq. 3)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(classes, width).uniform_(-bound, bound))
        self.sigma = nn.Parameter(torch.ones(()))

    def cosines(self, features: Tensor) -> Tensor:
        """The logits before the scale."""
        with full_precision(features):
            return F.linear(F.normalize(features.float()), F.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        return self.sigma * self.cosines(features)


def grown_linear(old: nn.Linear | None, in_features: int, out_features: int) -> LinearHead:
    """Create a head (Kaiming-uniform with linear gain, zero bias) and copy the old rows, columns and biases into it."""
    new = LinearHead(in_features, out_features)
    bound = math.sqrt(3 / in_features)
    with torch.no_grad():
        new.weight.uniform_(-bound, bound)
        new.bias.zero_()
        if old is not None:
            new.to(old.weight.device)
            new.weight[: old.out_features, : old.in_features] = old.weight
            new.bias[: old.out_features] = old.bias
    return new
