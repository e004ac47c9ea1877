"""Dynamically expandable representation (Yan et al. 2021): a module for every task, and one head on them all.

Its authors call it DER, as those of dark experience replay call theirs; `der` and `der++` are the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from flashback.config import not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.expanding import ExpandingSettings, JoiningHost
from flashback.hosts.stages import Stage, Step
from flashback.hosts.wa import align_new_rows
from flashback.knowledge import ModelKnowledge
from flashback.nets import Backbone, Boosted, BoostedOutput, Concatenation, GrowingNet, LinearHead


@dataclass(frozen=True)
class DERExpansionSettings(ExpandingSettings):
    auxiliary: float = 1.0  # weight of the auxiliary loss, by which the new module alone tells new classes apart
    align: bool = True  # after a task, scale the rows of new classes to the length of those of old ones

    def check(self) -> None:
        super().check()
        not_negative(self, "auxiliary")


@HOSTS.register("der-expansion")
class DERExpansion(JoiningHost):
    """Expansion trains a module and the joint head beside frozen modules, which are never pruned.

    There is no stability distance: what was known lives on in frozen modules.
    """

    Settings = DERExpansionSettings
    has_stability = False

    # ------------------------------------------------------------ stages

    def expanding_stages(self) -> list[Stage]:
        return [self.main_stage(name="expansion")]

    def expand(self) -> None:
        """The new module starts as the last one; the joint head keeps the old rows, which go on learning."""
        modules, head = self.left_behind()
        self.stable = ModelKnowledge(Concatenation(modules, head))
        self.net = Boosted(modules[-1], head, self.task.seen.stop, enhanced=1 + len(self.task.classes))

    def left_behind(self) -> tuple[list[Backbone], LinearHead]:
        """All modules at the end of the last task, and their head."""
        if isinstance(self.net, GrowingNet):
            return [self.net.backbone], self.net.head
        assert isinstance(self.net, Boosted)
        assert self.stable is not None
        frozen = cast(list[Backbone], self.stable.model.module.parts)
        return [*frozen, self.net.module.backbone], self.net.head

    def end(self) -> None:
        if self.settings.align and isinstance(self.net, Boosted):
            align_new_rows(self.net.head, self.task.old, self.task.new)
        self.refill()

    # ------------------------------------------------------------ a batch of expansion

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """All modules tell all classes apart; the new one alone the new classes, and any old one from them."""
        output, labels = step.output, step.batch.y
        terms = {"task": cross_entropy(output.logits, labels)}
        if isinstance(output, BoostedOutput):
            own = (1 + labels - self.task.new.start).clamp(min=0)
            terms["auxiliary"] = self.settings.auxiliary * cross_entropy(output.enhanced, own)
        return terms
