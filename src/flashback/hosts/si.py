"""SI (Zenke et al. 2017): keep the parameters whose changes lowered the loss most."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.config import NotNegative, Positive
from flashback.hosts.base import HOSTS
from flashback.hosts.elastic import ElasticHost, ElasticSettings
from flashback.hosts.stages import Step
from flashback.knowledge import ImportantParameters, Support, flat, with_rows


@dataclass(frozen=True)
class SISettings(ElasticSettings):
    strength: NotNegative = 0.5  # c
    xi: Positive = 1.0  # damping: bounds the importance of parameters that hardly moved


@dataclass
class PathStep(Step):
    """A step, with the parameters it starts from and the gradient of the task loss there."""

    start: Tensor  # all distances see the parameters through it, so the gradient it retains is that of the distances
    task_gradient: Tensor = field(init=False)


@HOSTS.register("si")
class SI(ElasticHost):
    """Synaptic intelligence: omega = -sum over steps of gradient times change, Omega += omega / (Delta^2 + xi).

    The gradient is that of the task loss only. The backward pass also adds the gradients of stability and plasticity.
    Both depend only on the parameters, so their gradients are subtracted, without another pass through the network. The
    public code (Mammoth) clips every entry of the gradient at 1 before the update; this one does not.
    """

    Settings = SISettings
    accumulates_structure = False
    reads_gradients = True
    stable: ImportantParameters
    path: Tensor  # omega, of the current task

    def build(self) -> None:
        super().build()
        self.register_buffer("path", torch.zeros_like(self.stable.values))

    def grow(self, columns: int) -> None:
        shapes = [parameter.shape for parameter in self.anchored_parameters()]
        super().grow(columns)
        self.path = with_rows(self.path, shapes, [torch.zeros_like(p) for p in self.anchored_parameters()])

    def forward(self, batch: Batch) -> Step:
        start = flat(self.anchored_parameters())
        start.retain_grad()
        return PathStep(batch, super().forward(batch).output, start)

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = task loss + c * sum Omega (theta - theta_s)^2."""
        terms = {"task": self.task_loss(step.output.logits, step.batch.y)}
        if self.task.index > 0:
            terms["stability"] = self.stability(step)
        return terms

    def distance(self, step: Any, knowledge: ImportantParameters, support: Support) -> Tensor:
        return knowledge.distance([step.start])

    @torch.no_grad()
    def before_update(self, step: PathStep) -> None:
        """Read the gradient before the update, since some optimisers write over it."""
        step.task_gradient = flat(map(gradient_of, self.anchored_parameters()))
        if step.start.grad is not None:  # None before the second task
            step.task_gradient -= step.start.grad

    def after_step(self, step: PathStep) -> None:
        """omega <- omega - gradient * change."""
        self.path.addcmul_(step.task_gradient, flat(self.anchored_parameters()) - step.start, value=-1.0)

    @torch.no_grad()
    def importance(self) -> Tensor:
        """Compute omega / (Delta^2 + xi), Delta being the change since the last task ended, or since the start."""
        change = flat(self.anchored_parameters()) - self.stable.values
        return self.path.relu() / (change.square() + self.settings.xi)

    def end(self) -> None:
        """Omega <- Omega + importance, theta_s <- theta; a new path begins."""
        super().end()
        self.path.zero_()


def gradient_of(parameter: nn.Parameter) -> Tensor:
    """Return the gradient that the backward pass left; zeros for a parameter that the network does not use."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
