"""DER and DER++ (Buzzega et al. 2020): replay with the logits that the model gave when it met an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.batches import Batch
from flashback.config import not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep
from flashback.knowledge import Support
from flashback.nets import Output, joint_forward


@dataclass(frozen=True)
class DERSettings(ReplaySettings):
    alpha: float = 0.3  # weight of the squared error to the stored targets (alpha_s of the paper)
    targets: Literal["logits", "embeddings"] = "logits"  # what is stored and met again: o or z of Eq. 2 and 10

    def check(self) -> None:
        super().check()
        not_negative(self, "alpha")


@HOSTS.register("der")
class DER(ReplayHost):
    """Dark experience replay: cross-entropy on new images, squared error to stored logits on replayed ones.

    The loss is Eq. 5 of Buzzega et al.: images come from a reservoir, with the logits from when they were stored.
    """

    Settings = DERSettings

    def forward(self, batch: Batch) -> ReplayStep:
        """Draw images from the memory and run the network on them and on the batch."""
        recalled = self.recall()
        output, *answers = joint_forward(self.net, [batch.x, *(drawn.x for drawn in recalled)])
        return ReplayStep(batch, output, self.answered(recalled, answers))

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        terms = {"task": cross_entropy(step.output.logits, step.batch.y)}
        if step.draws:
            terms["stability"] = self.stability(step)
        return terms

    def after_step(self, step: ReplayStep) -> None:
        """Offer each new image to the reservoir, with the answer to it from before the update."""
        targets = self.response(step.output)
        self.memory.reservoir(step.batch.raw, step.batch.y, self.generator, targets=targets)

    def stability_support(self) -> Support:
        """The distance, a squared error on the first draw, is that of `ReplayHost`."""
        return Support(samples="memory", weight=self.settings.alpha)

    def response(self, output: Output) -> Tensor:
        return output.features if self.settings.targets == "embeddings" else output.logits

    def response_width(self) -> int:
        return self.net.backbone.width if self.settings.targets == "embeddings" else self.benchmark.classes


@dataclass(frozen=True)
class DERPlusPlusSettings(DERSettings):
    alpha: float = 0.1
    beta: float = 0.5  # weight of the cross-entropy on replayed images

    def check(self) -> None:
        super().check()
        not_negative(self, "beta")


@HOSTS.register("der++")
class DERPlusPlus(DER):
    """DER, and cross-entropy on a second, independent draw from the memory (Eq. 6 of Buzzega et al.)."""

    Settings = DERPlusPlusSettings
    draws = 2

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        terms = {"task": cross_entropy(step.output.logits, step.batch.y)}
        if step.draws:
            second = step.draws[1]
            terms["stability"] = self.stability(step)
            terms["replay"] = self.settings.beta * cross_entropy(second.output.logits, second.labels)
        return terms
