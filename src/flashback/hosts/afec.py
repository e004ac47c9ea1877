"""AFEC (Wang et al. 2021): EWC, also pulled towards a second network that learns every task without constraint."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import NotNegative
from flashback.hosts.base import HOSTS, trainable
from flashback.hosts.ewc import EWC, FisherSettings, task_fisher
from flashback.hosts.stages import Stage, Step
from flashback.knowledge import ImportantParameters, bytes_of, flat
from flashback.nets import Net, Output


@dataclass(frozen=True)
class AFECSettings(FisherSettings):
    empty_strength: NotNegative = 1.0  # lambda_e, weight of the pull towards the empty network


@dataclass
class TwinStep(Step):
    """A step of both networks on the same images."""

    empty: Output


@HOSTS.register("afec")
class AFEC(EWC):
    """EWC, also pulled towards a second network that learns each task without constraint.

    From the second task on the loss has lambda_e / 2 * sum F_e (theta - theta_e)^2 over the backbone. This "empty"
    network theta_e minimises the task loss alone, task after task, and is never reset. The released code trains the
    two in turns, an epoch each. Here the empty network has its first epoch of a task alone and then learns in the same
    steps as the network. So it is one epoch ahead as well when theta_e and F_e are read, before every epoch.
    """

    Settings = AFECSettings
    has_one_backbone = False
    net: Net
    anchored_epoch: Tensor

    def build(self) -> None:
        super().build()
        self.empty = copy.deepcopy(self.net)
        self.expanded = ImportantParameters(trainable(self.empty.backbone))  # {theta_e, F_e} of the current epoch
        self.register_buffer("anchored_epoch", torch.tensor(-1))

    def grow(self, columns: int) -> None:
        super().grow(columns)
        self.empty.grow(columns)

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return [self.main_stage()]
        return [
            self.extra_stage(
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
        """Return both networks; in the first task the main one alone."""
        return trainable(self.net) + (trainable(self.empty) if self.task.index > 0 else [])

    def begin(self) -> None:
        self.anchored_epoch.fill_(-1)

    @torch.no_grad()
    def read_empty(self, epoch: int) -> None:
        """Set theta_e and F_e before an epoch; a run resumed within an epoch keeps those the epoch began with."""
        if self.anchored_epoch.item() != epoch:
            self.expanded.values.copy_(flat(trainable(self.empty.backbone)))
            self.expanded.importance.copy_(
                task_fisher(self, self.empty)[: len(self.expanded.values)]
            )  # the head comes last
            self.anchored_epoch.fill_(epoch)

    def end(self) -> None:
        super().end()
        if self.task.index == 0:  # without anchors both networks would have learned the same
            self.empty.load_state_dict(self.net.state_dict())

    def forward(self, batch: Batch) -> Step:
        step = super().forward(batch)
        return step if self.task.index == 0 else TwinStep(batch, step.output, self.empty(batch.x))

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = EWC's loss + lambda_e / 2 * sum F_e (theta - theta_e)^2, and the task loss of the empty network."""
        terms = dict(super().losses(step))
        if isinstance(step, TwinStep):
            # The two networks share no parameters, so minimising the sum trains each on its own terms.
            terms["expansion"] = self.task_loss(step.empty.logits, step.batch.y)
            distance = self.expanded.distance(trainable(self.net.backbone))
            terms["convergence"] = self.settings.empty_strength / 2 * distance
        return terms

    def knowledge_bytes(self) -> dict[str, int]:
        """Count the empty network too, which stays from task to task."""
        return {"stable": super().knowledge_bytes()["stable"] + bytes_of(self.empty)}
