"""LUCIR (Hou et al. 2019): a cosine classifier, features held near the old ones, and a margin between old and new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.config import above_zero, at_least_one, not_negative, within
from flashback.hosts.base import HOSTS, cross_entropy, features_of
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.losses import margin_ranking
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, cosine_distance
from flashback.memory import class_means
from flashback.nets import CosineNet, CosineOutput, Output, evaluating, untracked_batchnorm


@dataclass(frozen=True)
class LUCIRSettings(ExemplarSettings):
    columns: Literal["seen", "all"] = "seen"  # of the losses; "all" has the random vectors of classes to come (Mammoth)
    lambda_base: float = 5.0  # weight of the less-forget term, before it is scaled with the classes
    scale: Literal["classes", "tasks"] = "classes"  # by sqrt(old / new classes), or by sqrt(task)
    hardest: int = 2  # K, the new classes an old sample is kept apart from
    margin: float = 0.5  # m, between the cosine to the own class and those to the hardest new ones
    margin_weight: float = 1.0
    imprint_view: Literal["plain", "train"] = "plain"  # the view of the images that imprint new class vectors
    # Class vectors of the balanced fine-tuning: all, with batch-norm statistics and sigma held (the original), or those
    # of the task, with statistics of the batch and sigma trained (Mammoth).
    finetune: Literal["seen", "current", "none"] = "seen"
    finetune_epochs: int = 20
    finetune_lr: float = 0.01
    finetune_milestones: tuple[float, ...] = (0.5,)  # shares of these epochs at which the rate falls to a tenth

    def check(self) -> None:
        super().check()
        not_negative(self, "lambda_base", "margin", "margin_weight")
        at_least_one(self, "hardest")
        within(self.finetune_epochs >= 1, "host.finetune_epochs is at least 1; host.finetune=none leaves the stage out")
        above_zero(self, "finetune_lr")
        within(all(0 < m <= 1 for m in self.finetune_milestones), "host.finetune_milestones are shares in (0, 1]")


@HOSTS.register("lucir")
class LUCIR(ExemplarHost):
    """Learns new class vectors beside frozen old ones, then balances the classifier on the exemplars alone.

    Classes to come have a column too, but a random vector until they are imprinted: zero-shot accuracy is chance.
    """

    Settings = LUCIRSettings
    family = "distillation"
    net: CosineNet

    def new_net(self) -> CosineNet:
        return CosineNet(self.new_backbone(), self.benchmark.sizes)

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        balanced = self.task.index > 0 and self.settings.finetune != "none"
        return [self.main_stage(), self.balanced_finetuning()] if balanced else [self.main_stage()]

    def allocate(self) -> None:
        super().allocate()
        self.net.train_only(range(self.task.index, self.task.index + 1), backbone=True)

    @torch.no_grad()
    def begin(self) -> None:
        """Imprint: new class vectors start as the mean direction of their class, with the mean length of old ones."""
        if self.task.index == 0:
            return
        weak = partial(self.views.weak, generator=self.generator)
        view = weak if self.settings.imprint_view == "train" else self.views.plain
        features = self.embed(self.task.train.x, features_of, view=view)
        labels = self.task.train.y.to(self.device) - self.task.new.start
        directions = class_means(features, labels, len(self.task.classes), normalise=True)
        length = self.net.head.weight[self.task.old].norm(dim=1).mean()
        self.net.blocks()[self.task.index].copy_(length * directions)

    def balanced_finetuning(self) -> Stage:
        """The classifier alone, on the exemplars, of which every class has as many."""
        settings, all_seen = self.settings, self.settings.finetune == "seen"
        tuned = range(0 if all_seen else self.task.index, self.task.index + 1)
        mode = evaluating if all_seen else untracked_batchnorm
        return self.later_stage(
            "balanced fine-tuning",
            settings.finetune_epochs,
            {"lr": settings.finetune_lr, "schedule": "step", "milestones": settings.finetune_milestones, "gamma": 0.1},
            stream=self.memory_stream,
            forward=mode(self.net)(self.forward),
            losses=self.classification,  # the less-forget term has no gradient here: features stand still
            allocate=lambda: self.net.train_only(tuned, backbone=False, sigma=not all_seen),
        )

    # ------------------------------------------------------------ losses

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = self.classification(step)
        if self.stable is not None:
            terms["stability"] = self.stability(step)
        return terms

    def classification(self, step: Step) -> dict[str, Tensor]:
        """Cross-entropy over the classes seen, and the margin between old and new classes."""
        assert isinstance(step.output, CosineOutput)
        labels = step.batch.y
        last = self.benchmark.classes if self.settings.columns == "all" else self.task.seen.stop
        terms = {"task": cross_entropy(step.output.logits[:, :last], labels)}
        if self.task.index > 0:
            others, settings = slice(self.task.new.start, last), self.settings
            ranking = margin_ranking(step.output.cosines, labels, others, settings.hardest, settings.margin)
            terms["margin"] = self.settings.margin_weight * ranking
        return terms

    # ------------------------------------------------------------ knowledge

    def stability_support(self) -> Support:
        """The more old classes there are for each new one, the more there is to keep (Section 3.3)."""
        by_task = self.settings.scale == "tasks"
        growth = self.task.index if by_task else len(self.task.before) / len(self.task.classes)
        return Support(weight=self.settings.lambda_base * math.sqrt(growth))

    def plasticity_support(self) -> Support:
        """The features of the whole batch. The factor is not in the paper but in its authors' experiments."""
        return Support(weight=self.settings.lambda_base / math.sqrt(self.task.index))

    def response(self, output: Output) -> Tensor:
        """Replayed knowledge is a direction too, of a length for which 1 - cos is the mean squared difference."""
        return math.sqrt(self.response_width() / 2) * F.normalize(output.features)

    def response_width(self) -> int:
        return self.net.backbone.width

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """The less-forget constraint (Section 3.3): features keep their direction."""
        return cosine_distance(step.output.features, knowledge(step.batch.x).features)
