"""Which step a stage runs: on CUDA a captured one, elsewhere the plain one."""

from __future__ import annotations

from flashback.batches import Stream
from flashback.hosts.base import Host
from flashback.hosts.stages import Stage
from flashback.training.step import TrainingStep


def make_step(host: Host, stage: Stage, stream: Stream, precision: str) -> TrainingStep:
    return TrainingStep(host, stage, stream, precision)
