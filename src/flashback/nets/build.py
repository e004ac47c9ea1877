"""Build a backbone by name, from timm or from a plain module, and check that it works on given images."""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.errors import FlashbackError, import_extra, require, shorten, unknown
from flashback.nets.base import NETS, Backbone, Shape, evaluating
from flashback.nets.weights import cached_weights, read_weights


def net_for(image_shape: Shape) -> str:
    side = min(image_shape[1:])
    return "smallcnn" if side < 32 else "resnet18" if side <= 64 else "resnet18-imagenet"


def build_backbone(name: str, image_shape: Shape, width: float = 1.0, pretrained: bool = True) -> Backbone:
    """Build a backbone for images of a given shape.

    Args:
        name: A name in `NETS`, or a timm model as `timm:MODEL`, with options (`timm_backbone`).
        image_shape: Channels, height and width of an image.
        width: Factor on the number of channels of every layer, for networks that support it.
        pretrained: Whether to load the weights that the name asks for; not necessary if a checkpoint replaces them.

    Returns:
        The backbone, freshly initialised.

    Raises:
        FlashbackError: If the name is unknown, the network has a fixed width, or it does not return features of
            shape [B, width] for such images.
    """
    if name.startswith(TIMM):
        build: Callable[..., Backbone] = partial(timm_backbone, name[len(TIMM[0]) :], load=pretrained)
    else:
        build = NETS[name]
    if width != 1 and not _has_width(build):
        others = ", ".join(known for known in NETS if _has_width(NETS[known]))
        raise FlashbackError(f"the net '{name}' has a fixed width; choose one of {others}, or leave its width at 1")
    backbone = build(image_shape, **({} if width == 1 else {"width": width}))
    check_backbone(backbone, name, image_shape)
    return backbone.keep_frozen()


def _has_width(build: Callable[..., Backbone]) -> bool:
    return "width" in inspect.signature(build).parameters


def check_backbone(backbone: object, name: str, image_shape: Shape) -> None:
    if not isinstance(backbone, Backbone):
        raise FlashbackError(
            f"the net '{name}' is a {type(backbone).__name__}; let its class inherit from flashback.Backbone"
        )
    require(
        getattr(backbone.forward, "__func__", None) is not nn.Module.forward,
        f"the net '{name}' does not define forward(x); add this method, which returns features, to its class",
    )
    width = getattr(backbone, "width", None)
    if type(width) is not int or width < 1:
        raise FlashbackError(f"the net '{name}' has width {width!r}; set `width` to its number of features, 1 or more")
    shape = _shape_of_features(backbone, image_shape)
    if shape != [2, width]:
        raise FlashbackError(f"the net '{name}' returns {shape} for two images; it must return features [2, {width}]")


def _shape_of_features(module: nn.Module, image_shape: Shape) -> list[int] | str:
    """The shape of what a module returns for two blank images, or the name of its type if it is not a tensor."""
    device = next((parameter.device for parameter in module.parameters()), None)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(module):
        features = module(torch.zeros(2, *image_shape, device=device))
    return list(features.shape) if isinstance(features, Tensor) else type(features).__name__


TIMM = ("timm:", "timm/")  # both prefixes name a timm model
OPTIONS = ("pretrained", "download", "cls")
WEIGHTS = "weights="


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


