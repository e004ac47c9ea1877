"""LwF.MC (Rebuffi et al. 2017, Section 4): the loss of iCaRL without exemplars."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import HostSettings, NotNegative
from flashback.hosts.base import HOSTS
from flashback.hosts.icarl import BinaryDistillation
from flashback.hosts.stages import Step
from flashback.knowledge import flat


@dataclass(frozen=True)
class LwFMCSettings(HostSettings):
    # Both imitate other implementations: columns of the loss ("all" trains future classes towards 0), and the
    # weight of the squared norm of all parameters, added to the loss.
    columns: Literal["seen", "all"] = "seen"
    penalty: NotNegative = 0.0


@HOSTS.register("lwf-mc")
class LwFMC(BinaryDistillation):
    """Binary distillation from the old model, on the new images alone."""

    Settings = LwFMCSettings
    family = "distillation"
    accumulates_structure = False

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms, weight = dict(super().losses(step)), self.settings.penalty
        if weight:
            terms["penalty"] = weight * flat(self.net.parameters()).square().sum()
        return terms
