"""Comparisons, sweeps and tuning train a first task once, and leave nothing of it behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashback.studies.comparison import compare
from flashback.studies.jobs import Local, run_jobs
from flashback.studies.sweeps import parse_sweep, run_sweep
from flashback.studies.tuning import tune
from flashback.training.checkpoints import Checkpoints
from flashback.training.first_task_cache import SHARED, FirstTaskCache
from flashback.training.trainer import Trainer
from helpers import quick_host

QUICK = {
    "training.epochs": 2,
    "training.batch_size": 100,
    "benchmark.tasks": 2,
    "flashback.epochs": 1,
    "checkpoint.minutes": 1e6,  # no time that passes decides what is saved
}


def took_over(out: Path) -> dict[str, bool]:
    files = sorted(out.rglob("run.json"))
    return {str(path.parent.relative_to(out)): json.loads(path.read_text())["took_over_first_task"] for path in files}


def test_flashback_takes_the_first_task_of_its_host_in_a_comparison(tmp_path: Path) -> None:
    compare("lwf-mc", seeds=[0, 1], out=tmp_path, settings=QUICK, device="cpu")
    assert took_over(tmp_path) == {
        "flashback/seed-0": True,
        "flashback/seed-1": True,
        "host/seed-0": False,
        "host/seed-1": False,
    }
    assert not (tmp_path / SHARED).exists()


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_all_weights_of_a_sweep_share_one_first_task(tmp_path: Path, jobs: int) -> None:
    sweep = parse_sweep(f"hosts: [lwf-mc]\nsettings: {QUICK}\ngrid: {{flashback.alpha: [0.1, 0.2, 0.3]}}", "made")
    events: list[Any] = []
    outcome = run_sweep(sweep, tmp_path, jobs=jobs, device="cpu", watch=lambda outcome, name: events.append)
    assert outcome.failures == {}
    sources = list(took_over(tmp_path).values())
    assert len(sources) == 4
    assert jobs > 1 or sources.count(True) == 3  # of those that go on side by side, each may train its own
    evaluations = [event for event in events if event["event"] == "evaluation" and event["task"] == 0]
    assert len(evaluations) == 4  # whoever watches sees every run whole
    assert len({json.dumps(event["accuracy"]) for event in evaluations}) == 1
    assert not (tmp_path / SHARED).exists()


def test_settings_of_later_tasks_share_a_first_task_too(tmp_path: Path) -> None:
    grid = "{training.stability: [0.5, 1.0], training.merge: [null, 0.3], training.teacher_statistics: [stored, batch]}"
    settings = {**QUICK, "training.epochs": 1}
    run_sweep(parse_sweep(f"{{hosts: [lwf-mc], arms: [host], settings: {settings}, grid: {grid}}}", "made"), tmp_path)
    assert sorted(took_over(tmp_path).values()) == [False] + 7 * [True]


def test_a_first_task_that_could_not_be_left_is_left_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = quick_host("finetune")
    cache, state = FirstTaskCache(tmp_path / "shared" / "key"), Trainer(host, host.benchmark).state()
    state.values["position"]["task"] = 1

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Checkpoints, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            cache.store(state, b"log")
    assert cache.load() is None
    for log in (b"log", b"of another run that was later"):
        cache.store(state, log)
    cached_state = cache.load()
    assert cached_state is not None
    assert cached_state[1] == b"log"
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["key"]


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stopped_sweep_keeps_its_first_tasks_for_the_next_time(tmp_path: Path, jobs: int) -> None:
    sweep = parse_sweep(f"hosts: [lwf-mc]\nsettings: {QUICK}", "made")

    def stop(event: Any) -> None:
        if event["event"] == "evaluation" and event["task"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(sweep, tmp_path, jobs=1, device="cpu", watch=lambda outcome, name: stop)
    assert (tmp_path / SHARED).exists()
    run_sweep(sweep, tmp_path, jobs=jobs, device="cpu")
    assert list(took_over(tmp_path).values()) == [True, True]
    assert not (tmp_path / SHARED).exists()


@pytest.mark.slow
def test_trials_of_a_tuning_share_one_first_task(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    settings = {key: value for key, value in QUICK.items() if not key.startswith("flashback.")}
    tune("lwf-mc", out=tmp_path, trials=3, settings=settings, device="cpu")
    assert sorted(took_over(tmp_path).values()) == [False, True, True, True]  # the host is a run too
    assert not (tmp_path / SHARED).exists()


def test_first_tasks_that_a_killed_process_left_are_removed(tmp_path: Path) -> None:
    (tmp_path / SHARED / "0123").mkdir(parents=True)
    assert run_jobs([], Local(), lambda name: lambda event: None, tmp_path) == {}
    assert not (tmp_path / SHARED).exists()
