"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint is two files: tensors (safetensors) and a manifest (JSON) with their checksum. Both are written
atomically, the manifest last, so a checkpoint is complete or does not exist. Nothing is unpickled. The manifest names
the run that wrote it by a digest of its configuration and data, and no other run loads it.
"""

from __future__ import annotations

import hashlib
import json
import re
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from flashback.config import CheckpointConfig, build
from flashback.errors import FlashbackError, require
from flashback.errors import Interrupted as Interrupted
from flashback.files import LARGEST_RECORD, NO_SPACE, read_file, refuse_special, write_atomically
from flashback.records.terms import SETTINGS
from flashback.training.result import History
from flashback.training.trainer import Checkpointer, Position, RunState

FORMAT = 2  # of checkpoints; others are refused
KEPT = 2  # the last good one, and the one before in case the last is damaged
MANIFEST = re.compile(r"[0-9]{6,}\.json")
AFTER_TASKS = "after-task-{}"  # folders of the models kept after each task, counted from 1
CHECKPOINT_FILE = re.compile(r"(?:\.(?:[0-9a-f]{8}\.)?)?([0-9]{6,})\.(json|safetensors)(\.part)?")


class DamagedCheckpointError(FlashbackError):
    pass


class Checkpoints:
    """The checkpointer of a run folder: saves when due, stops when asked, and loads the last good state."""

    def __init__(
        self,
        folder: Path,
        settings: CheckpointConfig,
        log_size: Callable[[], int] = lambda: 0,
        run: str | None = None,
    ) -> None:
        refuse_special(folder)
        self.folder, self.settings, self.log_size = folder, settings, log_size
        self.run = run  # the digest of the run; None loads the checkpoint of any run
        self.stopping = threading.Event()
        self.damaged: set[str] = set()  # by number
        self._last = time.monotonic()
        self._last_epoch: tuple[int, int, int] = (0, 0, 0)

    # ------------------------------------------------------------ asked by the trainer

    def due(self, position: Position) -> bool:
        """After every `epochs` epochs, after `minutes`, and at once when the run is to stop."""
        if self.stopping.is_set():
            return True
        epoch = (position.task, position.stage, position.epoch)
        at_epoch_end = position.step == 0 and epoch != self._last_epoch
        if at_epoch_end and self.settings.epochs and position.epoch and position.epoch % self.settings.epochs == 0:
            return True
        return time.monotonic() - self._last >= 60 * self.settings.minutes

    def save(self, state: RunState) -> None:
        position = state.values["position"]
        self._last_epoch = (position["task"], position["stage"], position["epoch"])
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            warnings.warn(f"no space for a checkpoint in {self.folder}; the run continues without it", stacklevel=2)
        self._last = time.monotonic()
        if self.stopping.is_set():
            raise Interrupted

    # ------------------------------------------------------------ on disk

    def write(self, state: RunState) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"{1 + max((int(path.stem) for path in self.manifests()), default=0):06d}"
        content = safetensors.torch.save(storable(state.tensors))
        values = {**state.values, "log_bytes": self.log_size(), "run": self.run, "format": FORMAT}
        manifest = {"tensors": digest(content), "size": len(content), "values": values}
        try:
            write_atomically(self.folder / f"{name}.safetensors", content)
            write_atomically(self.folder / f"{name}.json", json.dumps({"digest": digest_of(manifest), **manifest}))
        finally:
            self.tidy()

    def tidy(self, kept: int = KEPT) -> None:
        """Remove all but the newest good checkpoints, and incomplete files; other files stay."""
        good = [path.stem for path in self.manifests() if path.stem not in self.damaged]
        newest = good[max(0, len(good) - kept) :]
        for path in list(self.folder.glob("*")):
            file = CHECKPOINT_FILE.fullmatch(path.name)
            if file and (file[3] or file[1] not in newest) and path.is_file():
                path.unlink()

    def manifests(self) -> list[Path]:
        """From the oldest to the newest."""
        paths = (path for path in self.folder.glob("*.json") if MANIFEST.fullmatch(path.name) and path.is_file())
        return sorted(paths, key=lambda path: int(path.stem))

    def load(self) -> RunState | None:
        """The newest undamaged checkpoint; damaged ones are skipped with a warning."""
        for manifest in reversed(self.manifests()):
            try:
                state = read_checkpoint(manifest)
                self.check_run(state, manifest)
                return state
            except DamagedCheckpointError as error:
                self.damaged.add(manifest.stem)
                warnings.warn(f"{error}; it is skipped", stacklevel=2)
        if self.damaged:
            warnings.warn(f"every checkpoint in {self.folder} is damaged; the run starts again", stacklevel=2)
        return None

    def check_run(self, state: RunState, manifest: Path) -> None:
        """Refuse the checkpoint of another run."""
        require(
            self.run is None or state.values.get("format") == FORMAT,
            f"the checkpoint {manifest} was written by another version of flashback; start the run in another folder",
        )
        require(
            self.run in (None, state.values["run"]),
            f"the checkpoint {manifest} belongs to a run with another seed, host, setting or dataset than config.yaml; "
            "restore what was changed, or start the run in another folder",
        )

    # ------------------------------------------------------------ signals

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """The first SIGINT, SIGTERM or SIGHUP asks for a checkpoint and a stop; a second signal quits at once.

        A signal that is ignored, as under nohup, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        watched = [number for number in signals if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in watched}

        def restore() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        def ask(*_: object) -> None:
            self.stopping.set()
            restore()

        try:
            for number in watched:
                signal.signal(number, ask)
            yield
        finally:
            restore()


