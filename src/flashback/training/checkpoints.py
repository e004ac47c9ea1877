"""Checkpoints: everything a run needs to continue as if it had never stopped.

A checkpoint is a file of tensors (safetensors) and a manifest (JSON) with checksums and the digest of its run. The
manifest is written last, so a checkpoint is complete or does not exist. Nothing is unpickled.
"""

import json
import math
import os
import re
import signal
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from flashback import ranks
from flashback.config import CheckpointConfig, build
from flashback.errors import NOT_SAVED, SAVED, FlashbackError, require
from flashback.errors import Interrupted as Interrupted
from flashback.files import (
    LARGEST_RECORD,
    NO_SPACE,
    REMEDIES,
    make_folder,
    read_file,
    refuse_special,
    sha256,
    write_atomically,
)
from flashback.records.terms import SETTINGS
from flashback.training.result import History
from flashback.training.trainer import Position, RunState

FORMAT = 2  # of checkpoints; others are refused
KEPT = 2  # the last good one, and the one before in case the last is damaged
SAME_REQUEST = 5.0  # seconds within which SIGTERM may come twice
MANIFEST = re.compile(r"[0-9]{6,}\.json")
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
        self.after_task: dict[int, list[Callable[[RunState], None]]] = defaultdict(list)  # also get the state then
        self.stopping = threading.Event()
        self.damaged: set[str] = set()  # by number
        self._last = time.monotonic()

    def due(self, position: Position) -> bool:
        return bool(self.further_stores(position)) or self.is_time(position)

    def further_stores(self, position: Position) -> list[Callable[[RunState], None]]:
        return self.after_task[position.task] if position == Position(position.task) else []

    def is_time(self, position: Position) -> bool:
        if self.stopping.is_set():
            return True
        at_epoch_end = position.step == 0 and position.epoch > 0
        if at_epoch_end and self.settings.epochs and position.epoch % self.settings.epochs == 0:
            return True
        return time.monotonic() - self._last >= 60 * self.settings.minutes

    def request(self) -> None:
        """Save at the next opportunity."""
        self._last = -math.inf

    def save(self, state: RunState) -> None:
        position = Position(**state.values["position"])
        stores = self.further_stores(position)
        for store in stores:
            store(state)
        if stores and not self.is_time(position):
            return
        outcome = SAVED
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            outcome = NOT_SAVED
            warnings.warn(
                f"no space for a checkpoint in {self.folder} ({os.strerror(error.errno)}); {REMEDIES[error.errno]}; "
                "the run continues without it",
                stacklevel=2,
            )
        self._last = time.monotonic()
        if self.stopping.is_set():
            raise Interrupted(outcome)

    def after(self, tasks: int) -> "Checkpoints":
        """The checkpoints of the model after this many tasks."""
        return Checkpoints(self.folder / f"after-task-{tasks}", self.settings, self.log_size, self.run)

    def keep_model(self, state: RunState) -> None:
        checkpoints = self.after(state.values["position"]["task"])
        checkpoints.save(state)
        checkpoints.tidy(count=1)

    def write(self, state: RunState) -> None:
        make_folder(self.folder)
        number = f"{1 + max((int(path.stem) for path in self.manifests()), default=0):06d}"
        content = serialised(state)
        values = {**state.values, "log_bytes": self.log_size(), "run": self.run, "format": FORMAT}
        manifest = {"tensors": sha256(content), "size": len(content), "values": values}
        try:
            write_atomically(self.folder / f"{number}.safetensors", content)
            write_atomically(self.folder / f"{number}.json", json.dumps({"digest": digest_of(manifest), **manifest}))
        finally:
            self.tidy()

    def tidy(self, count: int = KEPT) -> None:
        """Remove all but the newest good checkpoints, and incomplete files; other files stay."""
        good = [path.stem for path in self.manifests() if path.stem not in self.damaged]
        newest = good[max(0, len(good) - count) :]
        for path in list(self.folder.glob("*")):
            file = CHECKPOINT_FILE.fullmatch(path.name)
            if file and (file[3] or file[1] not in newest) and path.is_file():
                path.unlink()

    def manifests(self) -> list[Path]:
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
        require(
            self.run is None or state.values.get("format") == FORMAT,
            f"the checkpoint {manifest} was written by another version of flashback; start the run in another folder",
        )
        require(
            self.run in (None, state.values["run"]),
            f"the checkpoint {manifest} belongs to a run with another seed, host, setting or dataset than config.yaml; "
            "restore what was changed, or start the run in another folder",
        )

    def stop_on_signals(self) -> AbstractContextManager[None]:
        """The first signal asks for a checkpoint and a stop, a second one quits at once. Ignored ones stay ignored."""
        return on_first_signal(self.stopping.set)


@contextmanager
def on_first_signal(act: Callable[[], None]) -> Iterator[None]:
    """Do something when asked to stop; a second signal acts as it would outside of this context.

    Slurm and systemd send SIGTERM to every process of a job, and a parent passes it on to its children. So for some
    seconds a second SIGTERM is taken for the first one.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    previous = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}

    first: float | None = None

    def restore(numbers: Collection[signal.Signals] = tuple(previous)) -> None:
        for number in numbers:
            signal.signal(number, previous[number] or signal.SIG_DFL)

    def ask(number: int, _: object) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            act()
            restore([other for other in previous if (number, other) != (signal.SIGTERM, signal.SIGTERM)])
        elif time.monotonic() - first > SAME_REQUEST:
            restore()
            signal.raise_signal(signal.Signals(number))

    try:
        for number in previous:
            signal.signal(number, ask)
        yield
    finally:
        restore()


def to_all_ranks(state: RunState | None) -> RunState | None:
    """Give the state that rank 0 has loaded to the other ranks."""
    if ranks.world_size() == 1:
        return state
    tensors = b"" if state is None else serialised(state)
    values = json.dumps(None if state is None else state.values).encode()
    tensors, values = ranks.broadcast(tensors), ranks.broadcast(values)
    return RunState(safetensors.torch.load(tensors), json.loads(values)) if tensors else None


def serialised(state: RunState) -> bytes:
    return safetensors.torch.save({name: storable(tensor) for name, tensor in state.tensors.items()})


def storable(tensor: Tensor) -> Tensor:
    """A contiguous copy on the CPU that shares no memory, as safetensors requires."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def digest_of(values: Any) -> str:
    return sha256(json.dumps(values, sort_keys=True))


def read_checkpoint(manifest: Path) -> RunState:
    """A disk that cannot be read, or a lack of memory, is not damage: those errors are raised as they are."""
    error = DamagedCheckpointError(f"the checkpoint {manifest} is damaged")
    try:
        document = json.loads(read_file(manifest, LARGEST_RECORD))
        expected = document.pop("digest")
        content = read_file(manifest.with_suffix(".safetensors"), document["size"])
        require((expected, document["tensors"]) == (digest_of(document), sha256(content)), "a checksum is wrong")
        check_values(document["values"])
        return RunState(safetensors.torch.load(content), document["values"])
    except FileNotFoundError:
        raise error from None
    except (OSError, MemoryError):
        raise
    except Exception:  # decoders raise nearly every kind for damaged input
        raise error from None


def check_values(values: Mapping[str, Any]) -> None:
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
