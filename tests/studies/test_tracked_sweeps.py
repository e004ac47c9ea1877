"""Every run of a sweep or a comparison has a tracker of its own, which ends with it."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from fake_trackers import FakeMlflow

from flashback.errors import FlashbackError
from flashback.studies.comparison import compare
from flashback.studies.sweeps import parse_sweep, run_sweep
from flashback.training import Trainer, trackers
from flashback.training.trackers import Tracker

SETTINGS = {"training.epochs": 1, "training.batch_size": 500, "benchmark.tasks": 2, "flashback.second_epochs": 1}
SWEEP = f"{{hosts: [finetune], arms: [host], seeds: [0, 1], settings: {SETTINGS}}}".replace("'", "")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What a made tracker was told: begin, values and end, with the folder of the run."""
    events: list[tuple[str, str]] = []

    def made(config: Any, folder: Path, known: str | None) -> Tracker:
        events.append(("begin", folder.name))
        return Tracker(
            lambda values, step, when: events.append(("values", folder.name)),
            lambda: events.append(("end", folder.name)),
        )

    monkeypatch.setitem(trackers.OPENERS, "made", made)
    monkeypatch.setitem(trackers.STORES, "made", "made")
    monkeypatch.setitem(sys.modules, "made", types.ModuleType("made"))
    return events


def without_repeats(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [entry for k, entry in enumerate(events) if k == 0 or events[k - 1] != entry]


def test_runs_of_a_sweep_are_tracked_one_after_the_other(tmp_path: Path, heard: list[tuple[str, str]]) -> None:
    outcome = run_sweep(parse_sweep(SWEEP, "made"), tmp_path, device="cpu", track=["made"])
    assert outcome.finished == 2
    each = [[(what, f"seed-{seed}") for what in ("begin", "values", "end")] for seed in (0, 1)]
    assert without_repeats(heard) == each[0] + each[1]


def test_both_arms_of_a_comparison_are_tracked(tmp_path: Path, heard: list[tuple[str, str]]) -> None:
    compare("lwf-mc", seeds=[0], out=tmp_path, settings=SETTINGS, device="cpu", track=["made"])
    assert [what for what, _ in without_repeats(heard)] == ["begin", "values", "end"] * 2


def test_a_run_that_fails_ends_its_tracker(
    tmp_path: Path, heard: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Trainer, "run", fail)
    assert len(run_sweep(parse_sweep(SWEEP, "made"), tmp_path, device="cpu", track=["made"]).failures) == 2
    assert [what for what, _ in heard] == ["begin", "end"] * 2


@pytest.mark.slow
def test_tensorboard_writes_into_each_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_sweep(parse_sweep(SWEEP, "made"), tmp_path, device="cpu", jobs=2, track=["tensorboard"])
    assert len({path.parents[1].name for path in tmp_path.rglob("tensorboard/events*")}) == 2


def test_a_tracker_that_is_not_there_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="did you mean 'tensorboard'"):
        run_sweep(parse_sweep(SWEEP, "made"), tmp_path, device="cpu", track=["tensorbord"])
    assert list(tmp_path.iterdir()) == []


def test_mlflow_gives_every_run_its_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)  # type: ignore[arg-type]
    run_sweep(parse_sweep(SWEEP, "made"), tmp_path, device="cpu", track=["mlflow"])
    stores = [arguments[0] for name, arguments in fake.calls if name == "set_tracking_uri" and arguments[0]]
    assert [Path(uri).parent.name for uri in stores] == ["seed-0", "seed-1"]
    marks = [name for name, _ in fake.calls if name in ("start_run", "end_run")]
    assert marks == ["start_run", "end_run"] * 2
