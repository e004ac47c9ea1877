"""Replay: every step trains on a batch of new images and on images drawn from a memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.benchmarks import Task
from flashback.config import Count, HostSettings
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.stages import Step
from flashback.knowledge import Knowledge, ReplayedTargets, Support, squared_error
from flashback.memory import Field, Memory, first_of_each_class
from flashback.nets import Net, Output, joint_forward


@dataclass(frozen=True)
class ReplaySettings(HostSettings):
    """Settings of every host that replays."""

    memory_size: Count = 2000  # images in the memory
    minibatch: Count = 32  # images of one draw from the memory


@dataclass
class Draw:
    """Images drawn from the memory; `forward` sets `output`, the network's output for them."""

    slots: Tensor  # where they are stored
    labels: Tensor
    x: Tensor  # the augmented images
    output: Output = field(init=False)


@dataclass
class ReplayStep(Step):
    """A step with its independent draws; the list is empty while the memory is empty."""

    draws: list[Draw]


class StoredTargets(Knowledge):
    """The outputs that the memory keeps with its images, in the field "targets" (FL Eq. 2)."""

    def distance(self, responses: Tensor, slots: Tensor, memory: Memory, columns: slice = slice(None)) -> Tensor:
        """Compute the mean squared error between responses and stored targets (FL Eq. 16).

        Args:
            responses: The model's outputs for a draw, [B, width].
            slots: The memory slot of each image of the draw, [B].
            memory: The memory that holds the targets.
            columns: The columns to compare.
        """
        return squared_error(responses[:, columns], memory["targets"][slots][:, columns])


