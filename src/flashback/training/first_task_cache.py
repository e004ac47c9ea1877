"""Train the first task once: runs that differ only in flashback, which begins with the second task, share it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flashback.config import CheckpointConfig
from flashback.errors import FlashbackError
from flashback.files import LARGEST_RECORD, read_file, write_atomically
from flashback.records.folder import LOG
from flashback.training.checkpoints import Checkpoints, digest_of
from flashback.training.trainer import Observer, Position, RunState

SHARED = ".first-tasks"  # the folder beside the runs of a comparison or a sweep
AFTER_FIRST_TASK = Position(task=1)
IRRELEVANT = ("flashback", "checkpoint")  # sections of a configuration that do not affect the first task


def first_task_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {section: values for section, values in config.items() if section not in IRRELEVANT}


@dataclass(frozen=True)
class FirstTaskCache:
    """The state after the first task, for runs that agree in everything that leads to it."""

    folder: Path

    @classmethod
    def of(cls, shared: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> FirstTaskCache:
        environment = [facts[name] for name in ("must_match", "source", "data_checksum")]
        return cls(shared / digest_of([first_task_settings(config), *environment]))

    def store(self, state: RunState, log: bytes) -> None:
        """Store the state unless it is there; without space for it only time is lost.

        It is written under a temporary name first, so that a killed process leaves nothing in the way of others.
        """
        if self.folder.exists():
            return
        with suppress(OSError):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self.folder.parent) as part:
                write_atomically(Path(part) / LOG, log)
                self.checkpoints(Path(part), len(log)).write(of_any_arm(state))
                Path(part).rename(self.folder)

    def load(self) -> tuple[RunState, bytes] | None:
        """The stored state and log; None if there is none that can be used, and the task has to be trained."""
        try:
            log = read_file(self.folder / LOG, LARGEST_RECORD)
            state = self.checkpoints(self.folder).load()
        except (OSError, ValueError):
            return None
        except FlashbackError:
            warnings.warn(f"{self.folder} holds the first task of another run; it is trained again", stacklevel=2)
            return None
        return (state, log) if state is not None and len(log) == state.values["log_bytes"] else None

    def checkpoints(self, folder: Path, log_size: int = 0) -> Checkpoints:
        return Checkpoints(folder, CheckpointConfig(), lambda: log_size, run=self.folder.name)


def of_any_arm(state: RunState) -> RunState:
    """Remove the entry of 0 bytes of plastic knowledge, which only the flashback arm has."""
    history = state.values["history"]
    sizes = {name: size for name, size in history["bytes"].items() if size}
    return RunState(state.tensors, {**state.values, "history": {**history, "bytes": sizes}})


def replay_log(log: bytes, observers: Sequence[Observer]) -> None:
    """Report logged events to observers, marked as earlier; torn lines are skipped."""
    for line in log.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        for observer in observers:
            observer({**event, "earlier": True})
