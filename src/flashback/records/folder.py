"""A run folder: config.yaml, run.json, log.jsonl, results.json. Plain text, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flashback.config import read_yaml
from flashback.errors import FlashbackError

CONFIG, RUN, LOG, RESULTS = "config.yaml", "run.json", "log.jsonl", "results.json"


def write_atomically(path: Path, content: str | bytes) -> None:
    """A reader sees the old file or the new one, never a part of it."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


class RunFolder:
    """Writes the record of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FlashbackError(f"--out {path}: cannot be used as a folder ({error.strerror})") from None
        if (path / RESULTS).exists():
            raise FlashbackError(f"{path} holds a finished run already; choose another --out")
        write_atomically(path / CONFIG, yaml.safe_dump(dict(config), sort_keys=False))
        (path / LOG).write_text("")
        return cls(path)

    def log(self, event: Mapping[str, Any]) -> None:
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(event)) + "\n")

    def write_results(self, results: Mapping[str, Any]) -> None:
        write_atomically(self.path / RESULTS, json.dumps(dict(results), indent=1) + "\n")

    def write_run(self, run: Mapping[str, Any]) -> None:
        write_atomically(self.path / RUN, json.dumps(dict(run), indent=1) + "\n")


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read back."""

    path: Path
    config: dict[str, Any]
    run: dict[str, Any]
    results: dict[str, Any]


def read_record(path: Path) -> RunRecord:
    """Read a finished run; a FlashbackError names what is missing or broken."""
    config = read_yaml(_text(path / CONFIG), str(path / CONFIG))
    run, results = _json(path / RUN), _json(path / RESULTS)
    if not all(isinstance(part, dict) for part in (config, run, results)):
        raise FlashbackError(f"{path} is not a run record: its files do not hold mappings")
    return RunRecord(path, config, run, results)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"{path.parent} is not a finished run: {path.name} is missing or unreadable") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except (json.JSONDecodeError, RecursionError):
        raise FlashbackError(f"{path.parent} is not a finished run: {path.name} is not valid JSON") from None
