"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is two files: tensors (safetensors) and a manifest (JSON) that names them with their checksum. Both are
written aside, synced and renamed, the manifest last; so a checkpoint exists whole or not at all. Nothing is unpickled.
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
from flashback.files import LARGEST_RECORD, NO_SPACE, read_file, write_atomically
from flashback.records.terms import SETTINGS
from flashback.training.result import History
from flashback.training.trainer import Checkpointer, Position, RunState

KEPT = 2  # the last good one, and the one before in case the last is damaged
MANIFEST = re.compile(r"[0-9]{6,}\.json")
AFTER_TASKS = "after-task-{}"  # folders of the models that were kept on the way, counted from 1
OWN_FILE = re.compile(r"(?:\.(?:[0-9a-f]{8}\.)?)?([0-9]{6,})\.(json|safetensors)(\.part)?")


class Checkpoints:
    """The checkpointer of a run folder: saves when due, stops when asked, and finds the last good state again."""

    def __init__(self, folder: Path, settings: CheckpointConfig, log_size: Callable[[], int] = lambda: 0) -> None:
        require(
            not folder.is_symlink(),
            f"{folder} is a symbolic link, and a run writes only inside its own folder; remove the link",
        )
        self.folder, self.settings, self.log_size = folder, settings, log_size
        self.stopping = threading.Event()
        self.damaged: set[str] = set()  # checkpoints found so, by their number
        self._last = time.monotonic()
        self._last_epoch: tuple[int, int, int] = (0, 0, 0)

    # ------------------------------------------------------------ asked by the trainer

    def due(self, position: Position) -> bool:
        """After every `epochs` epochs, and when `minutes` have gone by; at once when the run is to stop."""
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
        values = {**state.values, "log_bytes": self.log_size()}
        manifest = {"tensors": digest(content), "size": len(content), "values": values}
        try:
            write_atomically(self.folder / f"{name}.safetensors", content)
            write_atomically(self.folder / f"{name}.json", json.dumps({"digest": digest_of(manifest), **manifest}))
        finally:
            self.tidy()

    def tidy(self, kept: int = KEPT) -> None:
        """Remove all but the newest good checkpoints, and parts that were never finished; files of others stay."""
        good = [path.stem for path in self.manifests() if path.stem not in self.damaged]
        newest = good[max(0, len(good) - kept) :]
        for path in list(self.folder.glob("*")):  # none, where there was no room even for the folder
            own = OWN_FILE.fullmatch(path.name)
            if own and (own[3] or own[1] not in newest) and path.is_file():
                path.unlink()

    def manifests(self) -> list[Path]:
        """From the oldest to the newest."""
        found = (path for path in self.folder.glob("*.json") if MANIFEST.fullmatch(path.name) and path.is_file())
        return sorted(found, key=lambda path: int(path.stem))

    def load(self) -> RunState | None:
        """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
        for manifest in reversed(self.manifests()):
            try:
                return read_checkpoint(manifest)
            except FlashbackError as error:
                self.damaged.add(manifest.stem)
                warnings.warn(f"{error}; it is passed over", stacklevel=2)
        if self.damaged:
            warnings.warn(f"no checkpoint in {self.folder} is whole; the run starts from the beginning", stacklevel=2)
        return None

    # ------------------------------------------------------------ stopping in good order

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """The first SIGINT, SIGTERM or SIGHUP asks for a checkpoint and a stop; the second one, of any, quits at once.

        A signal that is ignored stays so: whoever started the process has taken care of it.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        asked_by = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        watched = [number for number in asked_by if signal.getsignal(number) != signal.SIG_IGN]
        previous = {number: signal.getsignal(number) or signal.SIG_DFL for number in watched}

        def put_back() -> None:
            for number, handler in previous.items():
                signal.signal(number, handler)

        def ask(*_: object) -> None:
            self.stopping.set()
            put_back()

        try:
            for number in watched:
                signal.signal(number, ask)
            yield
        finally:
            put_back()


class TeeCheckpointer:
    """Keeps what another checkpointer does, and puts the state aside in some places too."""

    def __init__(self, own: Checkpointer, wanted: Callable[[Position], bool], put: Callable[[RunState], None]) -> None:
        self.own, self.wanted, self.put = own, wanted, put

    def due(self, position: Position) -> bool:
        return self.wanted(position) or self.own.due(position)

    def save(self, state: RunState) -> None:
        position = Position(**state.values["position"])
        if self.wanted(position):
            self.put(state)
        if not self.wanted(position) or self.own.due(position):  # one copy is enough where none of its own is due
            self.own.save(state)


class Models:
    """The models that a run keeps on its way: its state after every task but the last, with which it ends."""

    def __init__(self, folder: Path, settings: CheckpointConfig, tasks: int) -> None:
        self.folder, self.settings, self.tasks = folder, settings, tasks

    def due(self, position: Position) -> bool:
        return self.settings.tasks and position == Position(position.task) and 0 < position.task < self.tasks

    def keep(self, state: RunState) -> None:
        kept = self.after(state.values["position"]["task"])
        kept.save(state)
        kept.tidy(kept=1)

    def after(self, tasks: int) -> Checkpoints:
        return Checkpoints(self.folder / AFTER_TASKS.format(tasks), self.settings)

    def kept(self) -> list[int]:
        """After how many tasks there is one."""
        return [tasks for tasks in range(1, self.tasks) if self.after(tasks).manifests()]


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, contiguous and not sharing memory, as safetensors wants them."""
    return {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(values: Any) -> str:
    return digest(json.dumps(values, sort_keys=True).encode())


def read_checkpoint(manifest: Path) -> RunState:
    """Read one checkpoint and check it against its manifest before anything is taken from it.

    A disk that cannot be read, or too little memory, is no damage: those errors pass, and no checkpoint is given up.
    """
    damaged = FlashbackError(f"the checkpoint {manifest} is cut short or altered")
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
    except Exception:  # a decoder of damaged input raises nearly every kind
        raise damaged from None


def check_values(values: Mapping[str, Any]) -> None:
    """Refuse values of another shape than the trainer gave them."""
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
