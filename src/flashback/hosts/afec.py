"""AFEC (Wang et al. 2021): EWC beside a network that learns every task freely and shows where the new one leads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import not_negative
from flashback.hosts.base import HOSTS, trainable
from flashback.hosts.ewc import EWC, FisherSettings
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ImportantParameters, bytes_of, flat
from flashback.nets import Net, Output


@dataclass(frozen=True)
class AFECSettings(FisherSettings):
    empty_strength: float = 1.0  # lambda_e, weight of the pull towards the empty network

    def check(self) -> None:
        super().check()
        not_negative(self, "empty_strength")


@dataclass
class TwinStep(Step):
    """A step of both networks on the same images."""

    empty: Output


@HOSTS.register("afec")
class AFEC(EWC):
    """EWC, pulled as well towards a second network that learns each task with nothing to hold it.

    From the second task on the loss has lambda_e / 2 * sum F_e (theta - theta_e)^2 over the backbone. This "empty"
    network theta_e descends on the task loss alone, task after task, and is never reset. Released code gives it an
    epoch, then the network one, in turns. Here it takes its first epoch of a task alone and then learns in the same
    steps as the network: before every epoch it is as far ahead, and there theta_e and F_e are read off it.
    """

    Settings = AFECSettings
    net: Net
    anchored_epoch: Tensor

    def build(self) -> None:
        super().build()
        self.empty = copy.deepcopy(self.net)
        self.expanded = ImportantParameters(backbone_parameters(self.empty))  # {theta_e, F_e} of the present epoch
        self.register_buffer("anchored_epoch", torch.tensor(-1))

    # ------------------------------------------------------------ stages

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [
            self.later_stage(
                "empty network",
                1,
                {},
                parameters=lambda: trainable(self.empty),
                forward=lambda batch: Step(batch, self.empty(batch.x)),
                losses=lambda step: {"expansion": self.task_loss(step.output.logits, step.batch.y)},
            ),
            self.main_stage(before_epoch=self.read_empty),
        ]

    def trained_parameters(self) -> list[nn.Parameter]:
        """Both networks, in the first task the one alone."""
        return trainable(self.net) + (trainable(self.empty) if self.task.index > 0 else [])

    def begin(self) -> None:
        self.anchored_epoch.fill_(-1)

    @torch.no_grad()
    def read_empty(self, epoch: int) -> None:
        """theta_e and F_e before an epoch; a run that goes on in the middle of one keeps those it began with."""
        if self.anchored_epoch.item() != epoch:
            self.expanded.values.copy_(flat(backbone_parameters(self.empty)))
            self.expanded.importance.copy_(self.fisher(self.empty)[: len(self.expanded.values)])  # the head comes last
            self.anchored_epoch.fill_(epoch)

    def end(self) -> None:
        super().end()
        if self.task.index == 0:  # nothing holds the network yet, so both would have learned the same
            self.empty.load_state_dict(self.net.state_dict())

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> Step:
        step = super().forward(batch)
        return step if self.task.index == 0 else TwinStep(batch, step.output, self.empty(batch.x))

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        terms = dict(super().losses(step))
        if isinstance(step, TwinStep):
            # Disjoint parameters: the sum of both is a step of each.
            terms["expansion"] = self.task_loss(step.empty.logits, step.batch.y)
            pull = self.expanded.distance(backbone_parameters(self.net))
            terms["convergence"] = self.settings.empty_strength / 2 * pull
        return terms

    def knowledge_bytes(self) -> dict[str, int]:
        """The empty network stays from task to task too."""
        return {"stable": super().knowledge_bytes()["stable"] + bytes_of(self.empty)}


def backbone_parameters(net: Net) -> list[nn.Parameter]:
    """The convergence leaves heads alone."""
    return trainable(net.backbone)
