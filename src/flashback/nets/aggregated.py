"""Two networks of one kind, mixed level by level: a stable one with fixed filters and a plastic one (AANets)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError
from flashback.nets.base import Backbone


class ScaledConv(nn.Module):
    """A convolution with fixed filters and a trained scale for each pair of output and input channels."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        conv.weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones_like(conv.weight[:, :, :1, :1]))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.conv._conv_forward(x, self.scale * self.conv.weight, self.conv.bias)
        return maps


class AggregatedBackbone(Backbone):
    """Two copies of a backbone; level l outputs w_l * stable + (1 - w_l) * plastic (Liu et al. 2021).

    The features are the spatial mean of the last maps. The weights w are a buffer: the host optimises them separately
    from all other parameters.
    """

    mix: Tensor  # w_l of each level

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.width, self.supports_joint_forward = backbone.width, backbone.supports_joint_forward
        self.stable = with_scaled_filters(copy.deepcopy(backbone))
        self.plastic = copy.deepcopy(backbone)
        self.pairs = list(zip(self.stable.levels(), self.plastic.levels(), strict=True))
        self.register_buffer("mix", torch.full((len(self.pairs),), 0.5))
        self.keep_frozen()

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].mean((2, 3))

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        maps: list[Tensor] = []
        for (stable, plastic), share in zip(self.pairs, self.mix.unbind(), strict=True):
            x = share * stable(x) + (1 - share) * plastic(x)
            maps.append(x)
        return maps

    def last_stage_layers(self) -> dict[str, nn.Module]:
        raise FlashbackError("CKA compares networks with one backbone, but this one has two; choose another host")


def with_scaled_filters(backbone: Backbone) -> Backbone:
    """Replace trained weights by trained scales of fixed filters; norm layers and biases stay trainable."""
    for module in list(backbone.modules()):
        for name, layer in list(module.named_children()):
            if isinstance(layer, nn.Conv2d) and layer.weight.requires_grad:
                setattr(module, name, ScaledConv(layer))
            elif isinstance(layer, nn.Linear):  # one scale for each pair would be as flexible as the weights
                layer.weight.requires_grad_(False)
    return backbone
