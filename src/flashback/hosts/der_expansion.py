"""Dynamically expandable representation (Yan et al. 2021): a module for every task, and one head on them all.

Its authors call it DER, as do those of dark experience replay; here `der` and `der++` are the latter.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from flashback.config import NotNegative, Positive
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarSettings
from flashback.hosts.foster import BoostingHost
from flashback.hosts.stages import Stage, Step
from flashback.hosts.wa import align_new_rows
from flashback.knowledge import ModelKnowledge
from flashback.nets import Backbone
from flashback.nets.growing import Boosted, BoostedOutput, Concatenation, GrowingNet


@dataclass(frozen=True)
class DERExpansionSettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    auxiliary: NotNegative = 1.0  # weight of the auxiliary loss, by which the new module alone separates new classes
    align: bool = True  # after a task, scale the rows of new classes to the length of those of old ones
    temperature: Positive = 2.0  # of the distillation from plastic knowledge


@HOSTS.register("der-expansion")
class DERExpansion(BoostingHost):
    """Expansion trains a module and the joint head beside frozen modules, which are never pruned.

    h_s is all earlier modules and their head. There is no stability distance: old knowledge is kept in the frozen
    modules.
    """

    Settings = DERExpansionSettings
    has_stability = False

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
        self.net = Boosted(modules[-1], head, self.task.seen.stop, enhancement_rows=1 + len(self.task.classes))

    def end(self) -> None:
        """Align the new rows of the head, then choose exemplars."""
        if self.settings.align and isinstance(self.net, Boosted):
            align_new_rows(self.net.head, self.task.old, self.task.new)
        self.refill()

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
