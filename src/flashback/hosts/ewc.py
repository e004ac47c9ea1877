"""EWC (Kirkpatrick et al. 2017) and online EWC (Schwarz et al. 2018): keep the parameters that matter for old tasks.

This file has the losses and the anchors. The task loss and the penalised parameters are in `elastic.py`; the Fisher
information (`fisher_diagonal`) and the distance to one anchor (`ImportantParameters`) in `knowledge/importance.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.config import Share
from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticHost, ElasticSettings
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Knowledge, Support, flat
from flashback.knowledge.importance import Estimator, fisher_diagonal


@dataclass(frozen=True)
class FisherSettings(ElasticSettings):
    # "exact" is the Fisher information of the EWC paper, "empirical" is FL Eq. 4. Published strengths near 10 are for
    # "mammoth", whose entries are several times smaller; with the other two, training can diverge at such strengths.
    fisher: Estimator = "mammoth"


@HOSTS.register("ewc")
class EWC(ElasticHost):
    """One anchor for each task so far: lambda / 2 * sum_i sum F_i (theta - theta_i)^2.

    F_i estimates the diagonal of the Fisher information of task i at theta_i, the parameters at the end of task i.
    `host.fisher` chooses how; the default weighs the squared gradient of each image by p(y), as Mammoth does.
    """

    Settings = FisherSettings
    stable: TaskAnchors

    def build(self) -> None:
        super().build()
        self.stable = TaskAnchors()

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = task loss + lambda / 2 * sum_i sum F_i (theta - theta_i)^2."""
        terms = {"task": self.task_loss(step.output.logits, step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)  # the weight below times self.stable.distance(theta)
        return terms

    def stability_support(self) -> Support:
        return Support(weight=self.settings.strength / 2)

    def plasticity_support(self) -> Support:
        return Support(weight=1 / 2)

    def importance(self) -> Tensor:
        return task_fisher(self)

    def allocate(self) -> None:
        """Add a blank anchor for the current task."""
        self.stable.tasks.append(self.blank_knowledge())

    def end(self) -> None:
        """Set theta_i <- theta and F_i <- F."""
        self.fill_knowledge(self.stable[-1])


@dataclass(frozen=True)
class OnlineEWCSettings(FisherSettings):
    gamma: Share = 1.0  # the share of the earlier importance that each task keeps (FL Eq. 5); 1: the plain sum


@HOSTS.register("oewc")
class OnlineEWC(ElasticHost):
    """One anchor: the last parameters, and the importance accumulated over all tasks."""

    Settings = OnlineEWCSettings
    accumulates_structure = False

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = task loss + lambda * sum F-hat (theta - theta_s)^2."""
        terms = {"task": self.task_loss(step.output.logits, step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def importance(self) -> Tensor:
        return task_fisher(self)

    def end(self) -> None:
        """F-hat_t = gamma F-hat_(t-1) + F_t (FL Eq. 5), theta_s = theta_t."""
        self.stable.importance.mul_(self.settings.gamma)
        super().end()


class TaskAnchors(Knowledge):
    """The parameters theta_i and the importance F_i that each task ended with (FL Eq. 3).

    The last anchor belongs to the current task and is blank until the task ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.ModuleList()

    def __getitem__(self, task: int) -> ImportantParameters:
        anchor = self.tasks[task]
        assert isinstance(anchor, ImportantParameters)
        return anchor

    def past(self) -> list[ImportantParameters]:
        return [self[task] for task in range(len(self.tasks) - 1)]

    def nbytes(self) -> int:
        """Return the size of the anchors that are filled."""
        return sum(anchor.nbytes() for anchor in self.past())

    def distance(self, parameters: Iterable[Tensor]) -> Tensor:
        """Compute sum_i sum F_i (theta - theta_i)^2 over all earlier tasks i."""
        current = [flat(parameters)]  # flattened once for all anchors
        return torch.stack([anchor.distance(current) for anchor in self.past()]).sum()


def task_fisher(host: EWC | OnlineEWC, net: nn.Module | None = None) -> Tensor:
    """Compute F of the current task at the current parameters (FL Eq. 4 and 11), on its images, not augmented."""
    train, estimator = host.task.train, host.settings.fisher
    net = host.net if net is None else net
    return fisher_diagonal(net, train.x, train.y, host.views.plain, estimator, host.softmax_columns())
