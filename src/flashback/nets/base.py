"""What every network is: a backbone that gives features, a head that turns them into logits."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from flashback.errors import FlashbackError
from flashback.nets.heads import full_precision
from flashback.nets.modes import evaluating
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
    held_norms: frozenset[str] = frozenset()  # and the norm layers, whose statistics stand still too

    def hold(self) -> Self:
        """What is frozen now stays so, whatever a host does with its networks."""
        parameters = dict(self.named_parameters())
        self.held = frozenset(name for name, given in parameters.items() if not given.requires_grad)
        norms = [name for name, module in self.named_modules() if isinstance(module, _NormBase)] if self.held else []
        self.held_norms = frozenset(name for name in norms if self.held.issuperset(parameters_around(name, parameters)))
        self.train(self.training)
        return self

    def train(self, mode: bool = True) -> Self:
        """Norm layers that are frozen read their statistics in training too."""
        super().train(mode)
        for name in self.held_norms:
            self.get_submodule(name).eval()
        return self

    def let_train(self, trained: bool = True) -> Self:
        """Train all of it or nothing; what its maker has frozen stays so."""
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trained and name not in self.held)
        return self

    @torch.no_grad()
    def take_held(self, other: Self) -> Self:
        """What its maker has frozen becomes that of another of its kind; it may have been drawn at random."""
        given = other.state_dict()
        for name, own in self.state_dict().items():
            if name in self.held or name.rpartition(".")[0] in self.held_norms:
                own.copy_(given[name])
        return self

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        """The maps [B, C, H, W] of each stage, from the first to the last, whose mean over space are the features."""
        maps = [x]
        for level in self.levels():
            maps.append(level(maps[-1]))
        return maps[1:]

    def levels(self) -> list[nn.Module]:
        """The modules that give the maps of the stages, one applied to what the one before gives."""
        raise FlashbackError(
            f"this host works between the levels of a network, and {type(self).__name__} names none; give its class a "
            "method levels() that returns the modules whose outputs, one after another, are its stage_maps()"
        )

    def last_stage_layers(self) -> dict[str, nn.Module]:
        """The layers whose outputs are compared by CKA, from the first to the last."""
        raise FlashbackError(
            f"CKA compares layers, and the network {type(self).__name__} names none; give its class a method "
            "last_stage_layers() that returns them by name"
        )


NETS: Registry[Callable[..., Backbone]] = Registry("net")  # made from a Shape; some take a width of channels too


def net_for(image_shape: Shape) -> str:
    """The net of a host that names none: one whose last maps are neither single pixels nor as large as the images."""
    side = min(image_shape[1:])
    return "smallcnn" if side < 32 else "resnet18" if side <= 64 else "resnet18-imagenet"


def build_backbone(name: str, image_shape: Shape, width: float = 1.0) -> Backbone:
    """The registered backbone of that name, or timm's: `timm:MODEL[:pretrained][:cls]`.

    With another width its layers have so many times the usual channels, where its maker can do that.
    """
    if width != 1:
        check_width(name)
    if name.startswith("timm:"):
        from flashback.nets.pretrained import timm_backbone

        backbone: Backbone = timm_backbone(name.removeprefix("timm:"), image_shape)
    else:
        backbone = make_registered(name, image_shape, {} if width == 1 else {"width": width})
    check_backbone(backbone, name, image_shape)
    return backbone.hold()


def check_width(name: str) -> None:
    """Refuse a net that cannot be made narrower."""
    if name.startswith("timm:") or not takes_width(NETS[name]):
        others = ", ".join(known for known in NETS if takes_width(NETS[known]))
        raise FlashbackError(f"the net '{name}' has one width alone; choose one of {others}, or leave its width at 1")


def takes_width(maker: Callable[..., Backbone]) -> bool:
    return "width" in inspect.signature(maker).parameters


def scaled(channels: Iterable[int], width: float) -> tuple[int, ...]:
    """The channels of the layers of a network of another width."""
    return tuple(max(1, round(width * usual)) for usual in channels)


def make_registered(name: str, image_shape: Shape, options: Mapping[str, float]) -> Backbone:
    """What is registered by that name, called with the shape of an image."""
    maker = NETS[name]
    try:
        return maker(image_shape, **options)
    except TypeError as problem:
        inside = problem.__traceback__.tb_next if problem.__traceback__ is not None else None
        if inside is not None and inside.tb_frame.f_code is not nn.Module.__init__.__code__:
            raise  # a mistake of the maker's own
        raise FlashbackError(
            f"the net '{name}' is made from the shape of an image alone; let it take image_shape and nothing else"
        ) from None


def check_backbone(backbone: object, name: str, image_shape: Shape) -> None:
    """Refuse what is no backbone; whether it gives features, two blank images tell."""
    if not isinstance(backbone, Backbone):
        raise FlashbackError(
            f"the net '{name}' is a {type(backbone).__name__}; let its class inherit from flashback.Backbone"
        )
    width = getattr(backbone, "width", None)
    if type(width) is not int or width < 1:
        raise FlashbackError(
            f"the net '{name}' has the width {width!r}; let `width` be the number of its features, 1 or more"
        )
    device = next((parameter.device for parameter in backbone.parameters()), None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(backbone):
        features = backbone(torch.zeros(2, *image_shape, device=device))
    given = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if given != [2, width]:
        raise FlashbackError(f"the net '{name}' gives {given} for two images, not their features, [2, {width}]")


def parameters_around(module: str, parameters: Collection[str]) -> set[str]:
    """The names of a module's parameters; if it has none, those of the innermost module around it that has some."""
    own = {name for name in parameters if not module or name.startswith(f"{module}.")}
    return own if own or not module else parameters_around(module.rpartition(".")[0], parameters)


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
