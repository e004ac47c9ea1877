"""A-GEM (Chaudhry et al. 2019, ICLR): no step may raise the loss on a draw from the images of earlier tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.batches import Batch
from flashback.hosts.balanced import BalancedHost
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import Recalled, ReplayStep
from flashback.knowledge import flat
from flashback.nets import Output, joint_forward


@dataclass
class AGEMStep(ReplayStep):
    recalled: list[Recalled]  # the images of the draws


@HOSTS.register("agem")
class AGEM(BalancedHost):
    """Cross-entropy on new images; a gradient that opposes the one on stored images is projected beside it.

    Images and labels are the stable knowledge, and the projection is all that holds to them: there is no distance.
    """

    has_stability = False

    def forward(self, batch: Batch) -> AGEMStep:
        """Each with a pass of its own: the gradients of both are wanted apart."""
        recalled = self.recall(self.draws)
        output, *answers = (self.net(x) for x in [batch.x, *(own.x for own in recalled)])
        return AGEMStep(batch, output, self.answered(recalled, answers), recalled)

    def losses(self, step: AGEMStep) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits, step.batch.y)}

    def before_update(self, step: AGEMStep) -> None:
        """Project the gradient of all that is descended, if it opposes that of the loss on the draw (Eq. 11)."""
        if not step.draws:
            return
        gradients = {p: p.grad for p in self.trained_parameters() if p.grad is not None}
        reference = self.reference_gradient(step, list(gradients))
        share = opposed_share(flat(gradients.values()), flat(reference))
        for gradient, other in zip(gradients.values(), reference, strict=True):
            gradient.sub_(share * other)

    def reference_gradient(self, step: AGEMStep, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
        draw = step.draws[0]
        return torch.autograd.grad(cross_entropy(draw.output.logits, draw.labels), parameters)

    def replayed(self, step: AGEMStep) -> tuple[Output, Tensor]:
        """By a second pass: the first belongs to the reference gradient, and a pass can be gone back through once.

        It leaves batch-norm statistics alone, so that they move as in the host without flashback.
        """
        (output,) = joint_forward(self.net, [], untracked=[step.recalled[0].x])
        return output, step.recalled[0].slots


def opposed_share(gradient: Tensor, reference: Tensor) -> Tensor:
    """How much of the reference has to go for the gradient to be orthogonal to it; 0 unless the two are opposed."""
    square = reference @ reference
    return torch.where(square > 0, (gradient @ reference).clamp(max=0) / square, 0.0)
