"""Hosts that replay: beside every batch of new images, they draw images from a memory and their stored targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.config import HostSettings, at_least_one, not_negative
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.stages import Step
from flashback.knowledge import Support, squared_error
from flashback.memory import Field, Memory
from flashback.nets import Net, Output, joint_forward


@dataclass(frozen=True)
class DrawSettings(HostSettings):
    """What every host that replays has."""

    memory_size: int = 2000  # images in the memory
    minibatch: int = 32  # images of one draw from the memory

    def check(self) -> None:
        require(self.memory_size >= 1, f"host.memory_size is at least 1, not {self.memory_size}; replay needs a memory")
        at_least_one(self, "minibatch")


@dataclass(frozen=True)
class ReplaySettings(DrawSettings):
    """Of a host that is held near the targets stored with its images."""

    alpha: float = 0.3  # weight of the squared error to the stored targets (alpha_s of the paper)

    def check(self) -> None:
        super().check()
        not_negative(self, "alpha")


@dataclass
class Recalled:
    """Images drawn from the memory, each augmented anew."""

    slots: Tensor
    x: Tensor


@dataclass
class Draw:
    """Images drawn from the memory and the model's answers to them."""

    slots: Tensor
    labels: Tensor
    output: Output


@dataclass
class ReplayStep(Step):
    """A step with its draws; there are none as long as the memory is empty."""

    draws: list[Draw]


class DrawingHost(Host):
    """The memory is the stable knowledge (Eq. 2): images, labels and what the model answered when they were stored.

    Plasticity acts on the first draw, over all columns (Eq. 16 and 21).
    """

    Settings = DrawSettings
    family = "replay"
    memory: Memory
    net: Net
    draws: ClassVar[int] = 1  # of a step, each independent of the others

    def build(self) -> None:
        super().build()
        self.memory = Memory(self.settings.memory_size, self.benchmark.image_shape, self.fields())

    def fields(self) -> dict[str, Field]:
        return {"targets": ((self.response_width(),), torch.float32)}

    def allocate(self) -> None:
        """Nothing to allocate: the memory stands from the start."""

    def knowledge_bytes(self) -> dict[str, int]:
        """The whole memory, as plastic targets too have room for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}

    def plasticity_support(self) -> Support:
        return Support(samples="memory")

    # ------------------------------------------------------------ draws

    def available(self, wanted: int) -> int:
        """How many images a draw can give."""
        return self.memory.available(min(wanted, self.memory.capacity))

    def variant(self) -> object:
        return self.available(self.settings.minibatch)

    def filling(self) -> bool:
        whole: int = min(self.settings.minibatch, self.memory.capacity)
        return self.available(whole) < whole

    def recall(self, draws: int) -> list[Recalled]:
        """So many independent draws."""
        size = self.available(self.settings.minibatch)
        return [self._recalled(size) for _ in range(draws)] if size else []

    def _recalled(self, size: int) -> Recalled:
        slots = self.memory.draw(size, self.generator)
        return Recalled(slots, self.views.weak(self.memory.images[slots], self.generator))

    def answered(self, recalled: Sequence[Recalled], outputs: Sequence[Output]) -> list[Draw]:
        pairs = zip(recalled, outputs, strict=True)
        return [Draw(own.slots, self.memory.labels[own.slots], output) for own, output in pairs]

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> ReplayStep:
        recalled = self.recall(self.draws)
        output, *answers = joint_forward(self.net, [batch.x, *(own.x for own in recalled)])
        return ReplayStep(batch, output, self.answered(recalled, answers))

    def after_step(self, step: ReplayStep) -> None:
        """Offer the raw images to the reservoir, with the answers to their augmented views from before the step."""
        targets = self.response(step.output)
        self.memory.reservoir(step.batch.raw, step.batch.y, self.generator, targets=targets)

    def replayed(self, step: Any) -> tuple[Output, Tensor]:
        name = self.settings.name
        require(bool(step.draws), f"distances of {name} act on draws from its memory, and it makes none; set draws = 1")
        first: Draw = step.draws[0]
        return first.output, first.slots


class ReplayHost(DrawingHost):
    """Held near what the model answered when an image was stored: stability acts where plasticity does."""

    Settings = ReplaySettings

    def stability_support(self) -> Support:
        return Support(samples="memory", weight=self.settings.alpha)

    def stability(self, step: ReplayStep) -> Tensor:
        """alpha_s times the distance to the stored targets, on the first draw."""
        output, slots = self.replayed(step)
        support = self.stability_support()
        return support.weight * squared_error(self.response(output), self.memory["targets"][slots])
