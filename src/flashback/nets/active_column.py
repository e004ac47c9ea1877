"""A network that reads the maps of a frozen one level by level (Progress & Compress)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.frozen import Frozen
from flashback.nets.heads import full_precision

LARGEST_INITIAL_ALPHA = 0.1  # small, so that the column itself dominates at first


class Lateral(nn.Module):
    """The lateral connection alpha * U relu(V k + c) from maps k of another network, by 1x1 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 1)  # V and c
        self.outer = nn.Conv2d(channels, channels, 1, bias=False)  # U
        self.alpha = nn.Parameter(LARGEST_INITIAL_ALPHA * torch.rand(channels, 1, 1))

    def forward(self, maps: Tensor) -> Tensor:
        lateral: Tensor = self.alpha * self.outer(F.relu(self.inner(maps)))
        return lateral


class ActiveColumn(Net):
    """A network that adds lateral connections from a frozen backbone of the same kind after each level."""

    def __init__(self, net: Net, other: Backbone, images: Tensor) -> None:
        """`images` is any valid batch; one pass over it finds the number of channels of each level."""
        super().__init__(net.backbone, net.head)
        self.other = Frozen(other)
        self.laterals = nn.ModuleList(Lateral(maps.shape[1]) for maps in self.other_maps(images))

    @torch.no_grad()
    def other_maps(self, x: Tensor) -> list[Tensor]:
        return self.other.module.stage_maps(x)

    def forward(self, x: Tensor) -> Output:
        others = self.other_maps(x)
        for level, lateral, other in zip(self.backbone.levels(), self.laterals, others, strict=True):
            x = level(x) + lateral(other)
        features = x.mean((2, 3)).float()
        with full_precision(features):
            return Output(features, self.head(features))
