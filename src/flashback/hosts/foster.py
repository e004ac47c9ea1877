"""FOSTER (Wang et al. 2022): a new module boosts the frozen network, then both are compressed into one again.

This file has both stages with their losses; the networks are in `nets/growing.py`, herding is in `exemplars.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from flashback.config import BelowOne, Count, NotNegative, Positive
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.prediction import Classifier
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, ModuleKnowledge, Support, soft_cross_entropy
from flashback.nets import Backbone, LinearHead, Output, evaluating
from flashback.nets.growing import Boosted, BoostedOutput, ComposedNet, GrowingNet, pad_classes

if TYPE_CHECKING:
    from flashback.hosts.beef_compress import BeefCompress


@dataclass(frozen=True)
class FosterSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    # beta of the logits alignment, in [0, 1). A list has one value per task, starting with the second task; later
    # tasks use its last value.
    beta1: float | tuple[float, ...] = 0.96
    distillation: NotNegative = 1.0  # weight of the distillation from the old network
    temperature: Positive = 2.0  # of both distillations
    compression_epochs: Count | None = None  # None: as many as the main stage
    compression_lr: Positive | None = None  # base rate of the compression; None: that of the main stage
    beta2: BelowOne = 0.97  # how much the compression favours classes with few images; 0: not at all

    def check(self) -> None:
        super().check()
        require(bool(self.betas()), "host.beta1 must be a number or a list with at least one number")
        require(all(0 <= beta < 1 for beta in self.betas()), f"host.beta1 must lie in [0, 1), not {self.beta1}")

    def betas(self) -> tuple[float, ...]:
        return self.beta1 if isinstance(self.beta1, tuple) else (self.beta1,)


class BoostingHost(ExemplarHost):
    """A host that trains a new module m beside the frozen network h_s, with one head on [h_s ; m] (FL Eq. 7).

    A subclass sets `stable` and `net` in `allocate`.
    """

    family = "dynamic"
    has_one_backbone = False
    supports_image_weights = True
    scores_unseen = False
    settings: Any  # with `temperature`
    net: GrowingNet | Boosted
    stable: ModelKnowledge | None  # h_s with its head (FL Eq. 8)

    def new_net(self) -> GrowingNet:
        return GrowingNet(self.new_backbone(), len(self.task.classes))

    def distance(self, step: Step, knowledge: OldNet | PrimaryModule, support: Support) -> Tensor:
        """Cross-entropy from the softmax of h_s (or of the primary model) to that of the network (FL Eq. 18 and 23).

        Both are taken over the supported columns alone, at the same temperature; there is no factor T^2.
        """
        assert isinstance(step.output, BoostedOutput)
        target = knowledge.logits(step.output.old, step.batch.x)[:, support.columns]
        student = step.output.logits[:, support.columns]
        return soft_cross_entropy(student, target, self.settings.temperature, support.images)

    def blank_knowledge(self) -> PrimaryModule:
        return PrimaryModule(new_parts(self.net))

    def fill_knowledge(self, knowledge: PrimaryModule) -> None:
        knowledge.fill(new_parts(self.net))

    def response_width(self) -> int:
        return self.task.classes.stop

    def expanded(self) -> nn.Module:
        """Return h_s and the new module as one network, net(h_s(x), x): the teacher; in task 1 the only network."""
        stable, net = self.stable, self.net
        return net if stable is None else ComposedNet(lambda x: net(stable(x), x), stable, net)

    def trained_net(self) -> nn.Module:
        return self.expanded()

    def predictor(self) -> nn.Module:
        return self.expanded()

    def scores(self, x: Tensor) -> Tensor:
        return pad_classes(super().scores(x), self.columns)


@HOSTS.register("foster")
class Foster(BoostingHost):
    """Boosting trains a module and its heads against what the frozen network gets wrong; compression follows.

    Boosting: a new module m beside the frozen network h_s, one head on [h_s ; m] (FL Eq. 7).
    Compression: a student as large as the old network learns from both. It is what the host predicts with, and what
    the next task starts from.
    """

    Settings = FosterSettings
    weights: Tensor  # of the classes seen, for the logits alignment (beta1)

    def build(self) -> None:
        super().build()
        self.compression = Compression()

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [self.main_stage(name="boosting"), self.compression.stage(self)]

    def allocate(self) -> None:
        """Freeze a copy of the last network as h_s; its backbone continues as the new module, with two new heads."""
        if self.task.index == 0:
            return
        old = self.compression.student or cast(GrowingNet, self.net)
        seen = self.task.seen.stop
        self.stable, self.compression.student = OldNet(old), None
        self.net = Boosted(old.backbone, old.head, seen, enhancement_rows=seen)
        self.register_buffer("weights", torch.ones(seen))

    def begin(self) -> None:
        if self.task.index > 0:
            betas = self.settings.betas()
            beta1 = betas[min(self.task.index, len(betas)) - 1]
            self.weights.copy_(class_weights(class_counts(self), beta1))

    def end(self) -> None:
        """Choose exemplars after the first task; later tasks do so after the compression, with its teacher."""
        if self.task.index == 0:
            self.refill()

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        """Return the backbone and the head that the student starts from: those of h_s."""
        assert self.stable is not None
        old = cast(GrowingNet, self.stable.model.module)
        return old.backbone, old.head

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = CE(logits / w) + CE(logits of m alone) + distillation * KD(old columns, h_s); `distance` is KD.

        Old classes have weights w above 1: their logits shrink in the loss, so the network must raise them.
        """
        output, labels = step.output, step.batch.y
        if not isinstance(output, BoostedOutput):
            return {"task": cross_entropy(output.logits, labels)}
        return {
            "task": cross_entropy(output.logits / self.weights, labels),
            "enhancement": cross_entropy(output.enhanced, labels),
            "stability": self.stability(step),
        }

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.settings.distillation)

    def predictor(self) -> nn.Module:
        return self.compression.student or self.expanded()

    def classifiers(self) -> dict[str, Classifier]:
        return self.compression.classifiers(self)


