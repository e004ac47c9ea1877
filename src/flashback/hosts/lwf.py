"""LwF, learning without forgetting (Li and Hoiem 2016), with one head: softened answers of the old model are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.soft import SoftDistillation, SoftSettings
from flashback.hosts.stages import Step
from flashback.knowledge import Support


@dataclass(frozen=True)
class LwFSettings(SoftSettings):
    strength: float = 1.0  # lambda_o, weight of the distillation
    columns: Literal["new", "seen"] = "new"  # columns of the cross-entropy; "seen" trains old classes as negatives

    def check(self) -> None:
        super().check()
        not_negative(self, "strength")


@HOSTS.register("lwf")
class LwF(SoftDistillation):
    """Cross-entropy for the new classes, distillation of the old ones, both on the new images alone."""

    Settings = LwFSettings

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        columns = self.task.new if self.settings.columns == "new" else self.task.seen
        terms = {"task": cross_entropy(step.output.logits[:, columns], step.batch.y - columns.start)}
        if self.stable is not None:
            terms["stability"] = self.stability(step)
        return terms

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.settings.strength)
