"""ER, experience replay (Chaudhry et al. 2019, Riemer et al. 2019): cross-entropy on new and stored images.

Stored images come from a reservoir; `exemplar_replay.py` does the same with herded exemplars.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.replay import ReplayHost, ReplayStep
from flashback.memory import Field
from flashback.nets import Output


@HOSTS.register("er")
class ExperienceReplay(ReplayHost):
    """Cross-entropy on new images and on images from a reservoir memory, in one batch.

    The stored labels are the stable knowledge; there is no distance to them, so no stability loss. The plastic
    knowledge is the primary model's logits for the stored images.
    """

    has_stability = False
    accumulates_structure = False

    def fields(self) -> dict[str, Field]:
        return {}  # only images and labels

    def forward(self, batch: Batch) -> ReplayStep:
        """Run new and drawn images as one batch (Chaudhry et al., Algorithm 1), for batch norm too."""
        draws = self.draw()
        parts = [batch.x, *(draw.x for draw in draws)]
        output: Output = self.net(torch.cat(parts))
        new, *old = output.split([len(part) for part in parts])
        for draw, draw_output in zip(draws, old, strict=True):
            draw.output = draw_output
        return ReplayStep(batch, new, draws)

    def can_revisit(self) -> bool:
        return True

    def trains_future_classes(self) -> bool:
        return True

    def losses(self, step: ReplayStep) -> Mapping[str, Tensor]:
        """Return the mean over that batch as two terms: the shares of new and of drawn images."""
        parts = {"task": (step.output, step.batch.y)}
        if step.draws:
            parts["replay"] = (step.draws[0].output, step.draws[0].labels)
        images = sum(len(labels) for _, labels in parts.values())
        return {
            name: len(labels) / images * cross_entropy(output.logits, labels)
            for name, (output, labels) in parts.items()
        }

    def after_step(self, step: ReplayStep) -> None:
        self.memory.reservoir(step.batch.raw, step.batch.y, self.generator)
