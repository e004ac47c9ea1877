"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is two files: tensors (safetensors) and a manifest (JSON) that names them with their checksum. Both are
written aside, synced and renamed, the manifest last; so a checkpoint exists whole or not at all. Nothing is unpickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from flashback.config import CheckpointConfig
from flashback.errors import FlashbackError
from flashback.records import write_atomically
from flashback.training.trainer import Position, RunState

KEPT = 2  # the last good one, and the one before in case the last is damaged


class Interrupted(Exception):  # noqa: N818 - not an error: the user asked for it
    """A run was asked to stop and has saved its state."""


class Checkpoints:
    """The keeper of a run folder: saves when due, stops when asked, and finds the last good state again."""

    def __init__(self, folder: Path, settings: CheckpointConfig, log_size: Callable[[], int] = lambda: 0) -> None:
        self.folder, self.settings, self.log_size = folder, settings, log_size
        self.stopping = threading.Event()
        self.seconds = 0.0  # spent on saving
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
        started = time.monotonic()
        position = state.values["position"]
        self._last_epoch = (position["task"], position["stage"], position["epoch"])
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            warnings.warn(f"no room for a checkpoint in {self.folder}; the run goes on without it", stacklevel=2)
        self._last = time.monotonic()
        self.seconds += self._last - started
        if self.stopping.is_set():
            raise Interrupted

    # ------------------------------------------------------------ on disk

    def write(self, state: RunState) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        number = max((int(path.stem) for path in self.manifests()), default=0) + 1
        name = f"{number:06d}"
        content = safetensors.torch.save(storable(state.tensors))
        values = {**state.values, "log_bytes": self.log_size()}
        manifest = {"tensors": digest(content), "size": len(content), "values": values}
        try:
            write_atomically(self.folder / f"{name}.safetensors", content)
            write_atomically(self.folder / f"{name}.json", json.dumps({"digest": digest_of(manifest), **manifest}))
        finally:
            self.tidy()

    def tidy(self) -> None:
        """Remove all but the newest checkpoints, and parts that were never finished."""
        kept = {path.stem for path in self.manifests()[-KEPT:]}
        for path in self.folder.iterdir():
            if path.stem not in kept and path.suffix in (".json", ".safetensors", ".part"):
                path.unlink()

    def manifests(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("[0-9]*.json") if path.stem.isdigit())

    def load(self) -> RunState | None:
        """The newest checkpoint that is whole; damaged ones are named in a warning and passed over."""
        for manifest in reversed(self.manifests()):
            try:
                return read_checkpoint(manifest)
            except FlashbackError as error:
                warnings.warn(f"{error}; the one before it is used", stacklevel=2)
        return None

    # ------------------------------------------------------------ stopping in good order

    @contextmanager
    def stop_on_signals(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM asks for a checkpoint and a stop; the second one quits at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def ask(number: int, _: object) -> None:
            self.stopping.set()
            signal.signal(number, previous[signal.Signals(number)])

        previous = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


def storable(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies on the CPU, contiguous and not sharing memory, as safetensors wants them."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(values: Any) -> str:
    return digest(json.dumps(values, sort_keys=True).encode())


def read_checkpoint(manifest: Path) -> RunState:
    """Read one checkpoint and check it against its manifest before anything is taken from it."""
    damaged = FlashbackError(f"the checkpoint {manifest} is cut short or altered")
    try:
        # Through JSON once more, so that the digest is taken of the same text that was written.
        document = json.loads(manifest.read_text(encoding="utf-8"))
        claimed = document.pop("digest")
        if digest_of(document) != claimed:
            raise damaged
        path = manifest.with_suffix(".safetensors")
        if path.stat().st_size != document["size"]:
            raise damaged
        content = path.read_bytes()
        if digest(content) != document["tensors"]:
            raise damaged
        return RunState(safetensors.torch.load(content), document["values"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError, safetensors.SafetensorError):
        raise damaged from None
