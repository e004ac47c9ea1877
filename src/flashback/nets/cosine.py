"""Networks with cosine classifiers: logits are cosines between features and class vectors (LUCIR, Section 3.2)."""

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
    """A backbone and a cosine head with a vector for each class of the benchmark."""

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

    def forward(self, x: Tensor) -> ProxyOutput:
        maps = self.backbone.stage_maps(x)
        features = maps[-1].mean((2, 3)).float()
        cosines = local_similarity(self.head.cosines(features).reshape(len(x), -1, self.proxies))
        return ProxyOutput(features, self.head.sigma * cosines, cosines, maps)


def local_similarity(cosines: Tensor) -> Tensor:
    """Reduce [B, classes, proxies] to [B, classes] by a softmax-weighted mean over proxies."""
    return (cosines.softmax(dim=2) * cosines).sum(dim=2)
