"""The images a stage trains on, and how one batch of them reaches the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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

    images: Tensor  # uint8 [n, C, H, W], on the device unless the set is too large for it
    labels: Tensor  # int64 [n]
    slots: Tensor  # int64 [n]
    resident: bool = True  # whether a step gathers its images itself; else they are fetched ahead of it

    def __len__(self) -> int:
        return self.labels.shape[0]

    @classmethod
    def of(cls, images: Images, device: torch.device, room: int | None = None) -> Stream:
        """All images of a set; they stay on the CPU if they need more than `room` bytes of the device."""
        labels = images.y.to(device)
        resident = images.x.nbytes <= (available_bytes(device) if room is None else room)
        pixels = images.x.to(device) if resident else images.x
        return cls(pixels, labels, torch.full_like(labels, NOT_STORED), resident)

    def joined(self, *others: Stream) -> Stream:
        """All as one stream: each image of any appears once per epoch."""
        parts = [part for part in (self, *others) if len(part)] or [self]
        if len(parts) == 1:
            return parts[0]  # as it is: images of a large set are mapped, not read
        resident = all(part.resident for part in parts)
        pixels = [part.images if resident else part.images.cpu() for part in parts]
        return Stream(
            torch.cat(pixels),
            torch.cat([part.labels for part in parts]),
            torch.cat([part.slots for part in parts]),
            resident,
        )

    def part(self, rows: Tensor) -> Stream:
        """Some of its images."""
        chosen = rows.to(self.labels.device)
        return Stream(self.images[rows.to(self.images.device)], self.labels[chosen], self.slots[chosen], self.resident)

    def order(self, *key: object) -> Tensor:
        """The order of one epoch. It depends on the key alone, so a resumed epoch finds its place again."""
        return torch.randperm(len(self), generator=seeded_generator(*key, "order")).to(self.labels.device)


def split_batches(order: Tensor, size: int) -> list[Tensor]:
    """Batches of an epoch. A last image all by itself joins those before it: alone it has no batch statistics."""
    batches = list(torch.split(order, size))
    if size > 1 and len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def count_batches(images: int, size: int) -> int:
    """How many batches `split_batches` makes."""
    whole, rest = divmod(images, size)
    return max(1, whole + (rest > 1))


def available_bytes(device: torch.device) -> int:
    """Bytes a set of images may take: half of what is free on a GPU, anything on the CPU."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 1 << 62


def fetch(stream: Stream, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor | None]]:
    """The positions of each batch, and its images where they are not on the device: one batch ahead, in a thread."""
    if stream.resident:
        yield from ((batch, None) for batch in batches)
        return
    device = stream.labels.device
    positions = [batch.cpu() for batch in batches]  # now: later each would wait for the steps before it

    def load(chosen: Tensor) -> Tensor:
        images = stream.images[chosen]
        return images.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else images

    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead = [pool.submit(load, chosen) for chosen in positions[:2]]
        for k, batch in enumerate(batches):
            images = ahead.pop(0).result()
            if k + 2 < len(batches):
                ahead.append(pool.submit(load, positions[k + 2]))
            yield batch, images
