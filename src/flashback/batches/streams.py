"""The images a stage trains on, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.benchmarks import Images
from flashback.seeds import seeded_generator

NOT_STORED = -1  # the slot of an image outside the memory


@dataclass(frozen=True)
class Batch:
    """One batch of images.

    Attributes:
        x: The training view, normalised, float32 [B, C, H, W].
        y: Labels, int64 [B], as columns of the classifier.
        raw: The images before augmentation, uint8 [B, C, H, W].
        slots: Memory slots of the images, int64 [B]; NOT_STORED for images outside the memory.
    """

    x: Tensor
    y: Tensor
    raw: Tensor
    slots: Tensor

    def __len__(self) -> int:
        return self.x.shape[0]


@dataclass(frozen=True)
class Stream:
    """The images of a stage, used once per epoch in a new order each time."""

    images: Tensor  # uint8 [n, C, H, W], on the device unless it is too small for them
    labels: Tensor  # int64 [n]
    slots: Tensor  # int64 [n]
    resident: bool = True  # whether the images are on the device; else batches are prefetched

    def __len__(self) -> int:
        return self.labels.shape[0]

    @classmethod
    def of(cls, images: Images, device: torch.device) -> Stream:
        """Make a stream of all images; those that need more than half of the free memory of a GPU stay on the CPU.

        Args:
            images: The images and their labels.
            device: The device of the run.
        """
        labels = images.y.to(device)
        resident = images.x.nbytes <= available_bytes(device)
        pixels = images.x.to(device) if resident else images.x
        return cls(pixels, labels, torch.full_like(labels, NOT_STORED), resident)

    def joined(self, *others: Stream) -> Stream:
        """Concatenate streams: each image appears once per epoch.

        Args:
            others: The streams to append.
        """
        parts = [part for part in (self, *others) if len(part)] or [self]
        if len(parts) == 1:
            return parts[0]  # unchanged: mapped images are not read
        resident = all(part.resident for part in parts)
        pixels = [part.images if resident else part.images.cpu() for part in parts]
        return Stream(
            torch.cat(pixels),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.slots for part in parts]),
            resident,
        )

    def part(self, rows: Tensor) -> Stream:
        """Make a stream of some of the images.

        Args:
            rows: Their positions in this stream.
        """
        positions = rows.to(self.labels.device)
        return Stream(
            self.images[rows.to(self.images.device)], self.labels[positions], self.slots[positions], self.resident
        )

    def order(self, *key: object) -> Tensor:
        """The order of one epoch. It depends only on the key, so a resumed epoch continues where it stopped."""
        return torch.randperm(len(self), generator=seeded_generator(*key, "order")).to(self.labels.device)


def split_batches(order: Tensor, size: int) -> list[Tensor]:
    """Split an epoch into batches. A single last image joins the batch before it: alone it has no batch statistics."""
    batches = list(torch.split(order, size))
    if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def count_batches(images: int, size: int) -> int:
    whole, rest = divmod(images, size)
    return max(1, whole + (rest > 1))


def available_bytes(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 1 << 62


def prefetch(stream: Stream, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Yield the positions of each batch and, if they are not on the device, its images, prefetched in a thread."""
    if stream.resident:
        yield from ((batch, None) for batch in batches)
        return
    device = stream.labels.device
    positions = [batch.cpu() for batch in batches]  # now, since later each copy would wait for earlier steps

    def load(rows: Tensor) -> Tensor:
        images = stream.images[rows]
        return images.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else images

    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = [pool.submit(load, rows) for rows in positions[:2]]
        for k, batch in enumerate(batches):
            images = pending.pop(0).result()
            if k + 2 < len(batches):
                pending.append(pool.submit(load, positions[k + 2]))
            yield batch, images
