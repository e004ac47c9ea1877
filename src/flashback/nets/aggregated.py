"""Two networks of one kind, mixed level by level: one keeps its filters, the other learns freely (AANets)."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flashback.errors import FlashbackError
from flashback.nets.base import Backbone


class FilterScale(nn.Module):
    """One number for every pair of an output and an input channel, by which its filter is multiplied."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones_like(weight[:, :, :1, :1]))

    def forward(self, weight: Tensor) -> Tensor:
        return self.scale * weight


class Aggregated(Backbone):
    """Both start as the given network; level l gives w_l * stable + (1 - w_l) * plastic (Liu et al. 2021).

    The features are means over space, so that mixing the last maps mixes what is pooled of them. The weights w are a
    buffer: no stage trains them, the host learns them apart.
    """

    mix: Tensor  # w_l of every level

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.width, self.takes_parts = backbone.width, backbone.takes_parts
        self.stable = with_scaled_filters(copy.deepcopy(backbone))
        self.plastic = copy.deepcopy(backbone)
        self.pairs = list(zip(self.stable.levels(), self.plastic.levels(), strict=True))
        self.register_buffer("mix", torch.full((len(self.pairs),), 0.5))
        self.hold()

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].mean((2, 3))

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        maps: list[Tensor] = []
        for (stable, plastic), share in zip(self.pairs, self.mix.unbind(), strict=True):
            x = share * stable(x) + (1 - share) * plastic(x)
            maps.append(x)
        return maps

    def last_stage_layers(self) -> dict[str, nn.Module]:
        raise FlashbackError("CKA compares networks with one backbone, and this one has each layer twice")


def with_scaled_filters(backbone: Backbone) -> Backbone:
    """Its filters stand still from now on; their scales are trained in their place."""
    for layer in list(backbone.modules()):
        if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad:
            parametrize.register_parametrization(layer, "weight", FilterScale(layer.weight))
            cast(Any, layer).parametrizations.weight.original.requires_grad_(False)
    return backbone
