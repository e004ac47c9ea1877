"""Plain replay: cross-entropy on new and stored images, and nothing else against forgetting.

ER, experience replay (Chaudhry et al. 2019, Riemer et al. 2019), draws from a reservoir; `replay` trains on exemplars.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.replay import Draw, ReplayHost, ReplayStep
from flashback.hosts.stages import Step
from flashback.knowledge import ReplayedTargets, Support
from flashback.memory import Field
from flashback.nets import Output


@HOSTS.register("er")
class ExperienceReplay(ReplayHost):
    """Cross-entropy on new images and on images from a reservoir memory, in one batch.

    The stored labels are the stable knowledge; there is no distance to them, so no stability loss. The plastic
    knowledge is the primary model's logits for the stored images.
    """

    has_stability = False
    has_parts_by_task = False

    def fields(self) -> dict[str, Field]:
        return {}  # images and labels alone

    def forward(self, batch: Batch) -> ReplayStep:
        """Run new and drawn images as one batch (Chaudhry et al., Algorithm 1), for batch norm too."""
        draws = self.draw()
        parts = [batch.x, *(draw.x for draw in draws)]
        output: Output = self.net(torch.cat(parts))
        new, *old = output.split([len(part) for part in parts])
        return ReplayStep(batch, new, list(map(Draw.with_output, draws, old)))

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


@dataclass(frozen=True)
class ExemplarReplaySettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features


@HOSTS.register("replay")
class ExemplarReplay(ExemplarHost):
    """Cross-entropy on new images and exemplars alike.

    The labels of exemplars are the stable knowledge; there is no distance to them, so no stability loss. The plastic
    knowledge is the primary model's logits for the exemplars (FL Eq. 10), compared by squared error (FL Eq. 21).
    """

    Settings = ExemplarReplaySettings
    replays_targets = True
    has_stability = False
    has_parts_by_task = False

    def can_revisit(self) -> bool:
        return True

    def allocate(self) -> None:
        """Nothing to allocate: the memory is there from the start."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.seen, samples="memory")

    def distance(self, step: Any, knowledge: ReplayedTargets, support: Support) -> Tensor:
        """Squared error between the outputs for the exemplars of a batch and their targets."""
        return self.replay_distance(step, knowledge, support)

    def knowledge_bytes(self) -> dict[str, int]:
        """The whole memory, as plastic targets too have room for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}
