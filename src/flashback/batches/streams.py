"""The images a stage trains on, and how one batch of them reaches the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.benchmarks import Images
from flashback.seeds import seeded_generator

NOT_STORED = -1  # the slot of an image that is not in the memory


@dataclass(frozen=True)
class Batch:
    """One batch: raw images, their training view, labels, and for exemplars the memory slot they come from."""

    x: Tensor  # float32 [B, C, H, W], the training view, normalised
    y: Tensor  # int64 [B], columns of the classes
    raw: Tensor  # uint8 [B, C, H, W]
    slots: Tensor  # int64 [B], NOT_STORED for images outside the memory

    def __len__(self) -> int:
        return self.x.shape[0]


@dataclass(frozen=True)
class Stream:
    """Images that one stage sees once per epoch, in a new order each time."""

    images: Tensor  # uint8 [n, C, H, W]
    labels: Tensor  # int64 [n]
    slots: Tensor  # int64 [n]

    def __len__(self) -> int:
        return self.labels.shape[0]

    @classmethod
    def of(cls, images: Images, device: torch.device) -> Stream:
        labels = images.y.to(device)
        return cls(images.x.to(device), labels, torch.full_like(labels, NOT_STORED))

    def joined(self, other: Stream) -> Stream:
        """Both as one stream: each image of either appears once per epoch."""
        return Stream(
            torch.cat([self.images, other.images]),
            torch.cat([self.labels, other.labels]),
            torch.cat([self.slots, other.slots]),
        )

    def subset(self, indices: Tensor) -> Stream:
        return Stream(self.images[indices], self.labels[indices], self.slots[indices])

    def order(self, *key: object) -> Tensor:
        """The order of one epoch. It depends on the key alone, so a resumed epoch finds its place again."""
        return torch.randperm(len(self), generator=seeded_generator(*key, "order")).to(self.labels.device)
