"""A run folder: config.yaml, run.json, log.jsonl and results.json, plain text that is written atomically."""

import fcntl
import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self

import yaml

from flashback import files
from flashback.errors import FlashbackError, require
from flashback.plain_yaml import read_yaml

CONFIG, RUN, LOG, RESULTS = "config.yaml", "run.json", "log.jsonl", "results.json"
CHECKPOINT = "checkpoint"  # the folder of the states that a run continues from
TRACKERS = "trackers.json"  # the ids by which trackers know the run
PLAN = "sweep.json"  # beside the runs of a sweep: what they are
CHECKSUM = "results_checksum"  # in run.json
COMPARISON = "comparison.json"  # beside the runs of both arms

Resolve = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class FolderInUseError(FlashbackError):
    """Another process is training in the folder of a run, or has just finished the run."""


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None  # while this process holds it

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], resolve: Resolve = dict) -> Self:
        """A new folder, or that of an unfinished run whose resolved configuration is the same."""
        files.make_folder(path)
        folder = cls(path)
        with folder.lock():  # two processes may start at once
            if is_begun(path):
                check_settings(path, config, resolve)
            else:
                folder.write(CONFIG, yaml.safe_dump(dict(config), sort_keys=False))
        return folder

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one process per folder; the system frees the lock of a process that died."""
        with files.explaining_failure(self.path / files.LOCK):
            file = files.open_to_append(self.path / files.LOCK)
        with file:
            with files.explaining_failure(self.path / files.LOCK):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    message = f"another process is training in {self.path}; wait for it or stop it"
                    raise FolderInUseError(message) from None
            if is_finished(self.path):
                raise FolderInUseError(f"{self.path} already holds a finished run; {files.ANOTHER_FOLDER}")
            for name in (CONFIG, RUN, LOG, RESULTS, TRACKERS):  # a killed process may have left them incomplete
                for part in self.path.glob(f".*{name}.part"):
                    part.unlink()
            self._lock = file
            self.name_holder(platform.node())
            try:
                yield
            finally:
                self._lock = None

    def name_holder(self, machine: str) -> None:
        """Note which machine trains the run, for those who watch; the run does without it."""
        if self._lock is not None:
            with suppress(OSError):  # without a buffer, whose rest would be written when the file is closed
                os.ftruncate(self._lock.fileno(), 0)
                os.write(self._lock.fileno(), machine.encode())

    def check_lock(self) -> None:
        """Stop if the lock file was removed or replaced, since another process may have taken the folder."""
        if self._lock is not None:
            path = self.path / files.LOCK
            require(
                path.exists() and os.path.samestat(os.fstat(self._lock.fileno()), path.stat()),
                f"{path} was removed while this run was using it, so another process may be training there; "
                "this run stops",
            )

    @contextmanager
    def open_log(self) -> Iterator[BinaryIO]:
        self.check_lock()
        with files.explaining_failure(self.path / LOG), files.open_to_append(self.path / LOG) as file:
            yield file

    def log(self, event: Mapping[str, Any]) -> None:
        line = json.dumps({**event, "time": round(time.time(), 3)}) + "\n"
        with self.open_log() as file:
            file.write(line.encode())

    def log_size(self) -> int:
        with self.open_log() as file:
            os.fsync(file.fileno())
            return file.tell()

    def read_log(self) -> bytes:
        return files.read_file(self.path / LOG, files.LARGEST_RECORD)

    def cut_log(self, size: int) -> None:
        with self.open_log() as file:
            if file.tell() < size:
                warnings.warn(f"{self.path / LOG} has lost lines since the checkpoint was written", stacklevel=2)
            file.truncate(min(size, file.tell()))

    def finish(self, run: Mapping[str, Any], results: Mapping[str, Any]) -> None:
        """Write the results, which make it a finished run, and before that their checksum beside what else is known."""
        content = json.dumps(dict(results), indent=1) + "\n"
        self.write_run({**run, CHECKSUM: files.sha256(content)})
        self.write(RESULTS, content)

    def write_run(self, run: Mapping[str, Any]) -> None:
        self.write(RUN, json.dumps(dict(run), indent=1) + "\n")

    def write(self, name: str, content: str | bytes) -> None:
        self.check_lock()
        files.write_atomically(self.path / name, content)

    def read_run(self) -> dict[str, Any]:
        return _read_json(self.path / RUN) if (self.path / RUN).exists() else {}


def is_held(path: Path) -> bool:
    if not (path / files.LOCK).exists():
        return False
    with files.open_to_append(path / files.LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def holder_of(path: Path) -> str:
    """The name of the machine that holds the lock of a run folder, or held it last; empty if it is not known."""
    with suppress(OSError, ValueError):
        return files.read_file(path / files.LOCK, files.LARGEST_CONFIG).decode()
    return ""


def is_begun(path: Path) -> bool:
    return (path / CONFIG).exists()


def is_finished(path: Path) -> bool:
    return (path / RESULTS).exists()


def read_config(path: Path) -> dict[str, Any]:
    return _mapping(read_yaml(_text(path / CONFIG, files.LARGEST_CONFIG), str(path / CONFIG)), path / CONFIG)


def check_settings(path: Path, config: Mapping[str, Any], resolve: Resolve) -> None:
    keys = ", ".join(differing_keys(resolve(read_config(path)), resolve(config)))
    run = "a finished run" if is_finished(path) else "an unfinished run"
    require(not keys, f"{path} holds {run} of another configuration (differs in {keys}); {files.ANOTHER_FOLDER}")


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    left, right = dotted(first), dotted(second)
    keys = sorted(key for key in left.keys() | right.keys() if left.get(key) != right.get(key))
    return [key for key in keys if key.split(".")[0] not in ignored]


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read back."""

    path: Path
    config: dict[str, Any]
    run: dict[str, Any]
    results: dict[str, Any]


def read_record(path: str | Path) -> RunRecord:
    """Read a finished run.

    Args:
        path: Its folder.

    Returns:
        The configuration, the record and the results of the run.

    Raises:
        FlashbackError: If a file is missing or damaged; the message names it.
    """
    path = Path(path)
    record = RunRecord(path, read_config(path), _read_json(path / RUN), _read_json(path / RESULTS))
    require(
        record.run.get(CHECKSUM) in (None, files.sha256(_text(path / RESULTS, files.LARGEST_RECORD))),
        f"{path} is not a run record: {RESULTS} was changed, or belongs to another run",
    )
    return record


def _read_json(path: Path) -> dict[str, Any]:
    text = _text(path, files.LARGEST_RECORD)
    try:
        return _mapping(json.loads(text), path)
    except (ValueError, RecursionError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is not valid JSON") from None


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} does not hold a mapping")
    return value


def _text(path: Path, largest: int) -> str:
    try:
        return files.read_file(path, largest).decode()
    except (OSError, ValueError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is missing or unreadable") from None
