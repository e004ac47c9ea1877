"""Two networks of one kind, mixed level by level: one keeps its filters, the other learns freely (AANets)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError
from flashback.nets.base import Backbone


class ScaledConv(nn.Module):
    """A convolution whose filters stand still; each pair of an output and an input channel has a trained scale."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        conv.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.conv._conv_forward(x, self.scale * self.conv.weight, self.conv.bias)
        return maps


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
    """Its weights stand still from now on: scales of the filters are trained in their place, norms and biases go on."""
    for module in list(backbone.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad:
                setattr(module, name, ScaledConv(layer))
            elif isinstance(layer, nn.Linear):  # a scale for each of its pairs would be as free as its weights
                layer.weight.requires_grad_(False)
    return backbone
