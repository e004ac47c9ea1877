"""Parameter regularisation: a quadratic penalty pulls every parameter towards its old value, weighted by importance.

The methods (EWC, SI, MAS and those built on them) differ in how they define importance and how many anchors they keep.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flashback.config import HostSettings, NotNegative
from flashback.hosts.base import Host, cross_entropy, one_hot, trainable
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Support, flat, soft_binary_cross_entropy


@dataclass(frozen=True)
class ElasticSettings(HostSettings):
    # ce_all: cross-entropy over all columns. ce_current: over the columns of the task, like one head for each task.
    # bce_current: binary cross-entropy over the columns of the task.
    loss: Literal["ce_all", "ce_current", "bce_current"] = "ce_all"
    # lambda, the weight of the penalty. ewc, afec and caf multiply it by 1/2, so alpha_s of FL Eq. 14 is strength;
    # for the others alpha_s is 2 * strength.
    strength: NotNegative = 10.0


class ElasticHost(Host):
    """Pulls all parameters (convolutions, batch norm, classifier) towards an anchor, weighted by importance.

    The distance to an anchor {theta*, F} is sum F (theta - theta*)^2 (FL Eq. 17 and 22). By default there is one
    anchor: the last parameters, with an importance that is summed over the tasks. A method defines `importance` and
    `losses`.
    """

    Settings = ElasticSettings
    family = "regularisation"
    stable: Any  # ImportantParameters, or another Knowledge with this distance

    def build(self) -> None:
        super().build()
        self.stable = self.blank_knowledge()

    def trains_future_classes(self) -> bool:
        return self.settings.loss == "ce_all"

    def can_revisit(self) -> bool:
        return self.settings.loss == "ce_all"

    def grow(self, columns: int) -> None:
        """Grow the network, and every anchor with it: a new row has importance 0."""
        shapes = [parameter.shape for parameter in self.anchored_parameters()]
        super().grow(columns)
        for anchor in self.stable.modules():
            if isinstance(anchor, ImportantParameters):
                anchor.grow(shapes, self.anchored_parameters())

    def task_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Compute the loss of the new task that `host.loss` names."""
        if self.settings.loss == "ce_all":
            return cross_entropy(logits, labels)
        new = self.task.new
        if self.settings.loss == "ce_current":
            return cross_entropy(logits[:, new], labels - new.start)
        return soft_binary_cross_entropy(logits[:, new], one_hot(labels, new, logits.dtype))

    def softmax_columns(self) -> slice:
        """Return the columns of the softmax whose probabilities the Fisher information uses."""
        return self.task.new if self.settings.loss == "ce_current" else slice(None)

    def anchored_parameters(self) -> list[nn.Parameter]:
        """Return the parameters under the penalty: those trained in `net`, without other modules of the host."""
        return trainable(self.net)

    def importance(self) -> Tensor:
        """Compute the importance of every anchored parameter for the current task, as a flat vector."""
        raise NotImplementedError

    def allocate(self) -> None:
        """Do nothing: the anchor exists from the start."""

    @torch.no_grad()
    def end(self) -> None:
        """F <- F + importance, theta* <- theta."""
        self.stable.importance.add_(self.importance())
        self.stable.values.copy_(flat(self.anchored_parameters()))

    def stability_support(self) -> Support:
        """Weight `strength`. The factor 1/2 of FL Eq. 17 is left out."""
        return Support(weight=self.settings.strength)

    def plasticity_support(self) -> Support:
        """Weight 1. The factor 1/2 of FL Eq. 22 is left out."""
        return Support()

    def blank_knowledge(self) -> ImportantParameters:
        return ImportantParameters(self.anchored_parameters())

    @torch.no_grad()
    def fill_knowledge(self, knowledge: ImportantParameters) -> None:
        """Store the current parameters and their importance for the current task alone.

        This is the plastic knowledge (FL Eq. 12), and an anchor of EWC.
        """
        knowledge.importance.copy_(self.importance())
        knowledge.values.copy_(flat(self.anchored_parameters()))

    def distance(self, step: Step, knowledge: Any, support: Support) -> Tensor:
        distance: Tensor = knowledge.distance(self.anchored_parameters())
        return distance
