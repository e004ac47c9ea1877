"""What parameter regularisation has in common: parameters, the importance of each, and a quadratic hold on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flashback.config import HostSettings, not_negative
from flashback.hosts.base import Host, cross_entropy, one_hot, trainable
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Support, flat, soft_binary_cross_entropy


@dataclass(frozen=True)
class ElasticSettings(HostSettings):
    # Cross-entropy over all columns, or those of the task, as with a head for each; or a binary loss for each of these.
    loss: Literal["ce_all", "ce_current", "bce_current"] = "ce_all"
    strength: float = 10.0  # lambda; the paper's alpha_s (Eq. 14) is strength for ewc and its kin, else 2 * strength

    def check(self) -> None:
        not_negative(self, "strength")


class ElasticHost(Host):
    """Every parameter (convolutions, batch norm, the whole classifier) is held by as much as it mattered."""

    Settings = ElasticSettings
    family = "regularisation"

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = {"task": self.task_loss(step.output.logits, step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def task_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.settings.loss == "ce_all":
            return cross_entropy(logits, labels)
        new = self.task.new
        if self.settings.loss == "ce_current":
            return cross_entropy(logits[:, new], labels - new.start)
        return soft_binary_cross_entropy(logits[:, new], one_hot(labels, new, logits.dtype))

    def softmax_columns(self) -> slice:
        """The columns that share a softmax where a method asks for probabilities: those of the task, or all."""
        return self.task.new if self.settings.loss == "ce_current" else slice(None)

    def held(self) -> list[nn.Parameter]:
        """All that is trained in the network; what a host trains beside it is free."""
        return trainable(self.net)

    def importance(self) -> Tensor:
        """Of every held parameter for the present task, at the present parameters; a method says how."""
        raise NotImplementedError

    def blank_knowledge(self) -> ImportantParameters:
        return ImportantParameters(self.held())

    @torch.no_grad()
    def fill_knowledge(self, knowledge: ImportantParameters) -> None:
        """{theta_p, F_p}: the present task alone, nothing accumulated (Eq. 12)."""
        knowledge.importance.copy_(self.importance())
        knowledge.values.copy_(flat(self.held()))

    def distance(self, step: Any, knowledge: Any, support: Support) -> Tensor:
        form: Tensor = knowledge.distance(self.held())
        return form


class OneAnchor(ElasticHost):
    """A single anchor: the last parameters, and an importance that is summed up over the tasks."""

    stable: ImportantParameters

    def build(self) -> None:
        super().build()
        self.stable = self.blank_knowledge()

    def allocate(self) -> None:
        """Nothing: the one anchor stands from the start."""

    def stability_support(self) -> Support:
        # strength * sum F (theta - theta_s)^2, without the half of Eq. 17.
        return Support(weight=self.settings.strength)

    def plasticity_support(self) -> Support:
        return Support()

    @torch.no_grad()
    def end(self) -> None:
        self.stable.importance.add_(self.importance())
        self.stable.values.copy_(flat(self.held()))
