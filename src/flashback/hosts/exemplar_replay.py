"""Plain replay: cross-entropy on new images and herded exemplars, and nothing else against forgetting.

The base class of hosts that draw from a memory beside every batch (ER, DER) is in `replay.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Step
from flashback.knowledge import Support, Targets


@dataclass(frozen=True)
class ExemplarReplaySettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features


@HOSTS.register("replay")
class ExemplarReplay(ExemplarHost):
    """Cross-entropy on new images and exemplars alike, and nothing else against forgetting.

    The labels of exemplars are the stable knowledge; there is no distance to them, so no stability loss. The plastic
    knowledge is the primary model's logits for the exemplars (FL Eq. 10), compared by squared error (FL Eq. 21).
    """

    Settings = ExemplarReplaySettings
    has_stability = False

    def allocate(self) -> None:
        """Nothing to allocate: the memory is there from the start."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.seen, samples="memory")

    def distance(self, step: Any, knowledge: Targets, support: Support) -> Tensor:
        """Squared error between the outputs for the exemplars of a batch and their targets."""
        return self.replay_distance(step, knowledge, support)

    def knowledge_bytes(self) -> dict[str, int]:
        """The whole memory, as plastic targets too have room for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}