class OldNet(ModelKnowledge):
    """The stable knowledge: the frozen network h_s with its head (FL Eq. 8)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        """Return the logits of h_s: they are in its output, which `forward` computed."""
        return old.logits


class PrimaryModule(ModuleKnowledge):
    """The plastic knowledge: the new module and the head that joins it to h_s, as phase 1 left them (FL Eq. 13)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        """Compute the primary logits from the output of h_s, which `forward` computed, and the primary module."""
        logits: Tensor = self["head"](torch.cat([old.features, self["module"](x).float()], dim=1))
        return logits


def new_parts(net: nn.Module) -> dict[str, nn.Module]:
    assert isinstance(net, Boosted)
    return {"module": net.module.backbone, "head": net.head}


# ---------------------------------------------------------------- compression, also used by BEEF-Compress


class Compression(nn.Module):
    """The compression stage: a student as large as one module learns only from the expanded network, the teacher."""

    weights: Tensor  # of the classes seen, for balanced distillation (beta2)

    def __init__(self) -> None:
        super().__init__()
        self.student: GrowingNet | None = None

    def classifiers(self, host: Foster | BeefCompress) -> dict[str, Classifier]:
        """Return the student and the teacher as classifiers."""

        def teacher(x: Tensor) -> Tensor:
            return pad_classes(host.expanded()(x).logits, host.columns)

        return {"student": host.scores, "teacher": teacher}

    def stage(self, host: Foster | BeefCompress) -> Stage:
        """Make the compression stage. It has no weight decay, and herds features of the teacher at its end.

        `host.old_parts` returns the module and head that the student starts from, `host.expanded` the teacher.
        """
        settings = host.settings

        def allocate() -> None:
            """Make the student: the old network, with fresh rows for the new classes."""
            (module, head), seen = host.old_parts(), host.task.seen.stop
            self.student = GrowingNet(copy.deepcopy(module).set_trainable(), seen, head)
            self.register_buffer("weights", torch.ones(seen))

        def begin() -> None:
            self.weights.copy_(class_weights(class_counts(host), settings.beta2))

        def losses(step: Step) -> Mapping[str, Tensor]:
            teacher = host.expanded()
            with torch.no_grad(), evaluating(teacher):
                targets = teacher(step.batch.x).logits
            loss = balanced_distillation(step.output.logits, targets, self.weights, settings.temperature)
            return {"compression": loss}

        return host.extra_stage(
            "compression",
            settings.compression_epochs,
            {"lr": settings.compression_lr, "weight_decay": 0.0},
            parameters=lambda: list(cast(GrowingNet, self.student).parameters()),
            forward=lambda batch: Step(batch, cast(GrowingNet, self.student)(batch.x)),
            losses=losses,
            allocate=allocate,
            begin=begin,
            end=lambda: host.refill(host.expanded()),
        )


def class_counts(host: ExemplarHost) -> Tensor:
    """Count the training images of each class seen: all of a new one, the exemplars of an old one."""
    labels = torch.cat([host.memory_stream().labels.cpu(), host.task.train.y])
    return torch.bincount(labels, minlength=host.task.seen.stop)


def class_weights(counts: Tensor, beta: float) -> Tensor:
    """Inverse effective numbers of images (Cui et al. 2019), v = (1 - beta) / (1 - beta^n), scaled to a mean of 1."""
    rarity = (1 - beta) / (1 - beta ** counts.double().clamp(min=1))
    return (rarity / rarity.mean()).float()


def balanced_distillation(student: Tensor, teacher: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Distillation from the teacher's softened softmax, its columns weighted and its rows normalised to a sum of 1.

    That is the softmax of logits with T log(w) added.
    """
    return soft_cross_entropy(student, teacher + temperature * weights.log(), temperature)
