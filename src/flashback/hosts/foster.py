"""FOSTER (Wang et al. 2022): a new module boosts the frozen network, then both are compressed into one again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from flashback.config import not_negative
from flashback.errors import require
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.expanding import CompressingHost, CompressionSettings, JoiningHost
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, Support
from flashback.nets import Backbone, Boosted, BoostedOutput, GrowingNet, LinearHead, Output


@dataclass(frozen=True)
class FosterSettings(CompressionSettings):
    # Strength of the logits alignment, or a list of one for each task from the second on, of which the last stays.
    beta1: float | tuple[float, ...] = 0.96
    distillation: float = 1.0  # weight of the distillation from the old network

    def check(self) -> None:
        super().check()
        require(bool(self.betas()), "host.beta1 is a number or a list with at least one")
        require(all(0 <= beta < 1 for beta in self.betas()), f"host.beta1 lies in [0, 1), not {self.beta1}")
        not_negative(self, "distillation")

    def betas(self) -> tuple[float, ...]:
        return self.beta1 if isinstance(self.beta1, tuple) else (self.beta1,)


class OldNet(ModelKnowledge):
    """The frozen network h_s with its head (Eq. 8)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        """Its answer has been given: h_s runs once a step."""
        return old.logits


@HOSTS.register("foster")
class Foster(JoiningHost, CompressingHost):
    """Boosting trains a module and its heads against what the frozen network gets wrong; compression follows."""

    Settings = FosterSettings
    stable: OldNet | None

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        assert self.stable is not None
        old = cast(GrowingNet, self.stable.model.module)
        return old.backbone, old.head

    # ------------------------------------------------------------ stages

    def expanding_stages(self) -> list[Stage]:
        return [self.main_stage(name="boosting"), self.compression_stage()]

    def expand(self) -> None:
        old = self.student or self.net
        assert isinstance(old, GrowingNet)
        self.stable = OldNet(old)
        seen = self.task.seen.stop
        self.net, self.student = Boosted(old.backbone, old.head, seen, enhanced=seen), None
        self.allocate_weights()

    def begin(self) -> None:
        if self.task.index > 0:
            betas = self.settings.betas()
            self.weigh_classes(betas[min(self.task.index, len(betas)) - 1])

    # ------------------------------------------------------------ a batch of boosting

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """Old classes have weights above 1: their logits shrink in the loss, so the network must raise them."""
        output, labels = step.output, step.batch.y
        if not isinstance(output, BoostedOutput):
            return {"task": cross_entropy(output.logits, labels)}
        return {
            "task": cross_entropy(output.logits / self.weights, labels),
            "enhancement": cross_entropy(output.enhanced, labels),
            "stability": self.stability(step),
        }

    # ------------------------------------------------------------ knowledge

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.settings.distillation)
