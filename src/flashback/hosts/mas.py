"""MAS (Aljundi et al. 2018): hold the parameters that the answers of the network are sensitive to."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticSettings, OneAnchor
from flashback.knowledge.sensitivity import output_sensitivity


@dataclass(frozen=True)
class MASSettings(ElasticSettings):
    strength: float = 1.0  # lambda


@HOSTS.register("mas")
class MAS(OneAnchor):
    """Memory aware synapses: importance is the mean size of the gradient of ||f(x)||^2, summed up over the tasks."""

    Settings = MASSettings

    def importance(self) -> Tensor:
        """On plain views of the training images of the present task, without their labels, over the seen columns."""
        return output_sensitivity(self.net, self.task.train.x, self.views.plain, self.task.seen)
