"""WA (Zhao et al. 2020): distillation with exemplars, and new classes brought to the weight of the old ones."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from flashback.hosts.aligning import align_new_rows
from flashback.hosts.base import HOSTS
from flashback.hosts.soft import SharedDistillation, SoftExemplarSettings
from flashback.hosts.stages import Step


@dataclass(frozen=True)
class WASettings(SoftExemplarSettings):
    # Clip the weights of the head at 0 after every step, so that longer rows mean larger logits (DER-ClassIL).
    positive: bool = False


@HOSTS.register("wa")
class WeightAligning(SharedDistillation):
    """Learns with a head that comes to favour new classes, then makes their rows as long as those of old ones."""

    Settings = WASettings

    @property
    def head(self) -> nn.Linear:
        head = self.net.head
        assert isinstance(head, nn.Linear)
        return head

    def after_step(self, step: Step) -> None:
        if self.settings.positive:
            self.head.weight.clamp_(min=0)

    def end(self) -> None:
        if self.task.index > 0:
            align_new_rows(self.head, self.task.old, self.task.new)
        super().end()
