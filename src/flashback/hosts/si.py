"""SI (Zenke et al. 2017): hold the parameters that lowered the loss most on the way they went."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import above_zero
from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticSettings, OneAnchor
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Support, flat


@dataclass(frozen=True)
class SISettings(ElasticSettings):
    strength: float = 0.5  # c
    xi: float = 1.0  # damping: bounds the importance of parameters that hardly moved

    def check(self) -> None:
        super().check()
        above_zero(self, "xi")


@dataclass
class PathStep(Step):
    """A step, with the parameters it starts from and the gradient of the task loss there."""

    start: Tensor  # all distances look at the parameters through it, so the gradient it retains is theirs alone
    slope: Tensor = field(init=False)


@HOSTS.register("si")
class SI(OneAnchor):
    """Synaptic intelligence: omega = -sum over steps of gradient times change, Omega += omega / (Delta^2 + xi).

    The gradient is that of the task loss. What backward leaves has those of stability and plasticity in it, whatever
    their weights; as both are functions of the parameters alone, their gradient is taken out again, without another
    pass through the network.
    """

    Settings = SISettings
    path: Tensor

    def build(self) -> None:
        super().build()
        self.register_buffer("path", torch.zeros_like(self.stable.values))  # omega, of the present task

    # ------------------------------------------------------------ a batch

    def forward(self, batch: Batch) -> Step:
        start = flat(self.held())
        start.retain_grad()
        return PathStep(batch, super().forward(batch).output, start)

    def distance(self, step: PathStep, knowledge: ImportantParameters, support: Support) -> Tensor:
        return knowledge.distance([step.start])

    @torch.no_grad()
    def before_update(self, step: PathStep) -> None:
        """Read the gradient here: some optimisers write over it."""
        step.slope = flat(map(gradient, self.held()))
        if step.start.grad is not None:  # there is none before the second task
            step.slope -= step.start.grad

    def after_step(self, step: PathStep) -> None:
        self.path.addcmul_(step.slope, flat(self.held()) - step.start, value=-1.0)

    # ------------------------------------------------------------ knowledge

    @torch.no_grad()
    def importance(self) -> Tensor:
        """By the way gone since the task began, which is where the last one ended, or at the initial parameters."""
        change = flat(self.held()) - self.stable.values
        return self.path.relu() / (change.square() + self.settings.xi)

    def end(self) -> None:
        super().end()
        self.path.zero_()


def gradient(parameter: nn.Parameter) -> Tensor:
    """What backward left; nothing, where a network does not use all it has."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
