"""LUCIR (Hou et al. 2019): a cosine classifier, features held near the old ones, and a margin between old and new."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import at_least_one, not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.cosine import CosineHost, CosineSettings
from flashback.hosts.losses import margin_ranking
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, cosine_distance
from flashback.memory import class_means
from flashback.nets import CosineNet, CosineOutput


@dataclass(frozen=True)
class LUCIRSettings(CosineSettings):
    columns: Literal["seen", "all"] = "seen"  # of the losses; "all" has the random vectors of classes to come (Mammoth)
    lambda_base: float = 5.0  # weight of the less-forget term, before it is scaled with the classes
    scale: Literal["classes", "tasks"] = "classes"  # by sqrt(old / new classes), or by sqrt(task)
    hardest: int = 2  # K, the new classes an old sample is kept apart from
    margin: float = 0.5  # m, between the cosine to the own class and those to the hardest new ones
    margin_weight: float = 1.0

    def check(self) -> None:
        super().check()
        not_negative(self, "lambda_base", "margin", "margin_weight")
        at_least_one(self, "hardest")


@HOSTS.register("lucir")
class LUCIR(CosineHost):
    """One vector for each class; old samples keep away from the new classes that are nearest to them."""

    Settings = LUCIRSettings

    def new_net(self) -> CosineNet:
        return CosineNet(self.new_backbone(), self.benchmark.sizes)

    def directions(self, features: Tensor, labels: Tensor) -> Tensor:
        """The mean direction of each class."""
        return class_means(features, labels, len(self.task.classes), normalise=True)

    # ------------------------------------------------------------ losses

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

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """The less-forget constraint (Section 3.3): features keep their direction."""
        return cosine_distance(step.output.features, knowledge(step.batch.x).features)
