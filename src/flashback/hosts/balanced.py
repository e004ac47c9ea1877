"""Hosts whose memory is filled when a task ends, at random and with as many images of every class."""

from __future__ import annotations

import torch
from torch import Tensor

from flashback.errors import require
from flashback.hosts.replay import DrawingHost, ReplayStep
from flashback.memory import Field, balanced_quotas, within_quotas


class BalancedHost(DrawingHost):
    """Draws from images of earlier tasks alone: those of the present one enter the memory at its end."""

    def fields(self) -> dict[str, Field]:
        """Images and labels alone, unless a host says otherwise here and in `stored_with`."""
        return {}

    def check(self) -> None:
        classes, size = self.benchmark.classes, self.settings.memory_size
        require(
            size >= classes, f"host.memory_size is {size}, less than one image for {classes} classes each; raise it"
        )

    def available(self, wanted: int) -> int:
        # In the first task the memory is empty to the end; asking it would wait for the device in every step.
        return super().available(wanted) if self.task.index > 0 else 0

    def filling(self) -> bool:
        return False

    def after_step(self, step: ReplayStep) -> None:
        """The memory stands still until the end of the task."""

    @torch.no_grad()
    def end(self) -> None:
        self.store_new(self.trim())

    def trim(self) -> list[int]:
        """Keep as many images of past classes as still have room; returns how many every class may have."""
        memory, old = self.memory, len(self.task.before)
        quotas = balanced_quotas(memory.capacity, old, len(self.task.classes), self.generator)
        memory.keep(within_quotas(memory.labels[: memory.filled], quotas[:old]))
        return quotas

    def store_new(self, quotas: list[int]) -> None:
        """The first images of each new class in a random order."""
        order = torch.randperm(len(self.task.train), generator=self.generator, device=self.device).cpu()
        chosen = order[within_quotas(self.task.train.y[order], quotas)]
        images, labels = self.task.train.x[chosen].to(self.device), self.task.train.y[chosen].to(self.device)
        self.memory.append(images, labels, **self.stored_with(images, labels))

    def stored_with(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """What is stored with new images in each of `fields`."""
        return {}
