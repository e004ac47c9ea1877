"""Soft distillation, the distance of hosts with a growing network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flashback.config import HostSettings, above_zero
from flashback.hosts.base import Host
from flashback.hosts.exemplars import ExemplarSettings
from flashback.hosts.stages import Step
from flashback.knowledge import Support, soft_cross_entropy


@dataclass(frozen=True, kw_only=True)
class SoftSettings(HostSettings):
    temperature: float = 2.0  # of every distillation

    def check(self) -> None:
        above_zero(self, "temperature")


@dataclass(frozen=True)
class SoftExemplarSettings(ExemplarSettings, SoftSettings):
    normalise: bool = True  # herd unit-length features

    def check(self) -> None:
        ExemplarSettings.check(self)
        SoftSettings.check(self)


class SoftDistillation(Host):
    """A host whose softened answers are held near those of what it knows."""

    Settings = SoftSettings
    family = "distillation"

    def distance(self, step: Step, knowledge: Any, support: Support) -> Tensor:
        """Soft cross-entropy (Eq. 18 and 23) of raw logits, on the softmax of the columns alone."""
        anchor = self.anchor(step, knowledge)[:, support.columns]
        return soft_cross_entropy(step.output.logits[:, support.columns], anchor, self.settings.temperature)

    def anchor(self, step: Step, knowledge: Any) -> Tensor:
        """What a knowledge base says to the images of a step."""
        logits: Tensor = knowledge(step.batch.x).logits
        return logits
