"""FOSTER (Wang et al. 2022): a new module boosts the frozen network, then both are compressed into one again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import within
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.expanding import CompressingHost, CompressionSettings, GrowingNet, Whole
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ModelKnowledge, ModuleKnowledge, Support, soft_cross_entropy
from flashback.nets import Backbone, LinearHead, Output, grown_linear


@dataclass(frozen=True)
class FosterSettings(CompressionSettings):
    # Strength of the logits alignment, or a list of one for each task from the second on, of which the last stays.
    beta1: float | tuple[float, ...] = 0.96
    distillation: float = 1.0  # weight of the distillation from the old network

    def check(self) -> None:
        super().check()
        within(bool(self.betas()), "host.beta1 is a number or a list with at least one")
        within(all(0 <= beta < 1 for beta in self.betas()), f"host.beta1 lies in [0, 1), not {self.beta1}")
        within(self.distillation >= 0, f"host.distillation is not negative, not {self.distillation}")

    def betas(self) -> tuple[float, ...]:
        return self.beta1 if isinstance(self.beta1, tuple) else (self.beta1,)


@dataclass
class BoostedOutput(Output):
    enhanced: Tensor  # logits from the new module alone
    old: Output  # what the frozen network says


class Boosted(nn.Module):
    """The new module m beside the frozen h_s: a head on [h_s ; m] (Eq. 7), and one on m alone to enhance its features.

    m starts as the old module; the first head keeps what the old one knew.
    """

    def __init__(self, old: GrowingNet, classes: int) -> None:
        super().__init__()
        self.module = GrowingNet(old.backbone, classes)
        self.head = grown_linear(old.head, 2 * old.backbone.width, classes)

    def forward(self, old: Output, x: Tensor) -> BoostedOutput:
        own = self.module(x)
        features = torch.cat([old.features, own.features], dim=1)
        return BoostedOutput(features, self.head(features), own.logits, old)


class OldNet(ModelKnowledge):
    """The frozen network h_s with its head (Eq. 8)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        """Its answer has been given: h_s runs once a step, and all who need its features share them."""
        return old.logits


class PrimaryModule(ModuleKnowledge):
    """The new module and the head that joins it to h_s, as they were after phase 1 (Eq. 13)."""

    def logits(self, old: Output, x: Tensor) -> Tensor:
        logits: Tensor = self["head"](torch.cat([old.features, self["module"](x).float()], dim=1))
        return logits


@HOSTS.register("foster")
class Foster(CompressingHost):
    """Boosting trains a module and its heads against what the frozen network gets wrong; compression follows."""

    Settings = FosterSettings
    stable: OldNet | None

    def new_net(self) -> GrowingNet:
        return GrowingNet(self.new_backbone(), len(self.task.classes))

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        assert self.stable is not None
        old = cast(GrowingNet, self.stable.model.module)
        return old.backbone, old.head

    def expanded(self) -> nn.Module:
        stable, net = self.stable, self.net
        return net if stable is None else Whole(lambda x: net(stable(x), x), stable, net)

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [self.main_stage(name="boosting"), self.compression_stage()]

    def allocate(self) -> None:
        if self.task.index == 0:
            return
        old = self.student or self.net
        assert isinstance(old, GrowingNet)
        self.stable = OldNet(old)
        self.net, self.student = Boosted(old, self.task.seen.stop), None
        self.allocate_weights()

    def begin(self) -> None:
        if self.task.index > 0:
            betas = self.settings.betas()
            self.weigh_classes(betas[min(self.task.index, len(betas)) - 1])

    def end(self) -> None:
        if self.task.index == 0:
            self.refill()

    # ------------------------------------------------------------ a batch of boosting

    def forward(self, batch: Batch) -> Step:
        return Step(batch, self.expanded()(batch.x))

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """Old classes have weights above 1: their logits shrink in the loss, so the network must raise them."""
        output, labels = step.output, step.batch.y
        if not isinstance(output, BoostedOutput):
            return {"task": cross_entropy(output.logits, labels)}
        return {
            "task": cross_entropy(output.logits / self.weights, labels),
            "enhancement": cross_entropy(output.enhanced, labels),
            "stability": self.weighted_distance(step, self.stable, self.stability_support()),
        }

    # ------------------------------------------------------------ knowledge

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.settings.distillation)

    def distance(self, step: Step, knowledge: Any, support: Support) -> Tensor:
        """Soft cross-entropy (Eq. 18 and 23) of raw logits, on the softmax of the columns alone."""
        assert isinstance(step.output, BoostedOutput)
        anchor = knowledge.logits(step.output.old, step.batch.x)[:, support.columns]
        return soft_cross_entropy(step.output.logits[:, support.columns], anchor, self.settings.temperature)

    def plastic_parts(self) -> dict[str, nn.Module]:
        assert isinstance(self.net, Boosted)
        return {"module": self.net.module.backbone, "head": self.net.head}

    def blank_knowledge(self) -> PrimaryModule:
        return PrimaryModule(self.plastic_parts())

    def fill_knowledge(self, knowledge: PrimaryModule) -> None:
        knowledge.fill(self.plastic_parts())

    def embed(self, raw: Tensor, part: Callable[[Output], Tensor], net: nn.Module | None = None) -> Tensor:
        return super().embed(raw, part, self.expanded() if net is None else net)
