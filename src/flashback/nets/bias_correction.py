"""A network with a linear correction of the logits of each task (BiC)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output


class BiasCorrectedNet(Net):
    """A linear head for all classes of the benchmark; the logits z of a task become scale * z + shift."""

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

    def train_only(self, correction: int | None) -> None:
        """Train the correction of one task and nothing else; None: train everything except the corrections."""
        self.backbone.set_trainable(correction is None)
        self.head.requires_grad_(correction is None)
        for task, pair in enumerate(self.corrections):
            pair.requires_grad_(task == correction)
