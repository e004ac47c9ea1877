"""Dynamically expandable representation (Yan et al. 2021): a module for every task, and one head on them all.

Its authors call it DER, as do those of dark experience replay; here `der` and `der++` are the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn

from flashback.config import above_zero, not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.foster import PrimaryModule, new_parts
from flashback.hosts.stages import Stage, Step
from flashback.hosts.wa import align_new_rows
from flashback.knowledge import ModelKnowledge, Support, soft_cross_entropy
from flashback.nets import Backbone, Boosted, BoostedOutput, ComposedNet, Concatenation, GrowingNet, pad_classes


@dataclass(frozen=True)
class DERExpansionSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    auxiliary: float = 1.0  # weight of the auxiliary loss, by which the new module alone separates the new classes
    align: bool = True  # after a task, scale the rows of new classes to the length of those of old ones
    temperature: float = 2.0  # of the distillation from plastic knowledge

    def check(self) -> None:
        super().check()
        not_negative(self, "auxiliary")
        above_zero(self, "temperature")


@HOSTS.register("der-expansion")
class DERExpansion(ExemplarHost):
    """Expansion trains a module and the joint head beside frozen modules, which are never pruned.

    There is no stability distance: old knowledge is kept in the frozen modules.
    """

    Settings = DERExpansionSettings
    family = "dynamic"
    has_stability = False
    scores_unseen = False
    net: GrowingNet | Boosted
    stable: ModelKnowledge | None  # all earlier modules and their head

    def new_net(self) -> GrowingNet:
        return GrowingNet(self.new_backbone(), len(self.task.classes))

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        return [self.main_stage() if self.task.index == 0 else self.main_stage(name="expansion")]

    def allocate(self) -> None:
        """Freeze all modules and add one that starts as the last; the joint head keeps its old rows, still trained."""
        if self.task.index == 0:
            return
        if isinstance(self.net, GrowingNet):
            modules, head = [self.net.backbone], self.net.head
        else:
            assert self.stable is not None
            frozen = cast(list[Backbone], self.stable.model.module.parts)
            modules, head = [*frozen, self.net.module.backbone], self.net.head
        self.stable = ModelKnowledge(Concatenation(modules, head))
        self.net = Boosted(modules[-1], head, self.task.seen.stop, enhanced=1 + len(self.task.classes))

    def end(self) -> None:
        """Align the new rows of the head, then choose exemplars."""
        if self.settings.align and isinstance(self.net, Boosted):
            align_new_rows(self.net.head, self.task.old, self.task.new)
        self.refill()

    # ------------------------------------------------------------ a batch

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = cross-entropy of all modules over all classes + auxiliary loss of the new module.

        The auxiliary head has one column for all old classes and one for each new class.
        """
        output, labels = step.output, step.batch.y
        terms = {"task": cross_entropy(output.logits, labels)}
        if isinstance(output, BoostedOutput):
            auxiliary_labels = (1 + labels - self.task.new.start).clamp(min=0)
            terms["auxiliary"] = self.settings.auxiliary * cross_entropy(output.enhanced, auxiliary_labels)
        return terms

    def distance(self, step: Step, knowledge: PrimaryModule, support: Support) -> Tensor:
        """Soft cross-entropy (FL Eq. 23) to the primary module, on the softmax of the columns alone."""
        assert isinstance(step.output, BoostedOutput)
        target = knowledge.logits(step.output.old, step.batch.x)[:, support.columns]
        return soft_cross_entropy(step.output.logits[:, support.columns], target, self.settings.temperature)

    # ------------------------------------------------------------ knowledge

    def blank_knowledge(self) -> PrimaryModule:
        return PrimaryModule(new_parts(self.net))

    def fill_knowledge(self, knowledge: PrimaryModule) -> None:
        knowledge.fill(new_parts(self.net))

    def response_width(self) -> int:
        return self.task.classes.stop

    # ------------------------------------------------------------ prediction

    def expanded(self) -> nn.Module:
        """Return all modules as one network."""
        stable, net = self.stable, self.net
        return net if stable is None else ComposedNet(lambda x: net(stable(x), x), stable, net)

    def answering_net(self) -> nn.Module:
        return self.expanded()

    def predictor(self) -> nn.Module:
        return self.expanded()

    def scores(self, x: Tensor) -> Tensor:
        return pad_classes(super().scores(x), self.benchmark.classes)
