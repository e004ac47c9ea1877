"""BiC (Wu et al. 2019): distillation with exemplars, and then two numbers that correct the bias to new classes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from flashback.batches import Stream
from flashback.config import Count, Positive, Rule
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, soft_cross_entropy
from flashback.memory import first_of_each_class
from flashback.nets import evaluating
from flashback.nets.heads import BiasCorrectedNet
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class BiCSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    temperature: Positive = 2.0  # of the distillation
    # Share of the images of the smallest class that every class gives to the bias correction.
    held_out: Annotated[float, Rule("lie in (0, 1)", lambda share: 0 < share < 1)] = 0.1
    correction_epochs: Count | None = None  # None: as many as the main stage
    correction_lr: Positive | None = None  # base rate of the bias correction; None: that of the main stage


@HOSTS.register("bic")
class BiC(ExemplarHost):
    """Distillation with exemplars, then a stage that learns a scale and a shift for the logits of new classes.

    Stage 1 trains the network on most images: (1 - lambda) cross-entropy + lambda distillation, lambda being the share
    of old classes (Eq. 1 to 3 of Wu et al.). Stage 2 freezes it and learns alpha q + beta for the new logits on images
    held out from stage 1, equally many per class (Eq. 4 and 5 of Wu et al.).
    """

    Settings = BiCSettings
    family = "distillation"
    supports_image_weights = True
    net: BiasCorrectedNet

    def new_net(self) -> BiasCorrectedNet:
        return BiasCorrectedNet(self.new_backbone(), self.initial_sizes())

    def check(self) -> None:
        super().check()
        old = max(1, len(self.benchmark.tasks[-1].before))
        exemplars = self.settings.capacity(old) // old
        require(
            exemplars >= 2,
            "bias correction holds out exemplars of every class and learns from the others, so it needs two at least; "
            f"raise {'host.memory_per_class' if self.settings.memory_per_class else 'host.memory_size'}",
        )

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
        """Train scale and shift of the new logits alone, in a frozen network."""
        return self.extra_stage(
            "bias correction",
            self.settings.correction_epochs,
            {"lr": self.settings.correction_lr},
            stream=lambda: self.split_stream()[1],
            forward=evaluating(self.net)(self.forward),
            losses=lambda step: {"task": cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)},
            allocate=lambda: self.net.train_only(self.task.index),
            end=self.refill,
        )

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = {"task": (1 - self.old_share()) * cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy (FL Eq. 18 and 23), over the softmax of the supported columns."""
        teacher = knowledge(step.batch.x).logits[:, support.columns]
        student = step.output.logits[:, support.columns]
        return soft_cross_entropy(student, teacher, self.settings.temperature, support.images)

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.old_share())

    def old_share(self) -> float:
        """lambda = old / seen classes."""
        return len(self.task.before) / self.task.classes.stop

    def stream(self) -> Stream:
        fewest = int(torch.bincount(self.task.train.y)[self.task.new].min())
        require(
            fewest >= 2, "bias correction holds out an image of every class, and one of this task has a single image"
        )
        return self.split_stream()[0] if self.task.index > 0 else super().stream()

    def split_stream(self) -> tuple[Stream, Stream]:
        """New images and exemplars to learn from; and those held out, equally many per class, drawn once per task."""
        whole, seen = super().stream(), self.task.seen.stop
        order = torch.randperm(len(whole), generator=seeded_generator(self.config.seed, self.task.index, "held out"))
        labels = whole.labels.cpu()[order]
        smallest = int(torch.bincount(labels, minlength=seen).min())
        quota = max(1, math.floor(self.settings.held_out * smallest + 1e-9))  # 0.29 * 100 is below 29
        held_out = first_of_each_class(labels, [quota] * seen)
        mask = torch.ones(len(order), dtype=torch.bool)
        mask[held_out] = False
        return whole.part(order[mask]), whole.part(order[held_out])
