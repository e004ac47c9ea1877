"""Trackers get every loss term and every accuracy; the ones that are not installed say so."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from flashback.errors import FlashbackError
from flashback.training import Trainer, build_method
from flashback.training.trackers import make_tracker
from helpers import quick_config, tiny_benchmark


class FakeRun:
    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.logged.append((step, dict(values)))


def train_with(observer: Any) -> dict[str, Any]:
    config = quick_config("lwf-mc", flashback=True)
    benchmark = tiny_benchmark((2, 2))
    return Trainer(build_method(config, benchmark, "cpu"), benchmark, [observer]).run().as_dict()


def test_weights_and_biases_gets_losses_and_accuracies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = FakeRun(), {}
    fake = types.ModuleType("wandb")
    fake.init = lambda **options: asked.update(options) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    result = train_with(make_tracker("wandb", quick_config("lwf-mc", flashback=True), tmp_path / "run"))
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
    train_with(make_tracker("tensorboard", quick_config("lwf-mc"), tmp_path))
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_mlflow_gets_parameters_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    fake = types.ModuleType("mlflow")
    fake.is_tracking_uri_set = lambda: False  # type: ignore[attr-defined]
    for name in ("set_tracking_uri", "set_experiment", "start_run", "log_params", "log_metrics"):
        setattr(fake, name, lambda *a, _name=name, **k: calls.append((_name, (a, k))))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    train_with(make_tracker("mlflow", quick_config("lwf-mc"), tmp_path))
    given = dict(calls)
    assert given["log_params"][0][0]["host.name"] == "lwf-mc"
    assert str(tmp_path) in given["set_tracking_uri"][0][0]
    assert given["log_metrics"][1]["step"] > 0


def test_missing_and_unknown_trackers_get_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(FlashbackError, match="needs the package wandb"):
        make_tracker("wandb", quick_config("lwf-mc"), tmp_path)
    with pytest.raises(FlashbackError, match="did you mean 'tensorboard'"):
        make_tracker("tensorbord", quick_config("lwf-mc"), tmp_path)
