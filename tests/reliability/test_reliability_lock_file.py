"""A lock file that is removed by hand: the run that held it stops before it writes anything more."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import flashback as fb
from helpers import write_tiny


def config_of(folder: Path) -> fb.RunConfig:
    write_tiny(folder / "tiny.npz")
    settings = {"benchmark.sizes": [4, 3], "training.epochs": 2, "training.batch_size": 16, "checkpoint.minutes": 0.0}
    return fb.configure("finetune", folder / "tiny.npz", settings=settings)


@pytest.mark.parametrize("at", ["stage", "epoch", "evaluation"])
def test_the_log_is_not_doubled_by_a_run_that_wakes_up(tmp_path: Path, at: str) -> None:
    """As if this run was stopped, its lock removed, and another run finished in the folder meanwhile."""
    config, folder, events = config_of(tmp_path), tmp_path / "run", list[str]()
    whole = fb.run(config, device="cpu")

    def sleep(event: Mapping[str, Any]) -> None:
        if event["event"] == at and not events:
            events.append(at)
            (folder / ".lock").unlink()
            fb.run(config, out=folder, device="cpu")

    with pytest.raises(fb.FlashbackError, match=r"\.lock was removed while this run was using it, so another process"):
        fb.run(config, out=folder, device="cpu", observers=[sleep])
    lines = (folder / "log.jsonl").read_text().splitlines()
    assert sum('"event": "evaluation"' in line for line in lines) == 2
    assert fb.run(config, out=folder, device="cpu").as_dict() == whole.as_dict()


def test_a_lock_that_is_gone_stops_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def remove(event: Mapping[str, Any]) -> None:
        if event["event"] == "stage":
            (folder / ".lock").unlink(missing_ok=True)

    with pytest.raises(fb.FlashbackError, match=r"\.lock was removed"):
        fb.run(config_of(tmp_path), out=folder, device="cpu", observers=[remove])
