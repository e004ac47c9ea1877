"""Exemplar replay: cross-entropy on new images and herded exemplars, and nothing else against forgetting."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Step
from flashback.knowledge import Support


@dataclass(frozen=True)
class ExemplarReplaySettings(ExemplarSettings):
    normalise: bool = True  # herd unit-length features


@HOSTS.register("replay")
class ExemplarReplay(ExemplarHost):
    """Cross-entropy on new images and exemplars.

    The labels of exemplars are the stable knowledge; there is no distance to them, so no stability loss. The plastic
    knowledge is the primary model's logits for the exemplars (FL Eq. 10), compared by squared error (FL Eq. 21;
    `Host.replay_distance`).
    """

    Settings = ExemplarReplaySettings
    replays_targets = True
    has_stability = False
    accumulates_structure = False

    def can_revisit(self) -> bool:
        return True

    def allocate(self) -> None:
        """Nothing to allocate: the memory is there from the start."""

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        return {"task": cross_entropy(step.output.logits[:, self.task.seen], step.batch.y)}

    def plasticity_support(self) -> Support:
        return Support(columns=self.task.seen, samples="memory")

    def knowledge_bytes(self) -> dict[str, int]:
        """Count the allocated memory, since plastic targets also reserve a row for every slot."""
        return {"stable": self.memory.nbytes(allocated=True)}
