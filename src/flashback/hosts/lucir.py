"""LUCIR (Hou et al. 2019): a cosine classifier, features held near the old ones, and a margin between old and new.

This file has the losses, imprinting and fine-tuning; the cosine classifier is in `nets/heads.py`, herding in
`exemplars.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.batches import Batch
from flashback.config import Count, NotNegative, Positive
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings, class_means
from flashback.hosts.prediction import directions, features_of
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support, cosine_distance, masked_mean
from flashback.nets import Output, evaluating, untracked_batchnorm
from flashback.nets.heads import CosineNet, CosineOutput


@dataclass(frozen=True)
class CosineSettings(ExemplarSettings):
    """Settings of imprinting and balanced fine-tuning, which PODNet has too."""

    imprint_view: Literal["plain", "train"] = "plain"  # the view of the images that imprint new class vectors
    finetune: Literal["seen", "current", "none"] = "seen"  # class vectors that fine-tuning trains
    finetune_epochs: Count = 20
    finetune_lr: Positive = 0.01
    finetune_milestones: tuple[float, ...] = (0.5,)  # shares of these epochs at which the rate falls to a tenth

    def check(self) -> None:
        super().check()
        require(all(0 < m <= 1 for m in self.finetune_milestones), "host.finetune_milestones are shares in (0, 1]")


@dataclass(frozen=True)
class LUCIRSettings(CosineSettings):
    # Herd unit-length features, as the authors' code does; False is as in Mammoth.
    normalise: bool = False
    lambda_base: NotNegative = 5.0  # weight of the less-forget term, before it is scaled with the classes
    hardest: Count = 2  # K: number of hardest new classes in the margin loss
    margin: NotNegative = 0.5  # m, between the cosine to the true class and those to the hardest new ones
    margin_weight: NotNegative = 1.0
    # Both imitate other implementations (Mammoth): "all" has the random vectors of future classes in the losses;
    # "tasks" scales lambda_base by sqrt(task), not by sqrt(old / new classes).
    columns: Literal["seen", "all"] = "seen"
    scale: Literal["classes", "tasks"] = "classes"


@HOSTS.register("lucir")
class LUCIR(ExemplarHost):
    """A cosine classifier that keeps the direction of features and separates old from new classes by a margin.

    A task has two stages. The first trains the backbone and the new class vectors, which are imprinted, with three
    losses (Section 3 of Hou et al.): cross-entropy on scaled cosines, the less-forget constraint on features, and the
    margin ranking loss. The second, an option in the authors' code, tunes the class vectors on the exemplars, equally
    many per class; exemplars are herded at the end of the first (`ExemplarHost.end`).
    The vectors of new classes are random until they are imprinted: zero-shot accuracy is chance.
    The authors' network has no ReLU before the classifier; of the nets here only resnet32-cosine does the same.
    """

    Settings = LUCIRSettings
    family = "distillation"
    supports_image_weights = True
    net: CosineNet

    def new_net(self) -> CosineNet:
        return CosineNet(self.new_backbone(), self.initial_sizes())

    def stages(self) -> list[Stage]:
        return [self.main_stage(), *balanced_finetuning(self, self.classification)]

    def allocate(self) -> None:
        """Train the backbone, sigma and the new class vectors; freeze those of all other tasks."""
        super().allocate()
        self.net.train_only(range(self.task.index, self.task.index + 1), backbone=True)

    def begin(self) -> None:
        """Imprint the vectors of new classes: the mean direction of their features."""
        imprint(self, partial(class_means, classes=len(self.task.classes), normalise=True))

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = CE(sigma * cos) + margin_weight * margin ranking + lambda * (1 - cos(features, old features))."""
        terms = self.classification(step)
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def classification(self, step: Step) -> dict[str, Tensor]:
        """Cross-entropy over the classes seen, and from task 2 on the margin between old and new classes."""
        assert isinstance(step.output, CosineOutput)
        labels, end, settings = step.batch.y, self.trained_columns(), self.settings
        terms = {"task": cross_entropy(step.output.logits[:, :end], labels)}
        if self.task.index > 0:
            new = slice(self.task.new.start, end)
            ranking = margin_ranking(step.output.cosines, labels, new, settings.hardest, settings.margin)
            terms["margin"] = settings.margin_weight * ranking
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """The less-forget constraint (Section 3.3): 1 - cos between the features and the old (or primary) ones."""
        return cosine_distance(step.output.features, knowledge(step.batch.x).features, support.images)

    def stability_support(self) -> Support:
        """lambda = lambda_base * sqrt(old / new classes), as in the authors' code; Eq. 7 prints the inverse ratio."""
        task = self.task
        growth = task.index if self.settings.scale == "tasks" else len(task.before) / len(task.classes)
        return Support(weight=self.settings.lambda_base * math.sqrt(growth))

    def plasticity_support(self) -> Support:
        """The features of the whole batch; the factor is from the Flashback authors' experiments, not their paper."""
        return Support(weight=self.settings.lambda_base / math.sqrt(self.task.index))

    def response(self, output: Output) -> Tensor:
        return directions(output)

    def response_width(self) -> int:
        return self.net.backbone.width

    # ------------------------------------------------------------ the switch `columns`

    def trained_columns(self) -> int:
        return self.columns if self.settings.columns == "all" else self.task.seen.stop

    def trains_future_classes(self) -> bool:
        return self.settings.columns == "all"


