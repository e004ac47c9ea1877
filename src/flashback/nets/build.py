"""Build a backbone by name, from timm or from a plain module, and check that it works on given images."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.errors import FlashbackError, import_extra, require, unknown
from flashback.nets.base import NETS, Backbone, Shape, evaluating


def net_for(image_shape: Shape) -> str:
    """The default network for images of this shape, used when a host names none."""
    side = min(image_shape[1:])
    return "smallcnn" if side < 32 else "resnet18" if side <= 64 else "resnet18-imagenet"


def build_backbone(name: str, image_shape: Shape, width: float = 1.0) -> Backbone:
    """Build a backbone for images of a given shape.

    Args:
        name: A name in `NETS`, or a timm model as `timm:MODEL[:pretrained][:cls]`.
        image_shape: Channels, height and width of an image.
        width: Factor on the number of channels of every layer, for networks that support it.

    Returns:
        The backbone, freshly initialised.

    Raises:
        FlashbackError: If the name is unknown, the network has a fixed width, or it does not return features of
            shape [B, width] for such images.
    """
    if width != 1:
        check_width(name)
    if name.startswith("timm:"):
        backbone: Backbone = timm_backbone(name.removeprefix("timm:"), image_shape)
    else:
        backbone = NETS[name](image_shape, **({} if width == 1 else {"width": width}))
    check_backbone(backbone, name, image_shape)
    return backbone.keep_frozen()


def check_width(name: str) -> None:
    if name.startswith("timm:") or not _has_width(NETS[name]):
        others = ", ".join(known for known in NETS if _has_width(NETS[known]))
        raise FlashbackError(f"the net '{name}' has a fixed width; choose one of {others}, or leave its width at 1")


def _has_width(build: Callable[..., Backbone]) -> bool:
    return "width" in inspect.signature(build).parameters


def check_backbone(backbone: object, name: str, image_shape: Shape) -> None:
    """Refuse an object that is not a Backbone, or does not return [2, width] for two blank images."""
    if not isinstance(backbone, Backbone):
        raise FlashbackError(
            f"the net '{name}' is a {type(backbone).__name__}; let its class inherit from flashback.Backbone"
        )
    width = getattr(backbone, "width", None)
    if type(width) is not int or width < 1:
        raise FlashbackError(f"the net '{name}' has width {width!r}; set `width` to its number of features, 1 or more")
    shape = _shape_of_features(backbone, image_shape)
    if shape != [2, width]:
        raise FlashbackError(f"the net '{name}' returns {shape} for two images; it must return features [2, {width}]")


def _shape_of_features(module: nn.Module, image_shape: Shape) -> list[int] | str:
    """The shape of what a module returns for two blank images, or the name of its type if it is no tensor."""
    device = next((parameter.device for parameter in module.parameters()), None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(module):
        features = module(torch.zeros(2, *image_shape, device=device))
    return list(features.shape) if isinstance(features, Tensor) else type(features).__name__


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


class ModuleBackbone(Backbone):
    """A plain module as a backbone."""

    def __init__(self, module: nn.Module, width: int) -> None:
        super().__init__()
        self.module, self.width = module, width

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.module(x)
        return features


class ModuleNets:
    """Makes backbones from one module: the first keeps its weights, later ones are initialised again."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.name = copy.deepcopy(module).cpu(), f"module:{type(module).__name__}"
        self.is_first = True

    def __call__(self, image_shape: Shape, width: float = 1.0) -> Backbone:
        require(width == 1, f"the net '{self.name}' has one width only; leave host.width at 1")
        module = copy.deepcopy(self.module)
        if not self.is_first:
            self.reinitialise(module)
        self.is_first = False
        backbone = module if isinstance(module, Backbone) else ModuleBackbone(module, self.feature_width(image_shape))
        check_backbone(backbone, self.name, image_shape)
        return backbone.keep_frozen()

    def feature_width(self, image_shape: Shape) -> int:
        shape = _shape_of_features(self.module, image_shape)
        if isinstance(shape, str) or len(shape) != 2 or shape[0] != 2:
            raise FlashbackError(
                f"the net '{self.name}' must map images [n, {', '.join(map(str, image_shape))}] to features "
                f"[n, width], but gives {shape} for two images"
            )
        return shape[1]

    def reinitialise(self, module: nn.Module) -> None:
        for name, part in module.named_modules():
            reset = getattr(part, "reset_parameters", None)
            if callable(reset):
                reset()
            elif any(True for _ in part.parameters(recurse=False)):
                raise FlashbackError(
                    f"this host needs a second network, and {name or 'the top module'} of '{self.name}' cannot be "
                    f"initialised again; give {type(part).__name__} a method reset_parameters()"
                )