class TeeCheckpointer:
    """A checkpointer that also stores the state elsewhere at certain positions."""

    def __init__(
        self, main: Checkpointer, is_extra: Callable[[Position], bool], store: Callable[[RunState], None]
    ) -> None:
        self.main, self.is_extra, self.store = main, is_extra, store

    def due(self, position: Position) -> bool:
        return self.is_extra(position) or self.main.due(position)

    def save(self, state: RunState) -> None:
        position = Position(**state.values["position"])
        if self.is_extra(position):
            self.store(state)
        if not self.is_extra(position) or self.main.due(position):
            self.main.save(state)


class Models:
    """The models that a run keeps: its state after every task but the last, whose state the last checkpoint has."""

    def __init__(
        self, folder: Path, settings: CheckpointConfig, tasks: int, run: str, log_size: Callable[[], int] = lambda: 0
    ) -> None:
        self.folder, self.settings, self.tasks, self.run, self.log_size = folder, settings, tasks, run, log_size

    def due(self, position: Position) -> bool:
        return self.settings.tasks and position == Position(position.task) and 0 < position.task < self.tasks

    def keep(self, state: RunState) -> None:
        kept = self.after(state.values["position"]["task"])
        kept.save(state)
        kept.tidy(kept=1)

    def after(self, tasks: int) -> Checkpoints:
        return Checkpoints(self.folder / AFTER_TASKS.format(tasks), self.settings, self.log_size, self.run)

    def kept(self) -> list[int]:
        return [tasks for tasks in range(1, self.tasks) if self.after(tasks).manifests()]


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies on the CPU that share no memory, as safetensors requires."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(values: Any) -> str:
    return digest(json.dumps(values, sort_keys=True).encode())


def read_checkpoint(manifest: Path) -> RunState:
    """Read a checkpoint and check it against its manifest.

    A disk that cannot be read, or a lack of memory, is not damage: those errors are raised as they are.
    """
    damaged = DamagedCheckpointError(f"the checkpoint {manifest} is damaged")
    tensors = manifest.with_suffix(".safetensors")
    try:
        document = json.loads(read_file(manifest, LARGEST_RECORD))
        claimed = document.pop("digest")
        if digest_of(document) != claimed or tensors.stat().st_size != document["size"]:
            raise damaged
        content = read_file(tensors, document["size"])
        if digest(content) != document["tensors"]:
            raise damaged
        check_values(document["values"])
        return RunState(safetensors.torch.load(content), document["values"])
    except FileNotFoundError:
        raise damaged from None
    except (OSError, MemoryError):
        raise
    except Exception:  # decoders raise nearly every kind for damaged input
        raise damaged from None


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse values that no trainer can have written."""
    position, history = build(Position, values["position"]), build(History, values["history"])
    numbers = [position.task, position.stage, position.epoch, position.step, values["log_bytes"]]
    settings = [
        set(measured) for part in (history.matrices, history.zero_shot, history.untrained) for measured in part.values()
    ]
    matrices = [matrix for measured in history.matrices.values() for matrix in measured.values()]
    entries = [tuple(type(entry[key]) for key in ("task", "stage", "steps", "images")) for entry in history.budget]
    require(
        all(type(number) is int and number >= 0 for number in numbers)
        and all(names == set(SETTINGS) for names in settings)
        and all(len(matrix) == position.task for matrix in matrices)
        and all(len(row) == k for matrix in matrices for k, row in enumerate(matrix, start=1))
        and all(entry == (int, str, int, int) for entry in entries)
        and set(history.confusion) <= set(history.matrices)
        and all(len(row) == len(counts) for counts in history.confusion.values() for row in counts)
        and (bool(entries) or not position.begun),
        "the values of the checkpoint are not those of a run",
    )
