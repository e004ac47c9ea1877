"""Networks that compare directions alone: cosines between features and class vectors (LUCIR, Section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import CosineHead


@dataclass
class CosineOutput(Output):
    cosines: Tensor  # the logits before their scale sigma


@dataclass
class ProxyOutput(CosineOutput):
    maps: list[Tensor]  # of each stage of the backbone


class Blocks(nn.Module):
    """Keeps class vectors as one parameter a task, so that a stage can train some of them and leave others alone."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, *blocks: Tensor) -> Tensor:
        return torch.cat(blocks)

    def right_inverse(self, vectors: Tensor) -> list[Tensor]:
        return [block.clone() for block in torch.split(vectors, self.sizes)]


class CosineNet(Net):
    """A backbone and a cosine head with a vector for every class there will ever be."""

    head: CosineHead

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, CosineHead(backbone.width, sum(sizes)))
        parametrize.register_parametrization(self.head, "weight", Blocks(sizes))

    def forward(self, x: Tensor) -> CosineOutput:
        features = self.backbone(x).float()
        cosines = self.head.cosines(features)
        return CosineOutput(features, self.head.sigma * cosines, cosines)

    def blocks(self) -> list[nn.Parameter]:
        """The class vectors of each task."""
        return [parameter for parameter in self.head.parameters() if parameter is not self.head.sigma]

    def train_only(self, blocks: range, backbone: bool, sigma: bool = True) -> None:
        """Weight decay and momentum never see what is left out here."""
        self.backbone.let_train(backbone)
        self.head.sigma.requires_grad_(sigma)
        for task, block in enumerate(self.blocks()):
            block.requires_grad_(task in blocks)


class ProxyNet(CosineNet):
    """Several vectors for each class, its proxies; answers have the maps of all stages (PODNet)."""

    def __init__(self, backbone: Backbone, sizes: Sequence[int], proxies: int) -> None:
        super().__init__(backbone, [size * proxies for size in sizes])
        self.proxies = proxies

    def forward(self, x: Tensor) -> ProxyOutput:
        maps = self.backbone.stage_maps(x)
        features = maps[-1].mean((2, 3)).float()
        cosines = local_similarity(self.head.cosines(features).reshape(len(x), -1, self.proxies))
        return ProxyOutput(features, self.head.sigma * cosines, cosines, maps)


def local_similarity(cosines: Tensor) -> Tensor:
    """[B, classes, proxies] to [B, classes]: a mean in which the nearer proxies of a class count more."""
    return (cosines.softmax(dim=2) * cosines).sum(dim=2)
