"""A network beside a frozen one, whose maps it reads level by level (Progress & Compress)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import full_precision
from flashback.nets.modes import Frozen

LARGEST_START = 0.1  # of alpha, by which the own network counts for more at first


class Lateral(nn.Module):
    """alpha * U relu(V k + c): what the maps k of another network give to one's own maps, by 1x1 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(channels, channels, 1)  # V and c
        self.outer = nn.Conv2d(channels, channels, 1, bias=False)  # U
        self.alpha = nn.Parameter(LARGEST_START * torch.rand(channels, 1, 1))

    def forward(self, maps: Tensor) -> Tensor:
        given: Tensor = self.alpha * self.outer(F.relu(self.inner(maps)))
        return given


class ActiveColumn(Net):
    """A network that gets, after each of its levels, what a frozen copy of another of its kind sees on that level."""

    def __init__(self, own: Net, other: Backbone, images: Tensor) -> None:
        """`images` are any that the networks can take: they tell how many channels each level has."""
        super().__init__(own.backbone, own.head)
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
