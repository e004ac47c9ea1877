"""A-GEM (Chaudhry et al. 2019, ICLR): no step may raise the loss on a draw from the images of earlier tasks."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flashback import ranks
from flashback.batches import Batch
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplayStep, sample_new_images, trim_to_quotas
from flashback.knowledge import flat
from flashback.memory import Field
from flashback.nets import Output, joint_forward


@HOSTS.register("agem")
class AGEM(ReplayHost):
    """Cross-entropy on new images; a gradient that opposes the one on stored images is projected.

    The stored images and labels are the stable knowledge, and the projection (Eq. 11 of Chaudhry et al.) is all that
    protects it: there is no stability loss. The memory holds equally many images per class, drawn at random; a class
    that comes again leaves half of its share to its new images.
    """

    has_stability = False
    stores_at_end = True
    accumulates_structure = False

    def fields(self) -> dict[str, Field]:
        return {}  # only images and labels

    def forward(self, batch: Batch) -> ReplayStep:
        """Run new and drawn images in separate passes, since each needs its own gradient."""
        draws = self.draw()
        output = self.net(batch.x)
        for draw in draws:
            draw.output = self.net(draw.x)
        return ReplayStep(batch, output, draws)

    def can_revisit(self) -> bool:
        return True

    def trains_future_classes(self) -> bool:
        return True

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits, step.batch.y)}

    def before_update(self, step: ReplayStep) -> None:
        """Project the gradient of the whole loss, if it opposes that of the loss on the draw."""
        if not step.draws:
            return
        gradients = {p: p.grad for p in self.trained_parameters() if p.grad is not None}
        reference = self.reference_gradient(step, list(gradients))
        share = opposed_share(flat(gradients.values()), flat(reference))
        for gradient, other in zip(gradients.values(), reference, strict=True):
            gradient.sub_(share * other)

    def reference_gradient(self, step: ReplayStep, parameters: list[nn.Parameter]) -> Sequence[Tensor]:
        draw = step.draws[0]
        return ranks.average(torch.autograd.grad(cross_entropy(draw.output.logits, draw.labels), parameters))

    @torch.no_grad()
    def end(self) -> None:
        """Give every class the same share of the memory, and fill the shares of the current classes at random."""
        quotas = trim_to_quotas(self.memory, self.task, self.generator)
        self.memory.append(*sample_new_images(self.task, quotas, self.generator, self.device))

    def replayed(self, step: ReplayStep) -> tuple[Output, Tensor]:
        """Run the draw once more: the graph of the first pass is used up by the reference gradient.

        Batch-norm statistics are left alone, so that they move as in the host without Flashback.
        """
        first = step.draws[0]
        (output,) = joint_forward(self.net, [], untracked=[first.x])
        return output, first.slots


def opposed_share(gradient: Tensor, reference: Tensor) -> Tensor:
    """How much of the reference to subtract to make the gradient orthogonal to it; 0 unless the two are opposed."""
    square = reference @ reference
    return torch.where(square > 0, (gradient @ reference).clamp(max=0) / square, 0.0)
