"""LwF, learning without forgetting (Li and Hoiem 2016), with one head: softened outputs of the old model are kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import HostSettings, NotNegative, Positive
from flashback.hosts.base import HOSTS, Host, cross_entropy
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_cross_entropy


@dataclass(frozen=True)
class LwFSettings(HostSettings):
    temperature: Positive = 2.0  # of the distillation
    strength: NotNegative = 1.0  # lambda_o, weight of the distillation
    columns: Literal["new", "seen"] = "new"  # columns of the cross-entropy; "seen" trains old classes as negatives


@HOSTS.register("lwf")
class LwF(Host):
    """Cross-entropy on the new classes and soft distillation of the old ones, on the new images alone.

    The distillation compares the softmax outputs over the old classes, softened by a temperature (Section 3 of Li and
    Hoiem).
    """

    Settings = LwFSettings
    family = "distillation"
    supports_image_weights = True
    accumulates_structure = False

    def can_revisit(self) -> bool:
        return self.settings.columns == "seen"

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        columns = self.task.new if self.settings.columns == "new" else self.task.seen
        terms = {"task": cross_entropy(step.output.logits[:, columns], step.batch.y - columns.start)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy (FL Eq. 18 and 23), over the softmax of the supported columns."""
        teacher = knowledge(step.batch.x).logits[:, support.columns]
        student = step.output.logits[:, support.columns]
        return soft_cross_entropy(student, teacher, self.settings.temperature, support.images)

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.settings.strength)
