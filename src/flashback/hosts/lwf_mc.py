"""LwF.MC (Rebuffi et al. 2017, Section 4): the loss of iCaRL without exemplars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from flashback.config import HostSettings, not_negative
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.icarl import binary_losses
from flashback.hosts.stages import Step
from flashback.knowledge import ModelKnowledge, Support, flat, soft_binary_cross_entropy


@dataclass(frozen=True)
class LwFMCSettings(HostSettings):
    # Both imitate other implementations: columns of the loss ("all" trains future classes towards 0), and the
    # weight of the squared norm of all parameters, added to the loss.
    columns: Literal["seen", "all"] = "seen"
    penalty: float = 0.0

    def check(self) -> None:
        not_negative(self, "penalty")


@HOSTS.register("lwf-mc")
class LwFMC(Host):
    """Binary distillation from the old model, on the new images alone.

    One binary cross-entropy per class: new classes towards the labels, old classes towards the sigmoid outputs of the
    old model (Alg. 3 of Rebuffi et al.).
    """

    Settings = LwFMCSettings
    family = "distillation"

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {**binary_losses(self, step, self.trained_columns()), **self.penalty()}

    def distance(self, step: Step, knowledge: ModelKnowledge, support: Support) -> Tensor:
        """Binary cross-entropy towards the sigmoid outputs of the old (or primary) model."""
        outputs = knowledge(step.batch.x).logits[:, support.columns].sigmoid()
        return soft_binary_cross_entropy(step.output.logits[:, support.columns], outputs)

    def stability_support(self) -> Support:
        old = self.task.old
        return Support(columns=old, weight=old.stop / self.trained_columns())

    def plasticity_support(self) -> Support:
        """The new columns: the primary model is the expert on these, as the old model is on the old ones."""
        return Support(columns=self.task.new)

    # ------------------------------------------------------------ the switches `columns` and `penalty`

    def trained_columns(self) -> int:
        return self.benchmark.classes if self.settings.columns == "all" else self.task.seen.stop

    def penalty(self) -> dict[str, Tensor]:
        weight = self.settings.penalty
        return {"penalty": weight * flat(self.net.parameters()).square().sum()} if weight else {}
