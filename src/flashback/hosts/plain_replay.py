"""Plain replay: cross-entropy on new images and herded exemplars, and nothing else against forgetting.

What hosts share that draw from a memory beside every batch (DER and the like) is in `replay.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Step
from flashback.knowledge import Support


@dataclass(frozen=True)
class PlainReplaySettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features


@HOSTS.register("replay")
class PlainReplay(ExemplarHost):
    """Cross-entropy on new images and exemplars alike, and nothing else against forgetting.

    The exemplars are the stable knowledge, without a distance to them: their labels say all that is kept. Plastic
    knowledge are the primary model's answers to them (Eq. 10), met again with a squared error (Eq. 21).
    """

    Settings = PlainReplaySettings
    has_stability = False

    def allocate(self) -> None:
        """Nothing to allocate: the memory stands from the start."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.seen, samples="memory")

    def knowledge_bytes(self) -> dict[str, int]:
        """The whole memory, as plastic targets too have room for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}
