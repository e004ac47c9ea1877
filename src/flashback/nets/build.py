"""Build a backbone by name and check that it works on the images of a benchmark."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError
from flashback.nets.base import NETS, Backbone, Shape
from flashback.nets.frozen import evaluating
from flashback.nets.timm_backbones import timm_backbone


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
        backbone = _build_registered(name, image_shape, {} if width == 1 else {"width": width})
    check_backbone(backbone, name, image_shape)
    return backbone.keep_frozen()


def check_width(name: str) -> None:
    """Refuse a network that cannot be built with another width."""
    if name.startswith("timm:") or not _has_width(NETS[name]):
        others = ", ".join(known for known in NETS if _has_width(NETS[known]))
        raise FlashbackError(f"the net '{name}' has a fixed width; choose one of {others}, or leave its width at 1")


def _has_width(build: Callable[..., Backbone]) -> bool:
    return "width" in inspect.signature(build).parameters


def _build_registered(name: str, image_shape: Shape, options: Mapping[str, float]) -> Backbone:
    build = NETS[name]
    try:
        return build(image_shape, **options)
    except TypeError as problem:
        inside = problem.__traceback__.tb_next if problem.__traceback__ is not None else None
        if inside is not None and inside.tb_frame.f_code is not nn.Module.__init__.__code__:
            raise  # an error inside the function, not in how it is called
        raise FlashbackError(
            f"the net '{name}' must be built from one argument, image_shape; change its parameters"
        ) from None


def check_backbone(backbone: object, name: str, image_shape: Shape) -> None:
    """Refuse an object that is not a Backbone, or does not return [2, width] for two blank images."""
    if not isinstance(backbone, Backbone):
        raise FlashbackError(
            f"the net '{name}' is a {type(backbone).__name__}; let its class inherit from flashback.Backbone"
        )
    width = getattr(backbone, "width", None)
    if type(width) is not int or width < 1:
        raise FlashbackError(f"the net '{name}' has width {width!r}; set `width` to its number of features, 1 or more")
    device = next((parameter.device for parameter in backbone.parameters()), None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(backbone):
        features = backbone(torch.zeros(2, *image_shape, device=device))
    shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if shape != [2, width]:
        raise FlashbackError(f"the net '{name}' returns {shape} for two images; it must return features [2, {width}]")
