"""DER and DER++ (Buzzega et al. 2020): replay with the logits that the model gave when an image was stored.

This file has the losses; the draws and the stored logits are in `replay.py`, the reservoir is in `memory.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import NotNegative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplaySettings, ReplayStep
from flashback.knowledge import Support
from flashback.nets import Output


@dataclass(frozen=True)
class DERSettings(ReplaySettings):
    alpha: NotNegative = 0.3  # weight of the squared error to the stored targets (alpha_s of FL Eq. 14)
    targets: Literal["logits", "embeddings"] = "logits"  # what is stored: o or z of FL Eq. 2 and 10


@HOSTS.register("der")
class DER(ReplayHost):
    """Dark experience replay: cross-entropy on new images, squared error to stored logits on replayed ones.

    The loss is Eq. 5 of Buzzega et al. with the mean over the logits, as in the authors' code, for the squared norm.
    `ReplayHost` does the rest. Its `forward` draws a minibatch uniformly from the memory (`draw`) and runs the network
    on the batch and on each draw, as if one after the other (`joint_forward`). Its `after_step` offers the new images
    to the memory, with the logits from before the update. The memory is a reservoir: every image offered so far is in
    it with equal probability.
    """

    Settings = DERSettings
    accumulates_structure = False

    def can_revisit(self) -> bool:
        return True

    def trains_future_classes(self) -> bool:
        return True

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        """L = CE(new) + alpha * mean (o - o_stored)^2 on the draw."""
        terms = {"task": cross_entropy(step.output.logits, step.batch.y)}
        if step.draws:
            terms["stability"] = self.stability(step)
        return terms

    def stability_support(self) -> Support:
        """The first draw, all columns, weight alpha; `ReplayHost.distance` is the squared error to stored targets."""
        return Support(samples="memory", weight=self.settings.alpha)

    def response(self, output: Output) -> Tensor:
        return output.features if self.settings.targets == "embeddings" else output.logits

    def response_width(self) -> int:
        return self.net.backbone.width if self.settings.targets == "embeddings" else self.columns


@dataclass(frozen=True)
class DERPlusPlusSettings(DERSettings):
    alpha: NotNegative = 0.1
    beta: NotNegative = 0.5  # weight of the cross-entropy on replayed images


@HOSTS.register("der++")
class DERPlusPlus(DER):
    """DER, and cross-entropy on a second, independent draw from the memory (Eq. 6 of Buzzega et al.)."""

    Settings = DERPlusPlusSettings
    draws_per_step = 2
    accumulates_structure = False

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        """L = CE(new) + alpha * mean (o - o_stored)^2 on draw 1 + beta * CE on draw 2."""
        terms = {"task": cross_entropy(step.output.logits, step.batch.y)}
        if step.draws:
            second = step.draws[1]
            terms["stability"] = self.stability(step)
            terms["replay"] = self.settings.beta * cross_entropy(second.output.logits, second.labels)
        return terms
