"""LwF.MC (Rebuffi et al. 2017, Section 4): distillation from the old model, without exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flashback.config import not_negative
from flashback.hosts.base import HOSTS
from flashback.hosts.binary import BinaryDistillation, BinarySettings
from flashback.hosts.stages import Step
from flashback.knowledge import flat


@dataclass(frozen=True)
class LwFMCSettings(BinarySettings):
    penalty: float = 0.0  # weight of the squared norm of all parameters, added to the loss

    def check(self) -> None:
        not_negative(self, "penalty")


@HOSTS.register("lwf-mc")
class LwFMC(BinaryDistillation):
    """Binary distillation on the new images alone."""

    Settings = LwFMCSettings

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = dict(super().losses(step))
        if self.settings.penalty:
            terms["penalty"] = self.settings.penalty * flat(self.net.parameters()).square().sum()
        return terms
