"""Narrow networks in parallel that share one head (CAF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import full_precision


class ParallelBackbone(Backbone):
    """Backbones of one kind in parallel; the features are the sum over all of them."""

    def __init__(self, learners: Sequence[Backbone]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)
        self.width = learners[0].width
        self.supports_joint_forward = learners[0].supports_joint_forward
        self.keep_frozen()

    def forward(self, x: Tensor) -> Tensor:
        return self.separate_features(x).sum(dim=1)

    def separate_features(self, x: Tensor) -> Tensor:
        """The features of each learner, [B, learners, width]."""
        return torch.stack([learner(x) for learner in self.learners], dim=1)


@dataclass
class ParallelOutput(Output):
    separate: Tensor  # the logits of each learner alone, [B, learners, classes]


class ParallelNet(Net):
    """Parallel backbones and one head, which is also applied to the features of each backbone alone."""

    backbone: ParallelBackbone

    def forward(self, x: Tensor) -> ParallelOutput:
        separate = self.backbone.separate_features(x).float()
        features = separate.sum(dim=1)
        with full_precision(separate):
            return ParallelOutput(features, self.head(features), self.head(separate))
