"""Tuning looks at a validation split alone, goes on where it stopped, and writes a recipe that can be used."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from flashback import configure
from flashback.cli import main
from flashback.config import to_dict
from flashback.errors import FlashbackError
from flashback.reports import read_report
from flashback.studies import tuning
from flashback.studies.tuning import tune
from flashback.training import Interrupted
from flashback.training.building import open_benchmark
from helpers import write_tiny

SETTINGS: dict[str, Any] = {"training.epochs": 4, "training.batch_size": 100, "benchmark.tasks": 2}


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that answer at once: best at alpha 0.1 and E1 = 1."""
    seen: list[Any] = []

    def run(config: Any, *, out: Path, **_: Any) -> None:
        tried = config.flashback
        if tried.enabled:
            seen.append(config)
        accuracy = 90 - 10 * abs(tried.alpha - 0.1) - tried.epochs if tried.enabled else 88.5
        out.mkdir(parents=True)
        (out / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
        (out / "run.json").write_text(json.dumps({"data_checksum": open_benchmark(config, None, sketch=True).checksum}))
        (out / "results.json").write_text(json.dumps({"class_incremental": {"average_accuracy": accuracy}}))

    monkeypatch.setattr(tuning, "run", run)
    return seen


def test_the_best_choice_becomes_a_recipe(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tune("icarl", out=tmp_path, trials=30, settings=SETTINGS)
    assert (best.alpha, best.epochs, best.accuracy, best.host_accuracy) == (0.1, 1, 89.0, 88.5)
    assert all(config.benchmark.validation == 0.1 for config in fake_runs)  # never the test images
    assert len(fake_runs) == len(best.trials) == 4 * 2  # all there are: alphas, and E1 up to half of the epochs
    config = configure("icarl", flashback=True, recipe=str(best.recipe))
    chosen = {"flashback.alpha": 0.1, "flashback.epochs": 1}
    shipped = configure("icarl", flashback=True, settings={**SETTINGS, **chosen})
    assert replace(config, recipe="controlled") == shipped  # tested on the test images, with all that was given


def test_the_recipe_is_found_by_any_path_of_the_data(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    path = write_tiny(tmp_path / "data" / "tiny.npz")
    own = {"training.epochs": 4, "benchmark.sizes": [2, 5]}
    best = tune("icarl", "data/tiny.npz", out="tuned", trials=2, settings=own)
    for benchmark in ("data/tiny.npz", "./data/tiny.npz", path):
        config = configure("icarl", benchmark, flashback=True, recipe=str(best.recipe))
        assert (config.flashback.alpha, config.flashback.epochs) == (best.alpha, best.epochs)
        assert tune("icarl", benchmark, out="tuned", trials=2, settings=own).trials == best.trials
    with pytest.raises(FlashbackError, match=r"has no recipe for icarl on other\.npz"):
        configure("icarl", "other.npz", flashback=True, recipe=str(best.recipe))
    assert "tuned" not in read_report("tuned").skipped


def test_only_different_choices_count(fake_runs: list[Any], tmp_path: Path) -> None:
    optuna = pytest.importorskip("optuna")
    best = tune("icarl", out=tmp_path, trials=7, settings=SETTINGS)
    choices = {(trial["alpha"], trial["epochs"]) for trial in best.trials}
    assert len(choices) == len(best.trials) == len(fake_runs) == 7
    study = optuna.load_study(study_name="flashback", storage=f"sqlite:///{tmp_path / 'study.db'}")
    assert len(study.trials) > 7  # or nothing came up twice, and this test has seen nothing


def test_the_command_says_how_to_use_what_it_found(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    words = ["tune", "icarl", "--out", "out", "--data", "my data", *settings]
    with pytest.raises(SystemExit) as end:
        main([*words, "--trials", "9"])
    assert end.value.code == 0
    *_, alone, all_there_are, use = capsys.readouterr().out.splitlines()
    assert alone == "The last row is the host alone."
    assert all_there_are == "These 8 are all choices there are."
    use_it = "flashback compare icarl --benchmark split-fashion-mini --recipe out/recipe.yaml --data 'my data'"
    assert use == f"Use it: {use_it}"
    with pytest.raises(SystemExit):
        main([*words, "--trials", "8"])
    assert "all choices" not in capsys.readouterr().out


def test_a_choice_that_does_not_reach_the_host_is_no_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")

    def run(config: Any, *, out: Path, **_: Any) -> None:
        out.mkdir(parents=True)
        (out / "config.yaml").write_text("{}")
        (out / "run.json").write_text("{}")
        accuracy = 40.0 if config.flashback.enabled else 45.0
        (out / "results.json").write_text(json.dumps({"class_incremental": {"average_accuracy": accuracy}}))

    monkeypatch.setattr(tuning, "run", run)
    with pytest.raises(SystemExit):
        main(["tune", "icarl", "--out", str(tmp_path), "--trials", "1"])
    said = " ".join(capsys.readouterr().out.split())
    assert "45.00" in said
    assert "The last row is the host alone. No choice is better on these images" in said
    assert "of the host alone 45.00" in (tmp_path / "recipe.yaml").read_text()


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
    for _ in range(3):  # each time the sampler itself would choose another
        with pytest.raises(Interrupted):
            tune("icarl", out=tmp_path, trials=1, settings=SETTINGS)
    monkeypatch.setattr(tuning, "run", working)
    assert len(tune("icarl", out=tmp_path, trials=1, settings=SETTINGS).trials) == 1
    assert len(fake_runs) == 4
    assert all(config.flashback == fake_runs[0].flashback for config in fake_runs)  # the same choice


@pytest.mark.parametrize("key", ["flashback.enabled", "seed", "flashback.alpha", "flashback.epochs"])
def test_what_tuning_decides_is_refused(key: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FlashbackError, match=f"(decides|chooses) {key} itself"):
        tune("icarl", out=tmp_path, settings={**SETTINGS, key: 1})


def test_when_checkpoints_are_written_makes_no_other_tuning(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    for minutes in (1.0, 5.0):
        tune("icarl", out=tmp_path, trials=2, settings={**SETTINGS, "checkpoint.minutes": minutes})
    assert len(fake_runs) == 2
