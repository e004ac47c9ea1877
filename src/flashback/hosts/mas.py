"""MAS (Aljundi et al. 2018): keep the parameters that the outputs of the network are sensitive to."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flashback.config import NotNegative
from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticHost, ElasticSettings
from flashback.hosts.stages import Step
from flashback.knowledge.importance import output_sensitivity


@dataclass(frozen=True)
class MASSettings(ElasticSettings):
    strength: NotNegative = 1.0  # lambda


@HOSTS.register("mas")
class MAS(ElasticHost):
    """Memory aware synapses: importance is the mean size of the gradient of ||f(x)||^2, summed up over the tasks."""

    Settings = MASSettings
    accumulates_structure = False

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = task loss + lambda * sum Omega (theta - theta_s)^2."""
        terms = {"task": self.task_loss(step.output.logits, step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def importance(self) -> Tensor:
        """Compute it on the training images of the current task, unaugmented and without labels, over seen columns."""
        return output_sensitivity(self.net, self.task.train.x, self.views.plain, self.task.seen)
