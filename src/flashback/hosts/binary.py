"""The loss that LwF.MC and iCaRL share: one binary cross-entropy per class, old classes towards the old model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import HostSettings
from flashback.hosts.base import Host, one_hot
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_binary_cross_entropy


@dataclass(frozen=True, kw_only=True)
class BinarySettings(HostSettings):
    columns: Literal["seen", "all"] = "seen"  # columns of the loss; "all" trains unseen classes as negatives


class BinaryDistillation(Host):
    """Mean over all trained columns of one BCE per class (Rebuffi et al., Eq. 7).

    New columns have one-hot targets, which are zero for exemplars; old columns follow sigmoid(f_s) for every sample.
    """

    Settings = BinarySettings
    family = "distillation"

    def trained_columns(self) -> slice:
        return slice(0, self.benchmark.classes if self.settings.columns == "all" else self.task.seen.stop)

    def stability_support(self) -> Support:
        old = self.task.old
        return Support(columns=old, weight=old.stop / self.trained_columns().stop)

    def plasticity_support(self) -> Support:
        """The new columns: there the primary model is the expert, as the old one is for the old columns."""
        return Support(columns=self.task.new)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        columns = slice(self.task.new.start, self.trained_columns().stop)
        share = (columns.stop - columns.start) / columns.stop
        logits = step.output.logits[:, columns]
        terms = {"task": share * soft_binary_cross_entropy(logits, one_hot(step.batch.y, columns, logits.dtype))}
        if self.stable is not None:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        anchor = knowledge(step.batch.x).logits[:, support.columns].sigmoid()
        return soft_binary_cross_entropy(step.output.logits[:, support.columns], anchor)
