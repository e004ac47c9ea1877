"""EWC (Kirkpatrick et al. 2017) and online EWC (Schwarz et al. 2018): hold the parameters that matter to old tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.errors import require
from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticHost, ElasticSettings, OneAnchor
from flashback.knowledge import ImportantParameters, Knowledge, Support, flat
from flashback.knowledge.fisher import Estimator, fisher_diagonal


@dataclass(frozen=True)
class FisherSettings(ElasticSettings):
    # Eq. 4 is "empirical". Published strengths near 10 were found with "mammoth", whose entries are several times
    # smaller; on the others, descent at the usual rates can diverge with them.
    fisher: Estimator = "mammoth"


class FisherHost(ElasticHost):
    """Importance is Fisher information."""

    Settings = FisherSettings

    def importance(self) -> Tensor:
        return self.fisher()

    def fisher(self, net: nn.Module | None = None) -> Tensor:
        """F of the present task at the present parameters (Eq. 4 and 11), on plain views of its training images."""
        net, train = self.net if net is None else net, self.task.train
        view, columns = self.views.plain, self.softmax_columns()
        return fisher_diagonal(net, train.x, train.y, view, self.settings.fisher, columns)


@dataclass(frozen=True)
class OnlineEWCSettings(FisherSettings):
    gamma: float = 1.0  # what of the earlier importance stays with each task (Eq. 5); 1 sums it up

    def check(self) -> None:
        super().check()
        require(0 <= self.gamma <= 1, f"host.gamma lies in [0, 1], not {self.gamma}")


@HOSTS.register("oewc")
class OnlineEWC(FisherHost, OneAnchor):
    """One anchor: the last parameters, and an importance that runs over all tasks."""

    Settings = OnlineEWCSettings

    def end(self) -> None:
        """F-hat_t = gamma F-hat_(t-1) + F_t (Eq. 5), theta_s = theta_t."""
        self.stable.importance.mul_(self.settings.gamma)
        super().end()


class TaskAnchors(Knowledge):
    """The parameters and importance each task ended with (Eq. 3); those of the present task are blank till then."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = nn.ModuleList()

    def __getitem__(self, task: int) -> ImportantParameters:
        anchor = self.tasks[task]
        assert isinstance(anchor, ImportantParameters)
        return anchor

    def nbytes(self) -> int:
        """Of the anchors that hold something."""
        return sum(self[task].nbytes() for task in range(len(self.tasks) - 1))

    def distance(self, parameters: Iterable[Tensor]) -> Tensor:
        """The sum over all earlier tasks."""
        present = [flat(parameters)]  # laid out once for all anchors
        return torch.stack([self[task].distance(present) for task in range(len(self.tasks) - 1)]).sum()


@HOSTS.register("ewc")
class EWC(FisherHost):
    """One anchor for each task so far: lambda / 2 * sum_i sum F_i (theta - theta_i)^2."""

    stable: TaskAnchors

    def build(self) -> None:
        super().build()
        self.stable = TaskAnchors()

    def allocate(self) -> None:
        self.stable.tasks.append(self.blank_knowledge())

    def stability_support(self) -> Support:
        return Support(weight=self.settings.strength / 2)

    def plasticity_support(self) -> Support:
        return Support(weight=1 / 2)

    def end(self) -> None:
        self.fill_knowledge(self.stable[-1])