class ReplayHost(Host):
    """A host that draws images from a memory in every step.

    The memory is the stable knowledge (FL Eq. 2): images, labels and targets. Targets are the outputs that the model
    gave for the images when they were stored. The distance is the squared error between the outputs for the first draw
    and targets: the stored targets for stability, the primary model's outputs for plasticity (FL Eq. 16 and 21).
    """

    Settings = ReplaySettings
    family = "replay"
    replays_targets = True
    memory: Memory
    net: Net
    draws_per_step: ClassVar[int] = 1  # number of independent draws
    stores_at_end: ClassVar[bool] = False  # whether images enter the memory when a task ends, not in every step

    def build(self) -> None:
        super().build()
        fields = self.fields()
        self.memory = Memory(self.settings.memory_size, self.benchmark.image_shape, fields)
        self.stable = StoredTargets() if "targets" in fields else None

    def grow(self, columns: int) -> None:
        """Grow the network; stored targets are 0 in the new columns."""
        super().grow(columns)
        self.check_memory(columns)
        if "targets" in self.memory.field_names and self.response_width() > self.memory["targets"].shape[1]:
            self.memory.widen("targets", self.response_width())

    def check(self) -> None:
        self.check_memory(self.benchmark.classes)

    def check_memory(self, classes: int) -> None:
        size = self.settings.memory_size
        require(
            size >= classes or not self.stores_at_end,
            f"host.memory_size is {size}, less than one image for each of the {classes} classes; raise it",
        )

    def fields(self) -> dict[str, Field]:
        """Return what the memory keeps beside images and labels, by name; the field "targets" is compared."""
        return {"targets": ((self.response_width(),), torch.float32)}

    def allocate(self) -> None:
        """Nothing to allocate: the memory is there from the start."""

    def knowledge_bytes(self) -> dict[str, int]:
        """Count the allocated memory, since plastic targets also reserve a row for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}

    def draw(self) -> list[Draw]:
        """Draw images uniformly from the memory, `draws_per_step` times, and augment them; none if it is empty."""
        draws = []
        size = self.available(self.settings.minibatch)
        for _ in range(self.draws_per_step if size else 0):
            slots = self.memory.draw(size, self.generator)
            x = self.views.weak(self.memory.images[slots], self.generator)
            draws.append(Draw(slots, self.memory.labels[slots], x))
        return draws

    def forward(self, batch: Batch) -> ReplayStep:
        """Run the network on the batch and on each draw."""
        draws = self.draw()
        output, *outputs = joint_forward(self.net, [batch.x, *(draw.x for draw in draws)])
        for draw, draw_output in zip(draws, outputs, strict=True):
            draw.output = draw_output
        return ReplayStep(batch, output, draws)

    def after_step(self, step: ReplayStep) -> None:
        """Offer the raw images to the reservoir, with the outputs for their augmented views."""
        if not self.stores_at_end:
            targets = {"targets": self.response(step.output)} if self.stable is not None else {}
            self.memory.reservoir(step.batch.raw, step.batch.y, self.generator, **targets)

    def plasticity_support(self) -> Support:
        return Support(samples="memory")

    def distance(self, step: Any, knowledge: StoredTargets | ReplayedTargets, support: Support) -> Tensor:
        """Mean squared error between the outputs for the first draw and their targets (FL Eq. 16 and 21)."""
        return super().replay_distance(step, knowledge, support)

    def replay_distance(self, step: Any, knowledge: StoredTargets | ReplayedTargets, support: Support) -> Tensor:
        """Call `distance`, also that of a subclass: all knowledge of this host is about stored images."""
        return self.distance(step, knowledge, support)

    def replayed(self, step: Any) -> tuple[Output, Tensor]:
        """Return the outputs for the first draw, and its slots."""
        require(bool(step.draws), "this step has no draw: the memory is empty, or the class sets draws_per_step = 0")
        first: Draw = step.draws[0]
        return first.output, first.slots

    # ------------------------------------------------------------ fixed shapes, for captured CUDA graphs

    def available(self, size: int) -> int:
        """Return the size of a draw: the size asked for, or less while the memory holds fewer images.

        Args:
            size: The images of a full draw.
        """
        if self.stores_at_end and self.task.index == 0:
            return 0  # asking the memory would synchronise with the GPU in every step
        return self.memory.available(min(size, self.memory.capacity))

    def variant(self) -> object:
        return self.available(self.settings.minibatch)

    def filling(self) -> bool:
        full: int = min(self.settings.minibatch, self.memory.capacity)
        return not self.stores_at_end and self.available(full) < full


# ---------------------------------------------------------------- a memory that is balanced when a task ends


def balanced_quotas(capacity: int, old: int, new: int, generator: torch.Generator) -> list[int]:
    """X-DER's quotas, which fill the memory: an equal share, rounded down, for old classes, all the rest for new ones.

    The remainder goes to random new classes, one each. Old classes come first in the result.
    """
    share = capacity // (old + new)
    each, remainder = divmod(capacity - old * share, new)
    extra = set(torch.randperm(new, generator=generator, device=generator.device)[:remainder].tolist())
    return [share] * old + [each + (index in extra) for index in range(new)]


def trim_to_quotas(memory: Memory, task: Task, generator: torch.Generator) -> list[int]:
    """Trim each past class to its share of the memory; a class that comes again keeps half of its share.

    Returns:
        The free places of each class.
    """
    absent = [column for column in task.before if column not in task.revisited]
    quotas = balanced_quotas(memory.capacity, len(absent), len(task.columns), generator)
    shares = dict(zip([*absent, *task.columns], quotas, strict=True))
    limits = [shares[column] // (2 if column in task.revisited else 1) for column in task.before]
    memory.keep(first_of_each_class(memory.labels[: memory.filled], limits))
    stored = torch.bincount(memory.labels[: memory.filled], minlength=task.seen.stop).tolist()
    return [shares[column] - stored[column] for column in range(task.seen.stop)]


def sample_new_images(
    task: Task, quotas: Sequence[int], generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Draw the images of each class of the task that fill its quota; returns raw images and labels."""
    order = torch.randperm(len(task.train), generator=generator, device=device).cpu()
    rows = order[first_of_each_class(task.train.y[order], quotas)]
    return task.train.x[rows].to(device), task.train.y[rows].to(device)
