"""Several backbones as one network: lateral connections (P&C), mixed levels (AANets) and sums (CAF)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.errors import FlashbackError
from flashback.nets.base import Backbone, Frozen, Net, Output, full_precision
from flashback.nets.splitting import split_pass

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

    def column_features(self, x: Tensor) -> Tensor:
        others = self.other_maps(x)
        for level, lateral, other in zip(self.backbone.levels(), self.laterals, others, strict=True):
            x = level(x) + lateral(other)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Output:
        features = split_pass(self.column_features, x).float()
        with full_precision(features):
            return Output(features, self.head(features))


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


class ParallelBackbone(Backbone):
    """Backbones of one kind in parallel; the features are the sum over all of them."""

    def __init__(self, learners: Sequence[Backbone]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)
        self.width = learners[0].width
        self.supports_joint_forward = learners[0].supports_joint_forward
        self.keep_frozen()

    def forward(self, x: Tensor) -> Tensor:
        return self.separate_features(x).sum(dim=1)

    def separate_features(self, x: Tensor) -> Tensor:
        return torch.stack([learner(x) for learner in self.learners], dim=1)  # [B, learners, width]


@dataclass
class ParallelOutput(Output):
    separate: Tensor  # the logits of each learner alone, [B, learners, classes]


class ParallelNet(Net):
    """Parallel backbones and one head, which is also applied to the features of each backbone alone."""

    backbone: ParallelBackbone

    def forward(self, x: Tensor) -> ParallelOutput:
        separate = self.backbone.separate_features(x).float()
        features = separate.sum(dim=1)
        with full_precision(separate):
            return ParallelOutput(features, self.head(features), self.head(separate))
