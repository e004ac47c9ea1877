"""What hosts with a growing network share: new modules beside frozen ones, and compression back into one of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import above_zero, at_least_one
from flashback.errors import require
from flashback.hosts.exemplars import ExemplarHost
from flashback.hosts.prediction import Classifier
from flashback.hosts.soft import SoftDistillation, SoftExemplarSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, ModuleKnowledge, soft_cross_entropy
from flashback.nets import Backbone, Boosted, BoostedOutput, ComposedNet, GrowingNet, LinearHead, Output, evaluating


@dataclass(frozen=True)
class ExpandingSettings(SoftExemplarSettings):
    """What every host with a growing network has."""


@dataclass(frozen=True, kw_only=True)
class CompressionSettings(ExpandingSettings):
    compression_epochs: int | None = None  # None: as many as the main stage
    compression_lr: float | None = None  # base rate of the compression; None: that of the main stage
    beta2: float = 0.97  # how much the compression favours classes with few images; 0: not at all

    def check(self) -> None:
        super().check()
        at_least_one(self, "compression_epochs")
        above_zero(self, "compression_lr")
        require(0 <= self.beta2 < 1, f"host.beta2 lies in [0, 1), not {self.beta2}")


class ExpandingHost(ExemplarHost, SoftDistillation):
    """A host whose heads have rows for the classes met so far, and no others."""

    Settings = ExpandingSettings
    family = "dynamic"
    scores_unseen = False

    def expanded(self) -> nn.Module:
        """The whole network, frozen modules and new one; in the first task there is but one."""
        raise NotImplementedError

    def new_net(self) -> GrowingNet:
        return GrowingNet(self.new_backbone(), len(self.task.classes))

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        return [self.main_stage()] if self.task.index == 0 else self.expanding_stages()

    def expanding_stages(self) -> list[Stage]:
        """From the second task on: the main stage trains a new module, others make one network of old and new."""
        raise NotImplementedError

    def allocate(self) -> None:
        if self.task.index > 0:
            self.expand()

    def expand(self) -> None:
        """Freeze what the last task left, and make a module for the present one."""
        raise NotImplementedError

    def end(self) -> None:
        """Herding ends a task: in the first one the main stage, later the last stage."""
        if self.task.index == 0:
            self.refill()

    def refill(self, net: nn.Module | None = None) -> None:
        """Herding looks at the features of all modules."""
        super().refill(self.expanded() if net is None else net)

    # ------------------------------------------------------------ knowledge

    def response_width(self) -> int:
        return self.task.classes.stop

    # ------------------------------------------------------------ evaluation

    def predictor(self) -> nn.Module:
        return self.expanded()

    def scores(self, x: Tensor) -> Tensor:
        return self.padded(self.predictor()(x).logits)

    def padded(self, logits: Tensor) -> Tensor:
        """Columns for classes without a row, which are never predicted."""
        return F.pad(logits, (0, self.benchmark.classes - logits.shape[1]), value=-torch.inf)


class PrimaryModule(ModuleKnowledge):
    """The new module and the head that joins it to h_s, as they were after phase 1 (Eq. 13)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        """h_s runs once a step, and all who need its features share them."""
        logits: Tensor = self["head"](torch.cat([old.features, self["module"](x).float()], dim=1))
        return logits


class JoiningHost(ExpandingHost):
    """From the second task on one head joins the new module to the frozen network h_s, the stable knowledge (Eq. 7)."""

    stable: ModelKnowledge | None

    def expanded(self) -> nn.Module:
        stable, net = self.stable, self.net
        return net if stable is None else ComposedNet(lambda x: net(stable(x), x), stable, net)

    def answering_net(self) -> nn.Module:
        return self.expanded()

    def anchor(self, step: Step, knowledge: Any) -> Tensor:
        assert isinstance(step.output, BoostedOutput)
        logits: Tensor = knowledge.logits(step.output.old, step.batch.x)
        return logits

    def plastic_parts(self) -> dict[str, nn.Module]:
        assert isinstance(self.net, Boosted)
        return {"module": self.net.module.backbone, "head": self.net.head}

    def blank_knowledge(self) -> PrimaryModule:
        return PrimaryModule(self.plastic_parts())

    def fill_knowledge(self, knowledge: PrimaryModule) -> None:
        knowledge.fill(self.plastic_parts())


class CompressingHost(ExpandingHost):
    """Ends a task by distilling the expanded network into one module, which the next task starts from (FOSTER)."""

    Settings = CompressionSettings
    weights: Tensor  # of the classes seen, for a stage that balances them

    def build(self) -> None:
        super().build()
        self.student: GrowingNet | None = None

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        """The one module that the last task left, and its head."""
        raise NotImplementedError

    # ------------------------------------------------------------ the stage

    def compression_stage(self) -> Stage:
        """Without weight decay. Herding, which ends the task, looks at the teacher's features."""
        return self.later_stage(
            "compression",
            self.settings.compression_epochs,
            {"lr": self.settings.compression_lr, "weight_decay": 0.0},
            parameters=self.student_parameters,
            forward=self.forward_student,
            losses=self.compression_losses,
            allocate=self.allocate_student,
            begin=lambda: self.weigh_classes(self.settings.beta2),
            end=self.refill,
        )

    def allocate_student(self) -> None:
        """The student starts as the old network, with fresh rows for the new classes."""
        module, head = self.old_parts()
        self.student = GrowingNet(copy.deepcopy(module).set_trainable(), self.task.seen.stop, head)
        self.allocate_weights()

    def student_parameters(self) -> list[nn.Parameter]:
        assert self.student is not None
        return list(self.student.parameters())

    def forward_student(self, batch: Batch) -> Step:
        assert self.student is not None
        return Step(batch, self.student(batch.x))

    def compression_losses(self, step: Step) -> Mapping[str, Tensor]:
        teacher = self.expanded()
        with torch.no_grad(), evaluating(teacher):
            targets = teacher(step.batch.x).logits
        temperature = self.settings.temperature
        return {"compression": balanced_distillation(step.output.logits, targets, self.weights, temperature)}

    # ------------------------------------------------------------ class weights

    def allocate_weights(self) -> None:
        self.register_buffer("weights", torch.ones(self.task.seen.stop))

    def weigh_classes(self, beta: float) -> None:
        """Weights from how many images of each class the task trains on: all of the new, the exemplars of the old."""
        labels = torch.cat([self.memory_stream().labels.cpu(), self.task.train.y])
        self.weights.copy_(class_weights(torch.bincount(labels, minlength=len(self.weights)), beta))

    # ------------------------------------------------------------ evaluation

    def predictor(self) -> nn.Module:
        """The student; until there is one, the network that it will learn from."""
        return self.expanded() if self.student is None else self.student

    def classifiers(self) -> dict[str, Classifier]:
        return {"student": self.scores, "teacher": lambda x: self.padded(self.expanded()(x).logits)}


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Inverse effective numbers of images, v = (1 - beta) / (1 - beta^n), scaled to a mean of 1; beta = 0: all ones."""
    rarity = (1 - beta) / (1 - beta ** counts.double().clamp(min=1))
    return (rarity / rarity.mean()).float()


def balanced_distillation(student: Tensor, teacher: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Distillation from the teacher's softened softmax, its columns weighted and its rows brought back to a sum of 1.

    That is the softmax of logits with T log(w) added.
    """
    return soft_cross_entropy(student, teacher + temperature * weights.log(), temperature)
