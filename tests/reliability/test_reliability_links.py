"""Links and pipes in the folder of a run, a comparison or a tuning are refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from reliability_runs import Crash

import flashback as fb
from flashback.studies import jobs
from helpers import write_tiny

SETTINGS = {"benchmark.sizes": [4, 3], "training.epochs": 1, "training.batch_size": 16, "flashback.second_epochs": 1}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.npz")


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A folder with a file of somebody else; both must be as they were."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("mine")
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert (folder / "file").read_text() == "mine"


def stopped(data: Path, folder: Path) -> fb.RunConfig:
    config = fb.configure("finetune", data, flashback=False, settings={**SETTINGS, "checkpoint.minutes": 0.0})

    def crash(event: Mapping[str, Any]) -> None:
        if (event["event"], event["task"]) == ("task", 1):
            raise Crash

    with pytest.raises(Crash):
        fb.run(config, out=folder, device="cpu", observers=[crash])
    return config


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("name", [".lock", "log.jsonl"])
def test_a_pipe_does_not_hang_a_resume(data: Path, tmp_path: Path, alarm: None, name: str, is_read: bool) -> None:
    stopped(data, tmp_path / "run")
    path = tmp_path / "run" / name
    path.unlink()
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if is_read else None
    with pytest.raises(fb.FlashbackError, match=rf"{name} is a pipe or a device, not a file; remove it"):
        fb.resume(tmp_path / "run", device="cpu")
    if reader is not None:
        os.close(reader)


def test_a_tracker_that_would_write_elsewhere_is_refused(data: Path, tmp_path: Path, outside: Path) -> None:
    pytest.importorskip("tensorboard")
    config = stopped(data, tmp_path / "run")
    (tmp_path / "run" / "tensorboard").symlink_to(outside)
    with pytest.raises(fb.FlashbackError, match="tensorboard is a symbolic link"):
        fb.run(config, out=tmp_path / "run", device="cpu", track=["tensorboard"])


def test_a_cache_of_first_tasks_that_lies_elsewhere_is_refused(data: Path, tmp_path: Path, outside: Path) -> None:
    (tmp_path / "shared").symlink_to(outside)
    config = fb.configure("finetune", data, flashback=False, settings=SETTINGS)
    with pytest.raises(fb.FlashbackError, match="shared is a symbolic link"):
        fb.run(config, out=tmp_path / "run", device="cpu", first_tasks=tmp_path / "shared")


@pytest.mark.parametrize("linked", ["host", "host/seed-0", ".first-tasks"])
def test_a_comparison_does_not_write_through_links(data: Path, tmp_path: Path, outside: Path, linked: str) -> None:
    (tmp_path / "out" / linked).parent.mkdir(parents=True)
    (tmp_path / "out" / linked).symlink_to(outside)
    with pytest.raises(fb.FlashbackError, match=rf"{linked} is a symbolic link"):
        fb.compare("lwf-mc", data, seeds=[0], out=tmp_path / "out", settings=SETTINGS, device="cpu")


@pytest.mark.parametrize("name", [".first-tasks", "host", "host/seed-0"])
def test_a_pipe_does_not_hang_a_comparison(data: Path, tmp_path: Path, alarm: None, name: str) -> None:
    (tmp_path / "out" / name).parent.mkdir(parents=True)
    os.mkfifo(tmp_path / "out" / name)
    with pytest.raises(fb.FlashbackError, match=rf"{name} is a pipe or a device"):
        fb.compare("lwf-mc", data, seeds=[0], out=tmp_path / "out", settings=SETTINGS, device="cpu")


def test_a_pipe_does_not_hang_a_tuning(data: Path, tmp_path: Path, alarm: None) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "out").mkdir()
    os.mkfifo(tmp_path / "out" / ".first-tasks")
    with pytest.raises(fb.FlashbackError, match=r"\.first-tasks is a pipe or a device"):
        fb.tune(
            "lwf-mc", data, out=tmp_path / "out", trials=1, settings=SETTINGS | {"training.epochs": 2}, device="cpu"
        )


def test_the_account_of_a_failure_replaces_a_link(
    data: Path, tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(jobs, "run", broken)
    folder = tmp_path / "out" / "host" / "seed-0"
    folder.mkdir(parents=True)
    (folder / jobs.FAILURE).symlink_to(outside / "file")
    with pytest.raises(fb.FlashbackError):
        fb.compare("lwf-mc", data, seeds=[0], out=tmp_path / "out", settings=SETTINGS, device="cpu")
    assert not (folder / jobs.FAILURE).is_symlink()
    assert "RuntimeError: broken" in (folder / jobs.FAILURE).read_text()
