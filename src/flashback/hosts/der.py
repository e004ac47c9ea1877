"""DER and DER++ (Buzzega et al. 2020): replay with the logits the model gave when it met an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from flashback.config import not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep
from flashback.knowledge import Support
from flashback.nets import Output


@dataclass(frozen=True)
class DERSettings(ReplaySettings):
    targets: Literal["logits", "embeddings"] = "logits"  # what is stored and met again: o or z of Eq. 2 and 10


@HOSTS.register("der")
class DER(ReplayHost):
    """Cross-entropy on new images, squared error to stored targets on replayed ones."""

    Settings = DERSettings

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        terms = {"task": cross_entropy(step.output.logits, step.batch.y)}
        if step.draws:
            terms["stability"] = self.stability(step)
        return terms

    def response(self, output: Output) -> Tensor:
        return output.features if self.settings.targets == "embeddings" else output.logits

    def response_width(self) -> int:
        return self.net.backbone.width if self.settings.targets == "embeddings" else super().response_width()

    def weighted_distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        if self.settings.targets == "embeddings":  # they have no class columns to choose from
            support = replace(support, columns=slice(None))
        return super().weighted_distance(step, knowledge, support)


@dataclass(frozen=True)
class DERPlusPlusSettings(DERSettings):
    alpha: float = 0.1
    beta: float = 0.5  # weight of the cross-entropy on replayed images

    def check(self) -> None:
        super().check()
        not_negative(self, "beta")


@HOSTS.register("der++")
class DERPlusPlus(DER):
    """DER and cross-entropy on a second, independent draw."""

    Settings = DERPlusPlusSettings
    draws = 2

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        terms = dict(super().losses(step))
        if step.draws:
            second = step.draws[1]
            terms["replay"] = self.settings.beta * cross_entropy(second.output.logits, second.labels)
        return terms
