"""WA (Zhao et al. 2020): distillation with exemplars, and the weights of new classes scaled to those of old ones."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.config import Positive
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, soft_cross_entropy


@dataclass(frozen=True)
class WASettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features
    temperature: Positive = 2.0  # of the distillation
    # Clip the weights of the head at 0 after every step, so that longer rows mean larger logits (DER-ClassIL).
    positive: bool = False


@HOSTS.register("wa")
class WeightAligning(ExemplarHost):
    """Distillation with exemplars; after a task, the rows of new classes are scaled to the length of old ones.

    The loss is (1 - lambda) cross-entropy over seen classes + lambda soft distillation of old ones, lambda being the
    share of old classes. Trained on few old images and many new ones, the head gets longer rows for new classes;
    weight aligning corrects that. A class that comes again counts twice in lambda, among the old and among the others.
    """

    Settings = WASettings
    family = "distillation"
    supports_image_weights = True
    accumulates_structure = False

    def can_revisit(self) -> bool:
        return True

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = {"task": (1 - self.old_share()) * cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Soft cross-entropy (FL Eq. 18 and 23), over the softmax of the supported columns."""
        teacher = knowledge(step.batch.x).logits[:, support.columns]
        student = step.output.logits[:, support.columns]
        return soft_cross_entropy(student, teacher, self.settings.temperature, support.images)

    def stability_support(self) -> Support:
        return Support(columns=self.task.old, weight=self.old_share())

    def old_share(self) -> float:
        """lambda = old / (old + current classes); the sum is that of the seen classes unless some come again."""
        return len(self.task.before) / (len(self.task.before) + len(self.task.columns))

    def after_step(self, step: Step) -> None:
        if self.settings.positive:
            self.head.weight.clamp_(min=0)

    def end(self) -> None:
        if self.task.index > 0 and self.task.classes:
            align_new_rows(self.head, self.task.old, self.task.new)
        self.refill()

    @property
    def head(self) -> nn.Linear:
        head = self.net.head
        assert isinstance(head, nn.Linear)
        return head


@torch.no_grad()
def align_new_rows(head: nn.Linear, old: slice, new: slice) -> None:
    """Scale the weights of new classes to the mean length of those of old ones; biases stay."""
    lengths = head.weight.norm(dim=1)
    old_mean, new_mean = lengths[old].mean(), lengths[new].mean()
    head.weight[new] *= torch.where(new_mean > 0, old_mean / new_mean, 1.0)  # rows of length 0 have no direction
