"""A run folder: config.yaml, run.json, log.jsonl, results.json. Plain text, written atomically."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashback.config import read_yaml
from flashback.errors import FlashbackError

CONFIG, RUN, LOG, RESULTS, LOCK = "config.yaml", "run.json", "log.jsonl", "results.json", ".lock"


def write_atomically(path: Path, content: str | bytes) -> None:
    """A reader sees the old file or the new one, never a part of it."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


class RunFolder:
    """Writes the record of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], ignored: Collection[str] = ()) -> RunFolder:
        """A new folder, or the one of an unfinished run of the same configuration."""
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlashbackError(f"--out {path}: cannot be used as a folder ({error.strerror})") from None
        if (path / RESULTS).exists():
            raise FlashbackError(f"{path} holds a finished run already; choose another --out")
        if (path / CONFIG).exists():
            differing = differing_keys(read_config(path), config, ignored)
            if differing:
                raise FlashbackError(
                    f"{path} holds an unfinished run of another configuration (differs in {', '.join(differing)}); "
                    "choose another --out"
                )
        else:
            write_atomically(path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False))
        return cls(path)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """One process per folder. The system drops the lock of a process that died, so nothing is left behind."""
        with (self.path / LOCK).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FlashbackError(f"another process is training in {self.path}; wait for it or stop it") from None
            yield

    def log(self, event: Mapping[str, Any]) -> None:
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps({**event, "time": round(time.time(), 3)}) + "\n")

    def log_size(self) -> int:
        return (self.path / LOG).stat().st_size if (self.path / LOG).exists() else 0

    def cut_log(self, size: int) -> None:
        """Back to what the log held at a checkpoint; what came after it will happen again."""
        with (self.path / LOG).open("a+b") as file:
            file.truncate(size)

    def write_results(self, results: Mapping[str, Any]) -> None:
        write_atomically(self.path / RESULTS, json.dumps(dict(results), indent=1) + "\n")

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_atomically(self.path / RUN, json.dumps(dict(run), indent=1) + "\n")

    def read_run(self) -> dict[str, Any]:
        """What is known of the run so far; empty for a new one."""
        return _mapping(_json(self.path / RUN), self.path / RUN) if (self.path / RUN).exists() else {}


def read_config(path: Path) -> dict[str, Any]:
    return _mapping(read_yaml(_text(path / CONFIG), str(path / CONFIG)), path / CONFIG)


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any], ignored: Collection[str] = ()) -> list[str]:
    """The dotted keys in which two configurations differ, those under an ignored section left out."""
    one, other = dotted(first), dotted(second)
    keys = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
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


def read_record(path: Path) -> RunRecord:
    """Read a finished run; a FlashbackError names what is missing or broken."""
    config, run, results = read_config(path), _json(path / RUN), _json(path / RESULTS)
    return RunRecord(path, config, _mapping(run, path / RUN), _mapping(results, path / RESULTS))


def _mapping(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} does not hold a mapping")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is missing or unreadable") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError):
        raise FlashbackError(f"{path.parent} is not a run record: {path.name} is not valid JSON") from None