def timm_backbone(spec: str, image_shape: Shape, load: bool = True) -> TimmBackbone:
    """Build `MODEL[:pretrained[:download]][:cls][:weights=FILE]`.

    `pretrained` takes the weights that timm has for the model from its cache, and `download` fetches them if they are
    not there. `weights=FILE`, the last option, reads a file instead. `cls` takes the class token as features. Without
    `load` the network is the same but for its weights.
    """
    timm = import_extra("timm", "timm", f"the net 'timm:{spec}' needs the package timm")
    model_and_options, separator, file = spec.partition(f":{WEIGHTS}")
    require(bool(file) or not separator, f"the net 'timm:{spec}' names no file; write {WEIGHTS}FILE")
    name, *options = model_and_options.split(":")
    for option in options:
        if option not in OPTIONS:
            raise unknown("timm option", option, [*OPTIONS, f"{WEIGHTS}FILE"])
    require(
        not file or not {"pretrained", "download"} & {*options},
        f"the net 'timm:{spec}' names weights twice; leave out pretrained and download, or {WEIGHTS}{file}",
    )
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    is_pretrained = bool(file or {"pretrained", "download"} & {*options})
    create = partial(timm.create_model, name, num_classes=0, in_chans=image_shape[0])
    model = with_weights(timm, create, name, file, "download" in options) if is_pretrained and load else create()
    backbone = TimmBackbone(model, class_token="cls" in options)
    if is_pretrained:  # the weights expect these means; averaged over channels for grey images, as timm does
        mean, std = (tuple(map(float, model.pretrained_cfg[key])) for key in ("mean", "std"))
        channels = image_shape[0]
        averaged = ((fmean(mean),) * channels, (fmean(std),) * channels)
        backbone.normalisation = (mean, std) if channels == len(mean) else averaged
    return backbone


def with_weights(timm: Any, create: Callable[..., Any], name: str, file: str, download: bool) -> Any:
    """Create a timm model with the weights of a file, of timm's cache, or, if it may, downloaded."""
    source = timm.get_pretrained_cfg(name)
    path = Path(file) if file else cached_weights(source)
    if path is not None:
        return with_weights_of_file(create, name, path)
    require(
        source is not None and bool(source.hf_hub_id or source.url),
        f"timm has no weights for the model {name}; choose another, or give a file: timm:{name}:{WEIGHTS}FILE",
    )
    require(
        download,
        f"the weights of the timm model {name} are not on this machine; write timm:{name}:pretrained:download to fetch "
        f"them, or give a file: timm:{name}:{WEIGHTS}FILE",
    )
    try:
        return create(pretrained=True)
    except (RuntimeError, ValueError, OSError) as error:
        reason = shorten(" ".join(str(error).split()))
        raise FlashbackError(f"the weights of the timm model {name} could not be downloaded ({reason})") from None


def with_weights_of_file(create: Callable[..., Any], name: str, path: Path) -> Any:
    """Create a timm model with the weights of a file; timm itself would only warn of those that are missing."""
    weights = read_weights(path)
    with torch.random.fork_rng(devices=[]):
        fresh = dict(create().named_parameters())
    try:
        # timm adapts the names and the first layer; it must not change what is compared below.
        model = create(pretrained=True, pretrained_cfg_overlay={"state_dict": dict(weights)})
    except (RuntimeError, ValueError) as error:
        reason = shorten(" ".join(str(error).split()))
        raise FlashbackError(f"the weights in {path} do not fit the timm model {name} ({reason})") from None
    model.pretrained_cfg.pop("state_dict", None)  # or every copy of the network would copy it
    for key, parameter in model.named_parameters():
        is_fresh = parameter.ndim > 1 and torch.equal(parameter, fresh[key])
        is_saved = key in weights and weights[key].shape == parameter.shape and torch.equal(weights[key], parameter)
        require(is_saved or not is_fresh, f"the weights in {path} do not fit the timm model {name}: {key} is missing")
    return model


class ModuleBackbone(Backbone):
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
        if not isinstance(module, Backbone):
            shape = _shape_of_features(module, image_shape)
            if isinstance(shape, str) or len(shape) != 2 or shape[0] != 2:
                raise FlashbackError(
                    f"the net '{self.name}' must map images [n, {', '.join(map(str, image_shape))}] to features "
                    f"[n, width], but gives {shape} for two images"
                )
            module = ModuleBackbone(module, shape[1])
        check_backbone(module, self.name, image_shape)
        return module.keep_frozen()

    def afresh(self) -> Self:
        """Backbones for another host, whose first one has the weights of the module too."""
        return type(self)(self.module)

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
