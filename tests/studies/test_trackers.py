"""Trackers get every loss term and every accuracy; the ones that are not installed say so."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

import flashback as fb
from flashback.errors import FlashbackError
from flashback.training import Trainer, build_method
from flashback.training.trackers import tracking
from helpers import quick_config, tiny_benchmark


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.finished = 0

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))

    def finish(self) -> None:
        self.finished += 1


def train_with(tracker: str, folder: Path) -> dict[str, Any]:
    config = quick_config("lwf-mc", flashback=True)
    benchmark = tiny_benchmark((2, 2))
    with tracking([tracker], config, folder) as observers:
        return Trainer(build_method(config, benchmark, "cpu"), benchmark, observers).run().as_dict()


def test_weights_and_biases_gets_losses_and_accuracies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = FakeRun(), {}
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: asked.update(options) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = train_with("wandb", tmp_path / "run")
    assert run.finished == 1
    assert asked["config"]["flashback"]["enabled"] is True
    names = {name for _, values in run.logged for name in values}
    assert {"loss/task", "loss/stability", "loss/plasticity", "rate"} <= names
    steps = [step for step, _ in run.logged]
    assert steps == sorted(steps)
    last = run.logged[-1][1]
    assert last["class_incremental/linear/average accuracy"] == pytest.approx(
        result["class_incremental"]["average_accuracy"]
    )


def test_tensorboard_writes_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    train_with("tensorboard", tmp_path)
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_mlflow_gets_parameters_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    fake = types.ModuleType("mlflow")
    fake.is_tracking_uri_set = lambda: False  # type: ignore[attr-defined]
    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics", "end_run"):
        setattr(fake, name, lambda *a, _name=name, **k: calls.append((_name, (a, k))))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    train_with("mlflow", tmp_path)
    names = [name for name, _ in calls]
    assert names.count("end_run") == 1
    assert names[-2:] == ["end_run", "set_tracking_uri"]  # the next run of this process has a folder of its own
    given = dict(reversed(calls))
    assert given["log_params"][0][0]["host.name"] == "lwf-mc"
    assert str(tmp_path) in given["set_tracking_uri"][0][0]
    assert given["log_metrics"][1]["step"] > 0


def test_missing_and_unknown_trackers_get_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FlashbackError, match="needs the package wandb"):
        train_with("wandb", tmp_path)
    with pytest.raises(FlashbackError, match="did you mean 'tensorboard'"):
        train_with("tensorbord", tmp_path)


def test_a_run_closes_its_trackers_however_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    config = fb.configure("finetune", settings={"benchmark.tasks": 2, "training.epochs": 1})
    fb.run(config, out=tmp_path / "whole", device="cpu", track=["wandb"])
    assert (run.finished, len(run.logged)) == (1, 4)  # two epochs, two evaluations

    def stumble(event: Any) -> None:
        raise RuntimeError("an observer")

    with pytest.raises(RuntimeError, match="an observer"):
        fb.run(config, out=tmp_path / "half", device="cpu", observers=[stumble], track=["wandb"])
    assert run.finished == 2


def test_trackers_need_a_folder() -> None:
    with pytest.raises(FlashbackError, match=r"trackers write into the folder of a run; give one \(out\)"):
        fb.run(fb.configure("finetune"), track=["tensorboard"])