def margin_ranking(cosines: Tensor, labels: Tensor, new: slice, hardest: int, margin: float) -> Tensor:
    """Inter-class separation (Section 3.4): hinge of old samples against their K nearest new class vectors."""
    true = cosines.gather(1, labels[:, None])
    nearest = cosines[:, new].topk(min(hardest, new.stop - new.start), dim=1).values
    hinges = F.relu(margin - true + nearest).mean(dim=1)  # as in the authors' code; the paper sums over K
    return masked_mean(hinges, labels < new.start)


# ---------------------------------------------------------------- imprinting and balanced fine-tuning, for PODNet too


@torch.no_grad()
def imprint(host: Any, unit_vectors: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Set the vectors of the new classes, from the second task on: the mean length of the old ones times a direction.

    `unit_vectors` computes the directions from the features of the new images and their labels, counted from 0.
    """
    task = host.task
    if task.index == 0:
        return
    weak = partial(host.views.weak, generator=host.generator)
    view = weak if host.settings.imprint_view == "train" else host.views.plain
    features = host.embed(task.train.x, features_of, view=view)
    vectors = unit_vectors(features, task.train.y.to(host.device) - task.new.start)
    blocks: list[Tensor] = [*host.net.blocks()]
    length = torch.cat(blocks[: task.index]).norm(dim=1).mean()
    blocks[task.index].copy_(length * vectors)


def balanced_finetuning(host: Any, losses: Callable[[Step], Mapping[str, Tensor]]) -> list[Stage]:
    """The stage that trains the classifier alone on the exemplars; no stage in the first task or with finetune=none.

    finetune=seen: all class vectors, with batch-norm statistics and sigma frozen (the original). finetune=current:
    those of the task, with statistics of the batch and sigma trained (Mammoth).
    """
    settings = host.settings
    if host.task.index == 0 or settings.finetune == "none":
        return []
    all_seen, task = settings.finetune == "seen", host.task.index

    def forward(batch: Batch) -> Step:
        with evaluating(host.net) if all_seen else untracked_batchnorm(host.net):
            step: Step = host.forward(batch)
        return step

    finetuning = host.extra_stage(
        "balanced fine-tuning",
        settings.finetune_epochs,
        {"lr": settings.finetune_lr, "schedule": "step", "milestones": settings.finetune_milestones, "gamma": 0.1},
        stream=host.memory_stream,
        forward=forward,
        losses=losses,  # without the distance between features, which has no gradient here
        allocate=lambda: host.net.train_only(
            range(0 if all_seen else task, task + 1), backbone=False, sigma=not all_seen
        ),
    )
    return [finetuning]
