"""Tuning looks at a validation split alone, goes on where it stopped, and writes a recipe that can be used."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flashback import configure
from flashback.errors import FlashbackError
from flashback.training import Interrupted
from flashback.training import tune as tuning
from flashback.training.tune import tune

SETTINGS: dict[str, Any] = {"training.epochs": 4, "training.batch_size": 100, "benchmark.tasks": 2}


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that answer at once: best at alpha 0.1 and E1 = 1."""
    seen: list[Any] = []

    def run(config: Any, *, out: Path, **_: Any) -> None:
        seen.append(config)
        accuracy = 90 - 10 * abs(config.flashback.alpha - 0.1) - config.flashback.epochs
        out.mkdir(parents=True)
        (out / "config.yaml").write_text("{}")
        (out / "run.json").write_text("{}")
        (out / "results.json").write_text(json.dumps({"class_incremental": {"average_accuracy": accuracy}}))

    monkeypatch.setattr(tuning, "run", run)
    return seen


def test_the_best_choice_becomes_a_recipe(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tune("icarl", out=tmp_path, trials=30, settings=SETTINGS)
    assert (best.alpha, best.epochs) == (0.1, 1)
    assert all(config.benchmark.validation == 0.1 for config in fake_runs)  # never the test images
    config = configure("icarl", flashback=True, recipe=str(best.recipe), settings={"training.epochs": 4})
    assert (config.flashback.alpha, config.flashback.epochs) == (0.1, 1)
    shipped = configure("icarl", flashback=True, settings={"training.epochs": 4})
    assert config.training == shipped.training  # everything else as in the shipped recipe


def test_a_study_goes_on(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    tune("icarl", out=tmp_path, trials=3, settings=SETTINGS)
    assert len(tune("icarl", out=tmp_path, trials=5, settings=SETTINGS).trials) == 5
    before = len(fake_runs)
    assert len(tune("icarl", out=tmp_path, trials=5, settings=SETTINGS).trials) == 5
    assert len(fake_runs) == before


def test_tuning_on_the_test_images_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FlashbackError, match="test images are not for it"):
        tune("icarl", out=tmp_path, settings={**SETTINGS, "benchmark.validation": 0.0})


def test_without_optuna_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FlashbackError, match="needs the package optuna"):
        tune("icarl", out=tmp_path)


@pytest.mark.parametrize("text", ["[]", "host: icarl", "{host: icarl, recipes: [{benchmark: x}]}", "recipes: 3"])
def test_broken_recipe_files_get_one_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(FlashbackError, match="is not a recipe"):
        configure("icarl", recipe=str(path))


def test_recipe_files_for_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{host: icarl, recipes: [{benchmark: split-cifar10, kind: controlled, settings: {}}]}")
    with pytest.raises(FlashbackError, match="no recipe for icarl on split-fashion-mini"):
        configure("icarl", recipe=str(path))


def test_another_tuning_in_the_same_folder_is_refused(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    tune("icarl", out=tmp_path, trials=1, settings=SETTINGS)
    with pytest.raises(FlashbackError, match="another configuration"):
        tune("lwf-mc", out=tmp_path, trials=1, settings=SETTINGS)


def test_an_interrupted_trial_is_made_again(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    working = tuning.run

    def interrupted(config: Any, **_: Any) -> None:
        fake_runs.append(config)
        raise Interrupted

    monkeypatch.setattr(tuning, "run", interrupted)
    with pytest.raises(Interrupted):
        tune("icarl", out=tmp_path, trials=1, settings=SETTINGS)
    monkeypatch.setattr(tuning, "run", working)
    assert len(tune("icarl", out=tmp_path, trials=1, settings=SETTINGS).trials) == 1
    assert fake_runs[0].flashback == fake_runs[1].flashback  # the same choice


@pytest.mark.parametrize("key", ["flashback.enabled", "seed"])
def test_what_tuning_decides_is_refused(key: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FlashbackError, match=f"decides {key} itself"):
        tune("icarl", out=tmp_path, settings={**SETTINGS, key: 1})
