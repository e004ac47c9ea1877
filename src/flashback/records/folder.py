"""A run folder: config.yaml, run.json, log.jsonl and results.json, plain text that is written atomically."""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from flashback.errors import FlashbackError
from flashback.files import (
    ANOTHER_FOLDER,
    LARGEST_CONFIG,
    LARGEST_RECORD,
    LOCK,
    explaining_no_space,
    make_folder,
    open_to_append,
    read_file,
    write_atomically,
)
from flashback.plain_yaml import read_yaml

CONFIG, RUN, LOG, RESULTS = "config.yaml", "run.json", "log.jsonl", "results.json"
TRACKERS = "trackers.json"  # the ids by which trackers know the run
COMPARISON = "comparison.json"  # beside the runs of both arms

Resolve = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class RunFolder:
    """Writes the record of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None  # while this process holds it

    @classmethod
    def open(
        cls,
        path: Path,
        config: Mapping[str, Any],
        ignored: Collection[str] = (),
        resolve: Resolve = dict,
        what: str = "an unfinished run",
    ) -> RunFolder:
        """A new folder, or that of an unfinished run whose resolved configuration is the same."""
        make_folder(path)
        folder = cls(path)
        with folder.lock():  # two processes may start at once
            folder.claim(config, ignored, resolve, what)
        return folder

    def claim(self, config: Mapping[str, Any], ignored: Collection[str], resolve: Resolve, what: str) -> None:
        if is_begun(self.path):
            check_settings(self.path, config, ignored, resolve, what)
        else:
            self.write(CONFIG, yaml.safe_dump(dict(config), sort_keys=False))

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one process per folder; the system frees the lock of a process that died."""
        with open_to_append(self.path / LOCK) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FlashbackError(f"another process is training in {self.path}; wait for it or stop it") from None
            if is_finished(self.path):
                raise FlashbackError(f"{self.path} already holds a finished run; {ANOTHER_FOLDER}")
            self.tidy()
            self._lock = file
            try:
                yield
            finally:
                self._lock = None

    def check_lock(self) -> None:
        """Stop if the lock file was removed or replaced, since another process may have taken the folder."""
        if self._lock is not None:
            try:
                is_same = os.path.samestat(os.fstat(self._lock.fileno()), os.stat(self.path / LOCK))
            except FileNotFoundError:
                is_same = False
            if not is_same:
                raise FlashbackError(
                    f"{self.path / LOCK} was removed while this run was using it, so another process may be training "
                    "there; this run stops"
                )

    def tidy(self) -> None:
        """Remove files that a killed process left incomplete."""
        for name in (CONFIG, RUN, LOG, RESULTS, TRACKERS):
            for part in self.path.glob(f".*{name}.part"):
                part.unlink()

    # ------------------------------------------------------------ the log

    def log(self, event: Mapping[str, Any]) -> None:
        self.check_lock()
        line = json.dumps({**event, "time": round(time.time(), 3)}) + "\n"
        with explaining_no_space(self.path), open_to_append(self.path / LOG) as file:
            file.write(line.encode())

    def log_size(self) -> int:
        """The size of the log, which is synced to disk because a checkpoint will rely on it."""
        self.check_lock()
        with open_to_append(self.path / LOG) as file:
            os.fsync(file.fileno())
            return file.tell()

    def read_log(self) -> bytes:
        return read_file(self.path / LOG, LARGEST_RECORD)

    def write_log(self, content: bytes) -> None:
        self.write(LOG, content)

    def cut_log(self, size: int) -> None:
        """Cut the log back to its size at a checkpoint."""
        with open_to_append(self.path / LOG) as file:
            if file.tell() < size:
                warnings.warn(f"{self.path / LOG} has lost lines since the checkpoint was written", stacklevel=2)
            file.truncate(min(size, file.tell()))

    # ------------------------------------------------------------ the record

    def write_results(self, results: Mapping[str, Any]) -> None:
        self.write(RESULTS, json.dumps(dict(results), indent=1) + "\n")

    def write_run(self, run: Mapping[str, Any]) -> None:
        self.write(RUN, json.dumps(dict(run), indent=1) + "\n")

    def write(self, name: str, content: str | bytes) -> None:
        self.check_lock()
        with explaining_no_space(self.path):
            write_atomically(self.path / name, content)

    def read_run(self) -> dict[str, Any]:
        """run.json as it is so far; empty for a new run."""
        return _mapping(_json(self.path / RUN), self.path / RUN) if (self.path / RUN).exists() else {}


def is_begun(path: Path) -> bool:
    return (path / CONFIG).exists()


def is_finished(path: Path) -> bool:
    return (path / RESULTS).exists()


def read_config(path: Path) -> dict[str, Any]:
    return _mapping(read_yaml(_text(path / CONFIG, LARGEST_CONFIG), str(path / CONFIG)), path / CONFIG)


def check_settings(
    path: Path,
    config: Mapping[str, Any],
    ignored: Collection[str],
    resolve: Resolve,
    what: str = "an unfinished run",
) -> None:
    """Refuse a folder with a run of another resolved configuration."""
    differing = ", ".join(differing_keys(resolve(read_config(path)), resolve(config), ignored))
    what = "a finished run" if is_finished(path) else what
    if differing:
        raise FlashbackError(f"{path} holds {what} of another configuration (differs in {differing}); {ANOTHER_FOLDER}")


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """The dotted keys in which two configurations differ, without those of ignored sections."""
    one, other = dotted(first), dotted(second)
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    return [key for key in keys if key.split(".")[0] not in ignored]


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


# ---------------------------------------------------------------- reading a run


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read back."""

    path: Path
    config: dict[str, Any]
    run: dict[str, Any]
    results: dict[str, Any]


def read_record(path: str | Path) -> RunRecord:
    """Read a finished run; errors name what is missing or damaged."""
    path = Path(path)
    config, run, results = read_config(path), _json(path / RUN), _json(path / RESULTS)
    return RunRecord(path, config, _mapping(run, path / RUN), _mapping(results, path / RESULTS))


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} does not hold a mapping")
    return value


def _text(path: Path, largest: int) -> str:
    try:
        return read_file(path, largest).decode()
    except (OSError, ValueError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is missing or unreadable") from None


def _json(path: Path) -> Any:
    text = _text(path, LARGEST_RECORD)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is not valid JSON") from None
