"""Train the first task once: runs that differ only in what begins with the second task, such as flashback, share it."""

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from flashback.config import CheckpointConfig
from flashback.errors import FlashbackError
from flashback.files import LARGEST_RECORD, make_folder, read_file, refuse_special, write_atomically
from flashback.records import LOG
from flashback.training.checkpoints import Checkpoints, digest_of
from flashback.training.trainer import Observer, RunState

SHARED = ".first-tasks"  # the folder beside the runs of a comparison or a sweep
IRRELEVANT = ("flashback", "checkpoint")  # sections of a configuration that do not affect the first task
FROM_TASK_2 = ("stability", "merge", "teacher_statistics")  # settings of training that begin with the second task


def first_task_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    relevant = {section: values for section, values in config.items() if section not in IRRELEVANT}
    if "training" in relevant:
        training = {key: value for key, value in relevant["training"].items() if key not in FROM_TASK_2}
        relevant["training"] = training
    return relevant


@dataclass(frozen=True)
class FirstTaskCache:
    """The state after the first task, for runs that agree in everything that leads to it."""

    folder: Path

    @classmethod
    def of(cls, shared: Path, config: Mapping[str, Any], facts: Mapping[str, Any]) -> Self:
        refuse_special(shared)
        environment = [facts[name] for name in ("must_match", "source", "data_checksum")]
        return cls(shared / digest_of([first_task_settings(config), *environment]))

    def store(self, state: RunState, log: bytes) -> None:
        """Store it unless it is there, under a temporary name first; without space for it only time is lost."""
        if self.folder.exists():
            return
        history = state.values["history"]
        sizes = {name: size for name, size in history["bytes"].items() if size}  # only one arm has plastic knowledge
        values = {**state.values, "history": {**history, "bytes": sizes}}
        with suppress(OSError):
            make_folder(self.folder.parent)
            with TemporaryDirectory(dir=self.folder.parent) as part:
                write_atomically(Path(part) / LOG, log)
                self.checkpoints(Path(part), len(log)).write(RunState(state.tensors, values))
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


def replay_log(log: bytes, observers: Sequence[Observer]) -> None:
    """Report logged events to observers, marked as earlier; torn lines are skipped."""
    for line in log.decode(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for observer in observers if isinstance(event, dict) else ():
            observer({**event, "earlier": True})
