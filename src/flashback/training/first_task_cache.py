"""The first task, trained once: flashback begins with the second, so runs that differ in flashback alone share it."""

from __future__ import annotations

import json
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
NO_MATTER = ("flashback", "checkpoint")  # sections of a configuration that do not touch the first task


def first_task_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    return {section: values for section, values in config.items() if section not in NO_MATTER}


@dataclass(frozen=True)
class Beginning:
    """Where runs that agree in their first task leave what it led to, and find it."""

    folder: Path

    @classmethod
    def of(cls, shared: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Beginning:
        """Equal settings on equal data in equal surroundings lead to the same bits."""
        around = [facts[name] for name in ("must_match", "source", "data_checksum")]
        return cls(shared / digest_of([first_task_settings(config), *around]))

    def leave(self, state: RunState, log: bytes) -> None:
        """The first run that gets here leaves its state; without room for it nothing is lost but time.

        Under another name until it is whole: one that was killed meanwhile must not stand in the way of others.
        """
        if self.folder.exists():
            return
        with suppress(OSError):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=self.folder.parent) as part:
                write_atomically(Path(part) / LOG, log)
                Checkpoints(Path(part), CheckpointConfig(), lambda: len(log)).write(of_any_arm(state))
                Path(part).rename(self.folder)

    def find(self) -> tuple[RunState, bytes] | None:
        """The state and the log of the run that left them; whatever is in the way, the task can be trained."""
        with suppress(OSError, ValueError, FlashbackError):
            log = read_file(self.folder / LOG, LARGEST_RECORD)
            state = Checkpoints(self.folder, CheckpointConfig()).load()
            if state is not None and len(log) == state.values["log_bytes"]:
                return state, log
        return None


def of_any_arm(state: RunState) -> RunState:
    """Flashback notes that it has no bytes of plastic knowledge yet; its host would not."""
    history = state.values["history"]
    known = {name: size for name, size in history["bytes"].items() if size}
    return RunState(state.tensors, {**state.values, "history": {**history, "bytes": known}})


def tell_earlier(log: bytes, observers: Sequence[Observer]) -> None:
    """What happened before, for observers that were not there; whoever measures time passes it over.

    A log that was torn gives what it has.
    """
    for line in log.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        for observer in observers:
            observer({**event, "earlier": True})
