"""Short runs that break off somewhere."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import storm

import flashback
from flashback.config import CheckpointConfig, RunConfig
from flashback.files import sha256
from flashback.training.checkpoints import Interrupted, digest_of

NEVER = 1e6  # minutes until a checkpoint, which no test lives to see


class Crash(BaseException):
    """Ends a run in the middle, as nothing of it catches it."""


def icarl(dataset: Path, minutes: float = 0.0, **settings: Any) -> RunConfig:
    """Saves after every step, unless it has minutes between checkpoints."""
    config = storm.short_run("icarl", dataset)
    training = replace(config.training, **settings)
    return replace(config, training=training, checkpoint=CheckpointConfig(minutes=minutes))


def crash_in(task: int, stage: str) -> Any:
    """An observer that ends the run when the first epoch of a stage is over."""

    def watch(event: Mapping[str, Any]) -> None:
        if (event["event"], event["task"], event.get("stage")) == ("epoch", task, stage):
            raise Crash

    return watch


def begin(dataset: Path, folder: Path, task: int = 1, stage: str = "phase 2") -> None:
    """A run that breaks off, with two checkpoints."""
    with pytest.raises(Crash):
        flashback.run(icarl(dataset), out=folder, device="cpu", observers=[crash_in(task, stage)])
    assert len(list((folder / "checkpoint").iterdir())) == 4


def go_on(dataset: Path, folder: Path) -> list[str]:
    """Finish a run; gives what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        flashback.run(icarl(dataset), out=folder, device="cpu")
    return [str(warning.message) for warning in caught]


def newest(folder: Path, suffix: str) -> Path:
    return sorted((folder / "checkpoint").glob(f"*{suffix}"))[-1]


def sign(manifest: Path, values: Any = None) -> None:
    """Make a manifest true again after its tensors were changed, as a forger would; with other values if given."""
    document = json.loads(manifest.read_text())
    content = manifest.with_suffix(".safetensors").read_bytes()
    document |= {"tensors": sha256(content), "size": len(content)}
    if values is not None:
        document["values"] = values
    document.pop("digest")
    manifest.write_text(json.dumps({"digest": digest_of(document), **document}))


def linger(_: Any, observer: Any) -> None:
    """Work that does not end by itself, for a process of its own."""
    observer({"pid": os.getpid()})
    time.sleep(600)


def answer(_: Any, observer: Any) -> None:
    observer({"event": "answer"})


def stoppable(to_be_stopped: bool, observer: Any) -> str | None:
    """Work that saves its state when it is asked to stop, as a run does."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if to_be_stopped:
        observer({"pid": os.getpid()})
        if stop.wait(600):
            raise Interrupted
        return "nobody asked it to stop"
    return None
