"""Backbones from timm, an optional package: `timm:MODEL[:pretrained][:cls]`."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from flashback.errors import FlashbackError, import_extra, unknown
from flashback.nets.base import Backbone, Shape

OPTIONS = ("pretrained", "cls")


class TimmBackbone(Backbone):
    """A timm model without its head; images are resized to its input size and outputs averaged to one vector."""

    def __init__(self, model: Any, class_token: bool) -> None:
        super().__init__()
        if class_token and getattr(model, "cls_token", None) is None:
            raise FlashbackError("this timm model has no class token; leave out ':cls' to average its outputs")
        self.model = model
        self.width = model.num_features
        self.size = tuple(model.pretrained_cfg["input_size"][-2:])
        self.class_token = class_token

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != self.size:
            x = F.interpolate(x, size=self.size, mode="bicubic", align_corners=False)
        out: Tensor = self.model.forward_features(x)
        if self.class_token:
            return out[:, 0]
        # Tokens are [B, N, width], the class token among them; maps are [B, width, h, w] or [B, h, w, width].
        if out.ndim == 3 or out.shape[1] != self.width:
            return out.flatten(1, -2).mean(1)
        return out.flatten(2).mean(2)

    def last_stage_layers(self) -> dict[str, nn.Module]:
        blocks = getattr(self.model, "blocks", None)
        if blocks is None:
            raise FlashbackError("CKA needs a network with known layers; choose a timm vision transformer or a ResNet")
        last = list(blocks.children())[-4:]
        return {f"block{len(blocks) - len(last) + index}": block for index, block in enumerate(last, start=1)}


def timm_backbone(spec: str, image_shape: Shape) -> TimmBackbone:
    """Build `MODEL[:pretrained][:cls]`: with weights from the hub, with the class token as features."""
    timm = import_extra("timm", "timm", f"the net 'timm:{spec}' needs the package timm")
    name, *options = spec.split(":")
    for option in options:
        if option not in OPTIONS:
            raise unknown("timm option", option, OPTIONS)
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    model = timm.create_model(name, pretrained="pretrained" in options, num_classes=0, in_chans=image_shape[0])
    backbone = TimmBackbone(model, class_token="cls" in options)
    if "pretrained" in options:
        backbone.normalisation = pretrained_normalisation(model, image_shape[0])
    return backbone


def pretrained_normalisation(model: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation that the weights expect; averaged over channels for grey images, as timm does."""
    mean, std = (tuple(map(float, model.pretrained_cfg[key])) for key in ("mean", "std"))
    return (mean, std) if channels == len(mean) else ((fmean(mean),) * channels, (fmean(std),) * channels)
