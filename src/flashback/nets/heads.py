"""Classifier heads, always computed in float32, and the networks of LUCIR, PODNet and BiC around them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from flashback.nets.base import Backbone, Net, Output, full_precision
from flashback.nets.splitting import split_pass


class CosineHead(nn.Module):
    """sigma * cos(features, class vectors), no bias (LUCIR, Section 3.2)."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(classes, width).uniform_(-bound, bound))
        self.sigma = nn.Parameter(torch.ones(()))

    def cosines(self, features: Tensor) -> Tensor:
        """The logits before the scale."""
        with full_precision(features):
            return F.linear(F.normalize(features.float()), F.normalize(self.weight))

    def forward(self, features: Tensor) -> Tensor:
        return self.sigma * self.cosines(features)


@dataclass
class CosineOutput(Output):
    cosines: Tensor  # the logits before scaling by sigma


@dataclass
class ProxyOutput(CosineOutput):
    maps: list[Tensor]  # of each stage of the backbone


class Blocks(nn.Module):
    """Parametrises class vectors as one parameter per task, so that a stage can train those of some tasks only."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, *blocks: Tensor) -> Tensor:
        return torch.cat(blocks)

    def right_inverse(self, vectors: Tensor) -> list[Tensor]:
        return [block.clone() for block in torch.split(vectors, self.sizes)]


class CosineNet(Net):
    """A backbone and a cosine head; the vectors of the classes of one task are one parameter."""

    head: CosineHead

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, CosineHead(backbone.width, sum(sizes)))
        parametrize.register_parametrization(self.head, "weight", Blocks(sizes))

    def forward(self, x: Tensor) -> CosineOutput:
        features = self.backbone(x).float()
        cosines = self.head.cosines(features)
        return CosineOutput(features, self.head.sigma * cosines, cosines)

    def grow(self, classes: int) -> None:
        """Add a block of class vectors."""
        self.add_block(classes - len(self.head.weight))

    @torch.no_grad()
    def add_block(self, vectors: int) -> None:
        old = [block.data for block in self.blocks()]
        added = CosineHead(old[0].shape[1], vectors).weight.to(old[0])
        kind = type(self.head)  # a copy of the network has the same one, which would lose its weight
        self.head.__class__ = type(kind.__name__, kind.__bases__, dict(vars(kind)))
        parametrize.remove_parametrizations(self.head, "weight")
        self.head.weight = nn.Parameter(torch.cat([*old, added]))
        parametrize.register_parametrization(self.head, "weight", Blocks([*map(len, old), vectors]))

    def blocks(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.head.parameters() if parameter is not self.head.sigma]

    def train_only(self, blocks: range, backbone: bool, sigma: bool = True) -> None:
        """Train these blocks only; frozen parameters are not changed by weight decay or momentum either."""
        self.backbone.set_trainable(backbone)
        self.head.sigma.requires_grad_(sigma)
        for task, block in enumerate(self.blocks()):
            block.requires_grad_(task in blocks)


class ProxyNet(CosineNet):
    """Several class vectors (proxies) for each class; outputs include the maps of all stages (PODNet)."""

    def __init__(self, backbone: Backbone, sizes: Sequence[int], proxies: int) -> None:
        super().__init__(backbone, [size * proxies for size in sizes])
        self.proxies = proxies

    def grow(self, classes: int) -> None:
        self.add_block(classes * self.proxies - len(self.head.weight))

    def forward(self, x: Tensor) -> ProxyOutput:
        maps = split_pass(self.backbone.stage_maps, x)
        features = maps[-1].mean((2, 3)).float()
        cosines = local_similarity(self.head.cosines(features).reshape(x.shape[0], -1, self.proxies))
        return ProxyOutput(features, self.head.sigma * cosines, cosines, maps)


def local_similarity(cosines: Tensor) -> Tensor:
    """Reduce [B, classes, proxies] to [B, classes] by a softmax-weighted mean over proxies."""
    return (cosines.softmax(dim=2) * cosines).sum(dim=2)


class BiasCorrectedNet(Net):
    """A backbone and a linear head; the logits z of a task become scale * z + shift (BiC)."""

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, nn.Linear(backbone.width, sum(sizes)))
        self.sizes = list(sizes)
        self.corrections = nn.ParameterList(torch.tensor([1.0, 0.0]) for _ in sizes)  # scale and shift of each task
        self.train_only(None)

    def forward(self, x: Tensor) -> Output:
        raw = super().forward(x)
        pairs = zip(self.corrections, self.sizes, strict=True)
        scale, shift = torch.cat([pair.expand(size, 2) for pair, size in pairs]).unbind(1)
        return Output(raw.features, scale * raw.logits + shift)

    def grow(self, classes: int) -> None:
        super().grow(classes)
        self.sizes.append(classes - sum(self.sizes))
        self.corrections.append(nn.Parameter(torch.tensor([1.0, 0.0], device=self.corrections[0].device)))

    def train_only(self, correction: int | None) -> None:
        """Train the correction of one task and nothing else; None: train everything except the corrections."""
        self.backbone.set_trainable(correction is None)
        self.head.requires_grad_(correction is None)
        for task, pair in enumerate(self.corrections):
            pair.requires_grad_(task == correction)
