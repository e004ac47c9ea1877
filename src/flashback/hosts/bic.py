"""BiC (Wu et al. 2019): distillation with exemplars, and then two numbers that correct the bias to new classes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.batches import Stream
from flashback.config import above_zero, at_least_one
from flashback.errors import require
from flashback.hosts.base import HOSTS
from flashback.hosts.soft import SharedDistillation, SoftExemplarSettings
from flashback.hosts.stages import Stage, Step
from flashback.memory import within_quotas
from flashback.nets import BiasCorrectedNet, evaluating
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class BiCSettings(SoftExemplarSettings):
    held_out: float = 0.1  # share of the images of the smallest class that every class gives to the bias correction
    correction_epochs: int | None = None  # None: as many as the main stage
    correction_lr: float | None = None  # base rate of the bias correction; None: that of the main stage

    def check(self) -> None:
        super().check()
        require(0 < self.held_out < 1, f"host.held_out is a share above 0 and below 1, not {self.held_out}")
        at_least_one(self, "correction_epochs")
        above_zero(self, "correction_lr")


@HOSTS.register("bic")
class BiC(SharedDistillation):
    """Learns on most images; those held out, as many of each class, tell how far the new classes are favoured."""

    Settings = BiCSettings
    net: BiasCorrectedNet

    def new_net(self) -> BiasCorrectedNet:
        return BiasCorrectedNet(self.new_backbone(), self.benchmark.sizes)

    def check(self) -> None:
        super().check()
        old = max(1, len(self.benchmark.tasks[-1].before))
        exemplars = self.settings.capacity(old) // old
        require(
            exemplars >= 2,
            "bias correction holds out exemplars of every class and learns from the others, so it needs two at least; "
            f"raise {'host.memory_per_class' if self.settings.memory_per_class else 'host.memory_size'}",
        )

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        return [self.main_stage(), self.correction_stage()] if self.task.index > 0 else [self.main_stage()]

    def allocate(self) -> None:
        super().allocate()
        self.net.train_only(None)

    def end(self) -> None:
        """Herding ends a task: in the first one the main stage, later the correction, which needs the old memory."""
        if self.task.index == 0:
            self.refill()

    def correction_stage(self) -> Stage:
        """Scale and shift of the new logits alone, in a network that stands still."""
        return self.later_stage(
            "bias correction",
            self.settings.correction_epochs,
            {"lr": self.settings.correction_lr},
            stream=lambda: self.parts()[1],
            forward=evaluating(self.net)(self.forward),
            losses=self.correction_losses,
            allocate=lambda: self.net.train_only(self.task.index),
            end=self.refill,
        )

    def correction_losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": self.classification(step)}

    # ------------------------------------------------------------ images

    def stream(self) -> Stream:
        fewest = int(torch.bincount(self.task.train.y)[self.task.new].min())
        require(
            fewest >= 2, "bias correction holds out an image of every class, and one of this task has a single image"
        )
        return self.parts()[0] if self.task.index > 0 else super().stream()

    def parts(self) -> tuple[Stream, Stream]:
        """New images and exemplars to learn from; and as many of each class held out, drawn once a task."""
        whole, seen = super().stream(), self.task.seen.stop
        order = torch.randperm(len(whole), generator=seeded_generator(self.config.seed, self.task.index, "held out"))
        labels = whole.labels.cpu()[order]
        smallest = int(torch.bincount(labels, minlength=seen).min())
        quota = max(1, math.floor(self.settings.held_out * smallest + 1e-9))  # 0.29 * 100 is below 29
        held_out = within_quotas(labels, [quota] * seen)
        kept = torch.ones(len(order), dtype=torch.bool)
        kept[held_out] = False
        return whole.part(order[kept]), whole.part(order[held_out])
