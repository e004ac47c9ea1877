"""EWC (Kirkpatrick et al. 2017) and online EWC (Schwarz et al. 2018): hold the parameters that matter to old tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from flashback.config import HostSettings, not_negative, within
from flashback.hosts.base import HOSTS, Host, cross_entropy, one_hot
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Knowledge, Support, flat, soft_binary_cross_entropy
from flashback.knowledge.fisher import Estimator, fisher_diagonal


@dataclass(frozen=True)
class ElasticSettings(HostSettings):
    loss: Literal["ce_all", "bce_current"] = "ce_all"  # over all columns, or one binary loss per column of the task
    strength: float = 10.0  # lambda; the paper's alpha_s (Eq. 14) is 2 * strength for oewc, strength for ewc
    # Eq. 4 is "empirical". Published strengths near 10 were found with "mammoth", whose entries are several times
    # smaller; on the others, descent at the usual rates can diverge with them.
    fisher: Estimator = "mammoth"

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
        return soft_binary_cross_entropy(logits[:, new], one_hot(labels, new, logits.dtype))

    def fisher(self, net: nn.Module | None = None) -> Tensor:
        """F of the present task at the present parameters (Eq. 4 and 11), on plain views of its training images."""
        net, train = self.net if net is None else net, self.task.train
        return fisher_diagonal(net, train.x, train.y, self.views.plain, self.settings.fisher)

    def blank_knowledge(self) -> ImportantParameters:
        return ImportantParameters(self.trained_parameters())

    @torch.no_grad()
    def fill_knowledge(self, knowledge: ImportantParameters) -> None:
        """{theta_p, F_p}: the present task alone, nothing accumulated (Eq. 12)."""
        knowledge.importance.copy_(self.fisher())
        knowledge.values.copy_(flat(self.trained_parameters()))

    def distance(self, step: Step, knowledge: ImportantParameters | TaskAnchors, support: Support) -> Tensor:
        return knowledge.distance(self.trained_parameters())


@dataclass(frozen=True)
class OnlineEWCSettings(ElasticSettings):
    gamma: float = 1.0  # what of the earlier importance stays with each task (Eq. 5); 1 sums it up

    def check(self) -> None:
        super().check()
        within(0 <= self.gamma <= 1, f"host.gamma lies in [0, 1], not {self.gamma}")


@HOSTS.register("oewc")
class OnlineEWC(ElasticHost):
    """One anchor: the last parameters, and an importance that runs over all tasks."""

    Settings = OnlineEWCSettings
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
        """F-hat_t = gamma F-hat_(t-1) + F_t (Eq. 5), theta_s = theta_t."""
        self.stable.importance.mul_(self.settings.gamma).add_(self.fisher())
        self.stable.values.copy_(flat(self.trained_parameters()))


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

    def distance(self, parameters: Iterable[nn.Parameter]) -> Tensor:
        """The sum over all earlier tasks."""
        present: Any = [flat(parameters)]  # laid out once for all anchors
        return torch.stack([self[task].distance(present) for task in range(len(self.tasks) - 1)]).sum()


@HOSTS.register("ewc")
class EWC(ElasticHost):
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
