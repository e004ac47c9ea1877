"""LUCIR (Hou et al. 2019): a cosine classifier, features held near the old ones, and a margin between old and new."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from flashback.batches import Batch
from flashback.config import within
from flashback.hosts.base import HOSTS, cross_entropy, features_of
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Optimisation, Stage, Step, nothing
from flashback.knowledge import ModelKnowledge, Support, cosine_distance
from flashback.memory import class_means
from flashback.nets import Backbone, CosineHead, Net, Output, untracked_batchnorm


@dataclass(frozen=True)
class LUCIRSettings(ExemplarSettings):
    lambda_base: float = 5.0  # weight of the less-forget term, before it is scaled with the classes
    scale: Literal["classes", "tasks"] = "classes"  # by sqrt(old / new classes), or by sqrt(task)
    hardest: int = 2  # K, the new classes an old sample is kept apart from
    margin: float = 0.5  # m, between the cosine to the own class and those to the hardest new ones
    margin_weight: float = 1.0
    imprint_view: Literal["plain", "train"] = "plain"  # the view of the images that imprint new class vectors
    finetune: Literal["seen", "current", "none"] = "seen"  # class vectors of the balanced fine-tuning
    finetune_epochs: int = 20
    finetune_lr: float = 0.01

    def check(self) -> None:
        super().check()
        for name in ("lambda_base", "margin", "margin_weight"):
            within(getattr(self, name) >= 0, f"host.{name} is not negative, not {getattr(self, name)}")
        within(self.hardest >= 1, f"host.hardest is at least 1, not {self.hardest}")
        within(self.finetune_epochs >= 1, "host.finetune_epochs is at least 1; host.finetune=none leaves the stage out")
        within(self.finetune_lr > 0, f"host.finetune_lr is above 0, not {self.finetune_lr}")


@dataclass
class CosineOutput(Output):
    cosines: Tensor  # the logits before their scale sigma


class Blocks(nn.Module):
    """Keeps class vectors as one parameter a task, so that a stage can train some of them and leave others alone."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = list(sizes)

    def forward(self, *blocks: Tensor) -> Tensor:
        return torch.cat(blocks)

    def right_inverse(self, vectors: Tensor) -> list[Tensor]:
        return [block.clone() for block in torch.split(vectors, self.sizes)]


class CosineNet(Net):
    """A backbone and a cosine head with a vector for every class there will ever be."""

    head: CosineHead

    def __init__(self, backbone: Backbone, sizes: Sequence[int]) -> None:
        super().__init__(backbone, CosineHead(backbone.width, sum(sizes)))
        parametrize.register_parametrization(self.head, "weight", Blocks(sizes))

    def forward(self, x: Tensor) -> CosineOutput:
        features = self.backbone(x).float()
        cosines = self.head.cosines(features)
        return CosineOutput(features, self.head.sigma * cosines, cosines)

    def blocks(self) -> list[nn.Parameter]:
        """The class vectors of each task."""
        return [parameter for parameter in self.head.parameters() if parameter is not self.head.sigma]

    def train_only(self, blocks: range, backbone: bool) -> None:
        """Weight decay and momentum never see what is left out here."""
        self.backbone.requires_grad_(backbone)
        for task, block in enumerate(self.blocks()):
            block.requires_grad_(task in blocks)


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

    def begin(self) -> None:
        if self.task.index > 0:
            self.imprint()

    def end(self) -> None:
        self.refill()

    @torch.no_grad()
    def imprint(self) -> None:
        """New class vectors start as the mean direction of their class, with the mean length of the old vectors."""
        images, labels = self.task.train.x, self.task.train.y.to(self.device) - self.task.new.start
        features = self.embed(images, features_of) if self.settings.imprint_view == "plain" else self.augmented(images)
        directions, _ = class_means(features, labels, len(self.task.classes), normalise=True)
        length = self.net.head.weight[self.task.old].norm(dim=1).mean()
        self.net.blocks()[self.task.index].copy_(length * directions)

    def augmented(self, images: Tensor) -> Tensor:
        """Features of training views in evaluation mode."""
        self.net.eval()
        pieces = torch.split(images, self.config.training.evaluation_batch)
        views = (self.views.weak(piece.to(self.device), self.generator) for piece in pieces)
        return torch.cat([self.net(view).features for view in views])

    def balanced_finetuning(self) -> Stage:
        """Class vectors and sigma alone, on the exemplars, of which every class has as many."""
        finetuning = replace(
            Optimisation.of(self.config.training, first_task=False),
            lr=self.settings.finetune_lr,
            schedule="step",
            milestones=(0.5,),
            gamma=0.1,
        )
        first = 0 if self.settings.finetune == "seen" else self.task.index
        return self.main_stage(
            name="balanced fine-tuning",
            epochs=self.settings.finetune_epochs,
            stream=self.memory_stream,
            optimisation=finetuning,
            forward=self.forward_untracked,
            losses=self.classification,  # the less-forget term has no gradient here: features stand still
            allocate=lambda: self.net.train_only(range(first, self.task.index + 1), backbone=False),
            begin=nothing,
            end=nothing,
            main=False,
        )

    # ------------------------------------------------------------ losses

    def forward_untracked(self, batch: Batch) -> Step:
        with untracked_batchnorm(self.net):
            return self.forward(batch)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = self.classification(step)
        if self.stable is not None:
            terms["stability"] = self.weighted_distance(step, self.stable, self.stability_support())
        return terms

    def classification(self, step: Step) -> dict[str, Tensor]:
        """Cross-entropy over the classes seen, and the margin between old and new classes."""
        assert isinstance(step.output, CosineOutput)
        labels, seen = step.batch.y, self.task.seen.stop
        terms = {"task": cross_entropy(step.output.logits[:, :seen], labels)}
        if self.task.index > 0:
            hardest = min(self.settings.hardest, len(self.task.classes))
            ranking = margin_ranking(step.output.cosines, labels, self.task.new, hardest, self.settings.margin)
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

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """The less-forget constraint (Section 3.3): features keep their direction."""
        return cosine_distance(step.output.features, knowledge(step.batch.x).features)


def margin_ranking(cosines: Tensor, labels: Tensor, new: slice, hardest: int, margin: float) -> Tensor:
    """Inter-class separation (Section 3.4): mean hinge of old samples against their nearest new class vectors."""
    own = cosines.gather(1, labels[:, None])
    nearest = cosines[:, new].topk(hardest, dim=1).values
    hinges = F.relu(margin - own + nearest).mean(dim=1)
    is_old = (labels < new.start).to(hinges.dtype)
    mean: Tensor = (hinges * is_old).sum() / is_old.sum().clamp(min=1.0)
    return mean
