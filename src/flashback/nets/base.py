"""What every network is: a backbone that gives features, a head that turns them into logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from flashback.nets.heads import full_precision
from flashback.registry import Registry

Shape = tuple[int, int, int]
"""Channels, height and width of one image."""


@dataclass
class Output:
    """What one forward pass gives; a host's network may extend it."""

    features: Tensor
    logits: Tensor

    def split(self, sizes: list[int]) -> list[Self]:
        """One for each run of so many images."""
        values = (getattr(self, field.name) for field in fields(self))
        columns = [torch.split(value, sizes) if isinstance(value, Tensor) else [value] * len(sizes) for value in values]
        return [type(self)(*row) for row in zip(*columns, strict=True)]


class Backbone(nn.Module):
    """Images [B, C, H, W] in, features [B, width] out."""

    width: int
    takes_parts: bool = False  # whether nothing but `nets.BatchNorm2d` makes an answer depend on the rest of the batch
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # mean and deviation it was trained with
    held: frozenset[str] = frozenset()  # the parameters that its maker has frozen

    def let_train(self, trained: bool = True) -> Self:
        """Train all of it or nothing; what its maker has frozen stays so."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trained and name not in self.held)
        return self

    def last_stage_layers(self) -> dict[str, nn.Module]:
        """The layers whose outputs are compared by CKA, from the first to the last."""
        raise NotImplementedError


NETS: Registry[Callable[[Shape], Backbone]] = Registry("net")


def net_for(image_shape: Shape) -> str:
    """The net of a host that names none: one whose last maps are neither single pixels nor as large as the images."""
    side = min(image_shape[1:])
    return "smallcnn" if side < 32 else "resnet18" if side <= 64 else "resnet18-imagenet"


def build_backbone(name: str, image_shape: Shape) -> Backbone:
    """The registered backbone of that name, or timm's: `timm:MODEL[:pretrained][:cls]`."""
    if name.startswith("timm:"):
        from flashback.nets.pretrained import timm_backbone

        backbone: Backbone = timm_backbone(name.removeprefix("timm:"), image_shape)
    else:
        backbone = NETS[name](image_shape)
    backbone.held = frozenset(name for name, given in backbone.named_parameters() if not given.requires_grad)
    return backbone


class Net(nn.Module):
    """A backbone and a head. Autocast reaches the backbone only: features and logits are float32."""

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def forward(self, x: Tensor) -> Output:
        features = self.backbone(x).float()
        with full_precision(features):
            return Output(features, self.head(features))
