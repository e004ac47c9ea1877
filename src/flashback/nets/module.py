"""Use any nn.Module that turns images into feature vectors as a backbone."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from flashback.errors import FlashbackError, require
from flashback.nets.base import Backbone, Shape
from flashback.nets.build import check_backbone
from flashback.nets.frozen import evaluating


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
        with torch.no_grad(), torch.random.fork_rng(devices=[]), evaluating(self.module):
            features = self.module(torch.zeros(2, *image_shape))
        shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2:
            raise FlashbackError(
                f"the net '{self.name}' must map images [n, {', '.join(map(str, image_shape))}] to features "
                f"[n, width], but gives {shape} for two images"
            )
        return features.shape[1]

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
