"""BEEF-Compress (Wang et al. 2023): BEEF that distils the fused network into one module, with FOSTER's compression."""

from dataclasses import dataclass, replace

from torch import nn

from flashback.config import BelowOne, Count, Positive
from flashback.hosts.base import HOSTS
from flashback.hosts.beef import Beef, BeefSettings
from flashback.hosts.foster import Compression
from flashback.hosts.prediction import Classifier
from flashback.hosts.stages import Stage, no_op
from flashback.nets import Backbone, LinearHead
from flashback.nets.growing import Concatenation


@dataclass(frozen=True)
class BeefCompressSettings(BeefSettings):
    compression_epochs: Count | None = None  # None: as many as the main stage
    compression_lr: Positive | None = None  # base rate of the compression; None: that of the main stage
    beta2: BelowOne = 0.0  # how much the compression favours classes with few images; 0: not at all


@HOSTS.register("beef-compress")
class BeefCompress(Beef):
    """After fusion one module learns from all; so the next task has one group of old classes (K + 2 prototypes)."""

    Settings = BeefCompressSettings

    def build(self) -> None:
        super().build()
        self.compression = Compression()

    def groups(self) -> list[int]:
        return [0] * len(self.task.before)

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return super().stages()
        expansion, fusion = super().stages()
        return [
            expansion,
            replace(fusion, end=no_op),  # exemplars are chosen after the compression
            self.compression.stage(self),
        ]

    def allocate(self) -> None:
        super().allocate()
        self.compression.student = None

    def folded(self) -> Concatenation:
        student = self.compression.student
        return super().folded() if student is None else Concatenation([student.backbone], student.head)

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        assert self.old is not None
        return self.old.module.first, self.old.module.head

    def predictor(self) -> nn.Module:
        return self.compression.student or self.expanded()

    def classifiers(self) -> dict[str, Classifier]:
        return self.compression.classifiers(self)
