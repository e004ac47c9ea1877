"""Tuning looks at a validation split alone, goes on where it stopped, and writes a recipe that can be used."""

from __future__ import annotations

import json
import random
import sys
from contextlib import suppress
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
from flashback.studies import jobs, tuning
from flashback.studies.tuning import tune
from flashback.training import Interrupted
from flashback.training.building import open_benchmark
from flashback.training.running import finished_run
from helpers import write_tiny

SETTINGS: dict[str, Any] = {"training.epochs": 4, "training.batch_size": 100, "benchmark.tasks": 2}


def write_record(config: Any, out: Path, accuracy: float) -> None:
    out.mkdir(parents=True)
    (out / "config.yaml").write_text(yaml.safe_dump(to_dict(config)))
    (out / "run.json").write_text(
        json.dumps({"data_checksum": open_benchmark(config, None, labels_only=True).checksum})
    )
    (out / "results.json").write_text(json.dumps({"class_incremental": {"average_accuracy": accuracy}}))


@pytest.fixture
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that answer at once: best at alpha 0.1 and E1 = 1."""
    seen: list[Any] = []

    def run(config: Any, *, out: Path, **_: Any) -> None:
        flashback = config.flashback
        if flashback.enabled:
            seen.append(config)
        write_record(
            config, out, 90 - 10 * abs(flashback.alpha - 0.1) - flashback.epochs if flashback.enabled else 88.5
        )

    monkeypatch.setattr(jobs, "run", run)
    return seen


def test_the_best_choice_becomes_a_recipe(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tune("icarl", out=tmp_path, trials=30, settings=SETTINGS)
    choice = {"flashback.alpha": 0.1, "flashback.epochs": 1}
    assert (best.choice, best.accuracy, best.host_accuracy) == (choice, 89.0, 88.5)
    assert all(config.benchmark.validation == 0.1 for config in fake_runs)  # never the test images
    assert len(fake_runs) == len(best.trials) == 4 * 2  # all there are: alphas, and E1 up to half of the epochs
    config = configure("icarl", flashback=True, recipe=str(best.recipe))
    shipped = configure("icarl", flashback=True, settings={**SETTINGS, **choice})
    assert replace(config, recipe="controlled") == shipped  # tested on the test images, with all that was given


@pytest.mark.slow
def test_the_recipe_is_found_by_any_path_of_the_data(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    path = write_tiny(tmp_path / "data" / "tiny.npz")
    settings = {"training.epochs": 4, "benchmark.sizes": [2, 5]}
    best = tune("icarl", "data/tiny.npz", out="tuned", trials=2, settings=settings)
    for benchmark in ("data/tiny.npz", "./data/tiny.npz", path):
        config = configure("icarl", benchmark, flashback=True, recipe=str(best.recipe))
        assert [config.flashback.alpha, config.flashback.epochs] == list(best.choice.values())
        assert tune("icarl", benchmark, out="tuned", trials=2, settings=settings).trials == best.trials
    with pytest.raises(FlashbackError, match=r"has no recipe for icarl on other\.npz"):
        configure("icarl", "other.npz", flashback=True, recipe=str(best.recipe))
    assert "tuned" not in read_report("tuned").skipped


def test_only_different_choices_count(fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optuna = pytest.importorskip("optuna")
    studies: list[Any] = []
    create = optuna.create_study
    monkeypatch.setattr(optuna, "create_study", lambda **options: studies.append(create(**options)) or studies[0])
    best = tune("icarl", out=tmp_path, trials=7, settings=SETTINGS)
    choices = {(trial["flashback.alpha"], trial["flashback.epochs"]) for trial in best.trials}
    assert len(choices) == len(best.trials) == len(fake_runs) == 7
    assert len(studies[0].trials) > 7  # or nothing came up twice, and this test has seen nothing


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
    for more in (["--trials", "8"], ["--trials", "9", "--storage", "journal:shared"]):  # others may be trying some
        with pytest.raises(SystemExit):
            main([*words, *more])
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

    monkeypatch.setattr(jobs, "run", run)
    with pytest.raises(SystemExit):
        main(["tune", "icarl", "--out", str(tmp_path), "--trials", "1"])
    output = " ".join(capsys.readouterr().out.split())
    assert "45.00" in output
    assert "The last row is the host alone. No choice is better on these images" in output
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
    with pytest.raises(FlashbackError, match="never uses test images"):
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


@pytest.mark.parametrize("runs_between", [1, 3])
def test_an_interrupted_study_equals_one_that_was_not(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_between: int
) -> None:
    pytest.importorskip("optuna")
    whole = tune("icarl", out=tmp_path / "whole", trials=7, settings=SETTINGS)
    settings = [config.flashback for config in fake_runs]
    fake_runs.clear()
    working, started = jobs.run, 0

    def interrupted(config: Any, **options: Any) -> None:
        nonlocal started
        started += 1
        if started % (runs_between + 1) == 0:
            raise Interrupted
        working(config, **options)

    monkeypatch.setattr(jobs, "run", interrupted)
    result = None
    while result is None:
        with suppress(Interrupted):
            result = tune("icarl", out=tmp_path / "stopped", trials=7, settings=SETTINGS)
    assert started > 8  # the host and seven choices, and at least one of them again
    assert [config.flashback for config in fake_runs] == settings
    assert replace(result, recipe=whole.recipe) == whole
    assert result.recipe.read_bytes() == whole.recipe.read_bytes()


def test_asking_for_more_trials_later_equals_asking_at_once(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    for trials in (2, 3, 7):
        later = tune("icarl", out=tmp_path / "later", trials=trials, settings=SETTINGS)
    at_once = tune("icarl", out=tmp_path / "once", trials=7, settings=SETTINGS)
    assert [config.flashback for config in fake_runs[:7]] == [config.flashback for config in fake_runs[7:]]
    assert replace(later, recipe=at_once.recipe) == at_once


def test_a_tuning_does_not_write_through_links(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    outside, folder = tmp_path / "outside", tmp_path / "tuned"
    outside.mkdir()
    folder.mkdir()
    (folder / "host").symlink_to(outside)
    with pytest.raises(FlashbackError, match="host is a symbolic link"):
        tune("icarl", out=folder, trials=1, settings=SETTINGS)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["garbage", "truncated", "folder", "link"])
def test_a_study_file_of_an_earlier_version_is_left_alone(fake_runs: list[Any], tmp_path: Path, kind: str) -> None:
    """The runs are the study; nothing in study.db, whatever it is, can stop or change it."""
    pytest.importorskip("optuna")
    expected = tune("icarl", out=tmp_path / "clean", trials=2, settings=SETTINGS)
    path, outside = tmp_path / "old" / "study.db", tmp_path / "outside"
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(outside)
    else:
        path.write_bytes(random.Random(0).randbytes(3000) if kind == "garbage" else b"SQLite format 3\0")
        (path.parent / "config.yaml").write_text("{}")
    result = tune("icarl", out=path.parent, trials=2, settings=SETTINGS)
    assert replace(result, recipe=expected.recipe) == expected
    assert not outside.exists()


def test_a_folder_that_holds_a_run_is_refused(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(FlashbackError, match="holds a run; choose another folder"):
        tune("icarl", out=tmp_path, trials=1, settings=SETTINGS)


@pytest.mark.parametrize("key", ["flashback.enabled", "seed", "flashback.alpha", "flashback.epochs"])
def test_what_tuning_decides_is_refused(key: str, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FlashbackError, match=f"(decides|chooses) {key} itself"):
        tune("icarl", out=tmp_path, settings={**SETTINGS, key: 1})


@pytest.mark.slow
def test_when_checkpoints_are_written_makes_no_other_tuning(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    for minutes in (1.0, 5.0):
        tune("icarl", out=tmp_path, trials=2, settings={**SETTINGS, "checkpoint.minutes": minutes})
    assert len(fake_runs) == 2


# ---------------------------------------------------------------- any setting


@pytest.fixture
def runs_of_the_host(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Runs that answer at once: best at a rate of 0.3, then at greater batches."""
    seen: list[Any] = []

    def run(config: Any, *, out: Path, **_: Any) -> None:
        seen.append(config)
        write_record(config, out, 80 - 10 * abs(config.training.lr - 0.3) + config.training.batch_size / 100)

    monkeypatch.setattr(jobs, "run", run)
    return seen


