"""BEEF-Compress (Wang et al. 2023): BEEF that distils the fused network into one module, with FOSTER's compression."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flashback.hosts.base import HOSTS
from flashback.hosts.beef import Beef, BeefSettings
from flashback.hosts.expanding import CompressingHost, CompressionSettings
from flashback.hosts.stages import Stage, nothing
from flashback.nets import Backbone, Concatenation, LinearHead


@dataclass(frozen=True, kw_only=True)
class BeefCompressSettings(BeefSettings, CompressionSettings):
    beta2: float = 0.0  # how much the compression favours classes with few images; 0: not at all


@HOSTS.register("beef-compress")
class BeefCompress(CompressingHost, Beef):
    """After fusion one module learns from all; so the next task finds one group of old classes (K + 2 prototypes)."""

    Settings = BeefCompressSettings

    def groups(self) -> list[int]:
        return [0] * len(self.task.before)

    def expanding_stages(self) -> list[Stage]:
        expansion, fusion = super().expanding_stages()
        return [expansion, replace(fusion, end=nothing), self.compression_stage()]

    def expand(self) -> None:
        super().expand()
        self.student = None

    def left_behind(self) -> Concatenation:
        if self.student is None:
            return super().left_behind()
        return Concatenation([self.student.backbone], self.student.head)

    def old_parts(self) -> tuple[Backbone, LinearHead]:
        assert self.old is not None
        return self.old.module.first, self.old.module.head
