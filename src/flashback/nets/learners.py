"""Narrow networks side by side that answer as one (CAF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import full_precision


class Learners(Backbone):
    """Backbones of one kind in parallel; the features are the sum of theirs."""

    def __init__(self, learners: Sequence[Backbone]) -> None:
        super().__init__()
        self.learners = nn.ModuleList(learners)
        self.width = learners[0].width
        self.takes_parts = learners[0].takes_parts
        self.hold()

    def forward(self, x: Tensor) -> Tensor:
        return self.of_each(x).sum(dim=1)

    def of_each(self, x: Tensor) -> Tensor:
        """The features of each, [B, learners, width]."""
        return torch.stack([learner(x) for learner in self.learners], dim=1)


@dataclass
class LearnersOutput(Output):
    own: Tensor  # what each learner would say alone, [B, learners, classes]


class LearnersNet(Net):
    """Learners and one head, which also tells what each of them would say alone."""

    backbone: Learners

    def forward(self, x: Tensor) -> LearnersOutput:
        each = self.backbone.of_each(x).float()
        features = each.sum(dim=1)
        with full_precision(each):
            return LearnersOutput(features, self.head(features), self.head(each))