RATES = {"training.lr": [0.1, 0.3, 1.0], "training.batch_size": [50, 100]}
BOTH = {"training.epochs": 4, "benchmark.tasks": 2}


def test_settings_of_both_arms_are_chosen_for_the_host_alone(runs_of_the_host: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    best = tune("lwf-mc", out=tmp_path, over=RATES, trials=9, settings={**BOTH, "flashback.alpha": 0.5})
    assert best.choice == {"training.lr": 0.3, "training.batch_size": 100}
    assert not best.with_flashback
    assert [config.flashback.enabled for config in runs_of_the_host] == [False] * 7  # all choices, and the recipe's own
    assert all(config.benchmark.validation == 0.1 for config in runs_of_the_host)
    accuracies = [trial["accuracy"] for trial in best.trials]
    assert accuracies == sorted(accuracies, reverse=True)
    assert len(accuracies) == 6
    for flashback in (False, True):  # what was chosen alone holds for both arms
        config = configure("lwf-mc", flashback=flashback, recipe=str(best.recipe))
        assert (config.training.lr, config.training.batch_size, config.training.epochs) == (0.3, 100, 4)


def test_a_choice_that_is_the_recipes_own_runs_once(runs_of_the_host: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    rate = configure("lwf-mc").training.lr
    best = tune("lwf-mc", out=tmp_path, over={"training.lr": [rate, 2 * rate]}, trials=2, settings=BOTH)
    assert len(runs_of_the_host) == 2
    assert best.host_accuracy in [trial["accuracy"] for trial in best.trials]


@pytest.mark.slow
def test_flashback_is_tuned_on_top_of_a_tuned_host(runs_of_the_host: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    first = tune("lwf-mc", out=tmp_path / "host", over=RATES, trials=9, settings=BOTH)
    over = {"flashback.alpha": [0.3, 0.7]}
    for _ in range(2):  # its own recipe to begin with is no circle
        second = tune("lwf-mc", out=tmp_path / "both", over=over, recipe=str(first.recipe))
    assert second.with_flashback
    config = configure("lwf-mc", flashback=True, recipe=str(second.recipe))
    first.recipe.unlink()  # all of it was taken over
    assert configure("lwf-mc", flashback=True, recipe=str(second.recipe)) == config
    assert (config.training.lr, config.training.epochs) == (0.3, 4)
    assert config.flashback.alpha in (0.3, 0.7)
    entry = yaml.safe_load(second.recipe.read_text())["recipes"][0]
    assert entry["kind"] == "controlled"
    assert entry["settings"]["training.lr"]["from"].endswith("6 choices")


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({"training.lr": [0.1], "flashback.alpha": [0.1]}, "first tune the latter, then"),
        ({"training.lr": []}, "training.lr needs a list of values"),
        ({"training.optimiser": "adam"}, "training.optimiser needs a list of values"),
        ({"training.lr": [1, 1.0]}, "the same value twice"),
        ({"training.milestones": [[0.5], [0.7]]}, "for lists use a sweep"),
        ({"benchmark.order": [1, 2]}, "changes what is to be learned"),
        ({"seed": [1, 2]}, "chooses seed itself"),
        ({"training.epochs": [4, 5]}, "tuning chooses training.epochs itself"),
        ({"training.lr": [0.1, -1.0]}, "training.lr"),
        ({"host.memory_sise": [1, 2]}, "memory_sise"),
        ({"training.optimiser": ["sgd", "adam"], "training.momentum": [0.0, 0.9]}, "training.momentum"),
    ],
)
def test_what_cannot_be_chosen_is_refused_before_anything_is_trained(
    over: dict[str, Any], says: str, runs_of_the_host: list[Any], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FlashbackError, match=says):
        tune("icarl", out=tmp_path / "out", over=over, settings=BOTH)
    assert runs_of_the_host == []


def test_runs_count_for_a_study_over_other_values(runs_of_the_host: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    tune("lwf-mc", out=tmp_path, over=RATES, trials=9, settings=BOTH)
    before = len(runs_of_the_host)
    fewer = tune("lwf-mc", out=tmp_path, over={**RATES, "training.batch_size": [50]}, trials=9, settings=BOTH)
    assert len(fewer.trials) == 3
    assert len(runs_of_the_host) == before


def test_the_command_takes_values_with_commas_or_a_list(
    runs_of_the_host: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("optuna")
    words = ["tune", "lwf-mc", "--out", str(tmp_path), "--set", "training.epochs=4", "--trials", "3"]
    for values in ("0.1,3e-1,1", "[0.1, 0.3, 1.0]"):
        with pytest.raises(SystemExit) as end:
            main([*words, "--over", f"training.lr={values}"])
        assert end.value.code == 0
        output = " ".join(capsys.readouterr().out.split())
        assert "training.lr" in output
        assert "The last row is the host alone as its recipe has it." in output
    with pytest.raises(SystemExit) as end:
        main([*words, "--over", "training.lr"])
    assert end.value.code != 0
    assert "not of the form key=value" in capsys.readouterr().err


def test_a_recipe_that_stands_on_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"{{host: icarl, recipes: [{{benchmark: split-fashion-mini, kind: {path}, settings: {{}}}}]}}")
    with pytest.raises(FlashbackError, match=r"the kind of recipe in .* must be one of controlled"):
        configure("icarl", recipe=str(path))


@pytest.mark.slow
def test_few_epochs_leave_alpha_to_be_chosen(runs_of_the_host: list[Any], tmp_path: Path) -> None:
    """The recipe's E1 would leave nothing for phase 2; it is not what is tried."""
    pytest.importorskip("optuna")
    settings = {"training.epochs": 2}
    with pytest.raises(FlashbackError, match="leaves nothing for phase 2"):
        configure("lwf-mc", flashback=True, settings=settings)
    best = tune("lwf-mc", out=tmp_path, trials=9, settings=settings)
    assert len(best.trials) == 4
    assert best.choice["flashback.epochs"] == 1


# ---------------------------------------------------------------- data and code that have changed


OWN_DATA = {"training.epochs": 4, "benchmark.sizes": [2, 5]}


def test_runs_on_other_data_are_not_ranked(fake_runs: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    path = write_tiny(tmp_path / "tiny.npz")
    tune("icarl", path, out=tmp_path / "t", trials=1, settings=OWN_DATA)
    write_tiny(path, shift=1)
    with pytest.raises(FlashbackError, match="holds a run on other data"):
        tune("icarl", path, out=tmp_path / "t", trials=2, settings=OWN_DATA)
    path.unlink()  # runs are still read when their data are gone, if nothing has to be trained
    assert finished_run(tmp_path / "t" / "host", yaml.safe_load((tmp_path / "t/host/config.yaml").read_text()))


@pytest.mark.parametrize("changed", ["nothing", "data", "code"])
def test_a_shared_search_counts_trials_on_the_same_data_and_code_alone(
    fake_runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    pytest.importorskip("optuna")
    path, storage = write_tiny(tmp_path / "tiny.npz"), f"journal:{tmp_path / 'journal'}"
    tune("icarl", path, out=tmp_path / "one", trials=2, settings=OWN_DATA, storage=storage)
    if changed == "data":
        write_tiny(path, shift=1)
    elif changed == "code":
        monkeypatch.setattr(tuning, "external_code", lambda host, net: {"code": "edited"})
    tune("icarl", path, out=tmp_path / "two", trials=2, settings=OWN_DATA, storage=storage)
    assert len(fake_runs) == (2 if changed == "nothing" else 4)
