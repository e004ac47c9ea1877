"""`show` and `sweep --dry-run` tell what would be done, and do nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flashback.recipes import find_recipe
from flashback.training.trainer import Trainer

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def rows(out: str) -> dict[str, list[str]]:
    """Cells of a printed table by their first one; at least two spaces stand between cells."""
    cells = ([cell.strip() for cell in line.split("  ") if cell.strip()] for line in out.splitlines())
    return {row[0]: row[1:] for row in cells if row}


def test_every_setting_has_its_source(flashback: Command, workplace: Path) -> None:
    code, out, _ = flashback("show", "icarl", "--set", "training.lr=0.5", "--set", "host.memory_size=100")
    table, recipe = rows(out), find_recipe("icarl", "split-fashion-mini", "controlled")
    assert code == 0
    assert recipe is not None
    assert table["training.lr"] == ["0.5", "given"]
    assert table["host.memory_size"] == ["100", "given"]
    assert table["training.epochs"] == ["6", recipe.sources["training.epochs"]]
    assert table["training.momentum"] == ["0.0", "default"]
    assert table["benchmark.name"] == ["split-fashion-mini", "default"]
    assert list(workplace.iterdir()) == []


@pytest.mark.parametrize(
    ("benchmark", "order", "sizes"),
    [("split-fashion-mini", "identity", "5x2"), ("cifar100-b50-10", "1993", "50 + 5x10")],
)
def test_what_is_left_to_the_benchmark_is_told(
    flashback: Command, workplace: Path, benchmark: str, order: str, sizes: str
) -> None:
    command = ["show", "finetune", "--benchmark", benchmark, "--data", workplace]
    table = rows(flashback(*command)[1])
    assert table["benchmark.order"] == [order, "the benchmark's own"]
    assert table["benchmark.sizes"] == [sizes, "the benchmark's own"]
    options = rows(flashback(*command, "--set", "benchmark.order=7")[1])
    assert options["benchmark.order"] == ["7", "given"]


def test_the_classes_of_a_file_come_in_their_own_order(flashback: Command, tiny: list[str]) -> None:
    table = rows(flashback("show", "finetune", *tiny[:6])[1])
    assert table["benchmark.order"] == ["identity", "the benchmark's own"]
    assert table["benchmark.sizes"][0] == "[2, 2, 2]"


def test_a_plan_needs_no_folder(flashback: Command, workplace: Path) -> None:
    (workplace / "small.yaml").write_text("{hosts: [finetune], arms: [host]}")
    code, out, _ = flashback("sweep", "small.yaml", "--dry-run")
    assert code == 0
    assert "0 of 1 runs done" in out
    assert [path.name for path in workplace.iterdir()] == ["small.yaml"]


def test_a_shard_without_runs_is_no_error(flashback: Command, workplace: Path) -> None:
    """A scheduler may have more shards than a sweep has runs."""
    (workplace / "small.yaml").write_text("{hosts: [finetune], arms: [host]}")
    code, out, err = flashback("sweep", "small.yaml", "--shard", "2/8", "--out", "runs")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["small: 0 of 0 runs done.", "There are fewer runs than shards, and none in shard 2/8."]


def test_the_arms_have_their_own_settings_and_sources(flashback: Command, workplace: Path) -> None:
    command = ["show", "oewc", "--benchmark", "split-cifar100", "--recipe", "as-published", "--data", workplace]
    host, other = (rows(flashback(*command, *more)[1]) for more in ([], ["--flashback"]))
    recipe = find_recipe("oewc", "split-cifar100", "as-published")
    assert recipe is not None
    assert other["host.strength"] == [str(recipe.flashback_settings["host.strength"]), "authors' script with flashback"]
    assert host["host.strength"][0] == str(recipe.settings["host.strength"])
    assert "with flashback" not in host["host.strength"][1]
    assert (host["flashback.enabled"], other["flashback.enabled"]) == (["false", "default"], ["true", "given"])


def test_a_recipe_file_lies_on_top_of_the_shipped_recipe(flashback: Command, workplace: Path) -> None:
    (workplace / "own.yaml").write_text(
        "{host: icarl, recipes: [{benchmark: split-fashion-mini, kind: controlled, "
        "settings: {training.lr: {value: 0.25, from: my hunch}}}]}"
    )
    table = rows(flashback("show", "icarl", "--recipe", "own.yaml")[1])
    assert table["training.lr"] == ["0.25", "my hunch"]
    assert table["host.net"] == ["smallcnn", "our choice: fits 60 s"]


def test_both_arms_are_counted_as_they_are_run(flashback: Command, tiny: list[str]) -> None:
    table = rows(flashback("show", "icarl", "--flashback", *tiny)[1])
    assert table["host"][:2] == ["learn: 2 epochs", "3"]
    assert table["flashback"][:2] == ["phase 1: 1 epoch, phase 2: 1 epoch", "3"]
    assert table["host"][2:] == table["flashback"][2:]  # an equal budget
    steps, images = table["host"][3:]
    _, out, _ = flashback("run", "icarl", *tiny[:-2], "--out", "out", "--device", "cpu")
    assert f"{steps} optimiser steps on {images} images" in out


def test_hosts_without_knowledge_have_one_arm(flashback: Command, bare: list[str]) -> None:
    table = rows(flashback("show", "finetune", *bare)[1])
    assert "host" in table
    assert "flashback" not in table


def test_an_arm_nobody_asked_for_may_be_impossible(flashback: Command, bare: list[str]) -> None:
    impossible = [*bare, "--set", "training.epochs=1"]  # nothing is left for phase 2
    code, out, _ = flashback("show", "icarl", *impossible)
    assert code == 0
    assert "flashback" not in rows(out)
    assert flashback("show", "icarl", *impossible, "--flashback")[0] == 2


def test_missing_data_are_named(flashback: Command, workplace: Path) -> None:
    (workplace / "empty").mkdir()
    code, out, _ = flashback("show", "icarl", "--benchmark", "split-cifar10", "--data", "empty")
    assert code == 0
    assert "put cifar10.npz or cifar-10-binary.tar.gz into empty" in out
    assert "training.epochs" in out
    assert list((workplace / "empty").iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["icral"],
        ["icarl", "--set", "training.epoch=3"],
        ["icarl", "--recipe", "other"],
        ["icarl", "--flashback", "--set", "flashback.enabled=false"],
        ["icarl", "--set", "flashback.alpha=0.5"],
        ["icarl", "--set", "host.net=resnet50"],
        ["icarl", "--set", "host.memory_size=9"],
        ["icarl", "--set", "training.image_size=100"],
        ["finetune", "--flashback"],
    ],
)
def test_what_run_refuses_is_refused(flashback: Command, words: list[str]) -> None:
    code, out, err = flashback("show", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_dry_run_tells_what_is_done_and_what_is_missing(
    flashback: Command, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "{training.epochs: 1, training.batch_size: 500, benchmark.tasks: 2}"
    (workplace / "empty").mkdir()
    file = workplace / "own.yaml"
    file.write_text(f"{{hosts: [finetune], settings: {settings}}}")
    flashback("sweep", file, "--out", "out", "--device", "cpu")
    monkeypatch.setattr(Trainer, "run", lambda self: pytest.fail("a run was started"))
    file.write_text(f"{{hosts: [finetune], benchmarks: [split-fashion-mini, split-cifar10], settings: {settings}}}")
    before = sorted(workplace.rglob("*"))
    code, out, _ = flashback("sweep", file, "--out", "out", "--data", "empty", "--dry-run", "--device", "cpu")
    assert code == 0
    table = rows(out)
    assert table["split-fashion-mini/finetune/controlled/recipe/host/seed-0"] == ["done"]
    assert table["split-cifar10/finetune/controlled/recipe/host/seed-0"] == ["waiting"]
    assert "1 of 2 runs done" in out
    assert out.count("data of") == 1
    assert "The data of cifar10 are missing; put " in out
    assert "flashback for finetune" in out
    assert sorted(workplace.rglob("*")) == before


# ---------------------------------------------------------------- a run that is there


def test_a_folder_shows_its_settings_and_results(flashback: Command, bare: list[str]) -> None:
    results = flashback("run", "lwf-mc", "--seed", 3, "--out", "out", *bare)[1]
    for name in ("out", "out/config.yaml"):
        code, out, err = flashback("show", name)
        assert (code, err) == (0, "")
        table = rows(out)
        assert table["training.lr"] == ["0.3"]
        assert table["benchmark.sizes"] == ["[2, 2, 2]"]
        assert table["seed"] == ["3"]
        assert "lwf-mc without flashback on tiny.npz, recipe defaults" in " ".join(out.split())
        assert out.endswith(results)


def test_an_unfinished_run_is_said_to_be_so(flashback: Command, bare: list[str]) -> None:
    flashback("run", "finetune", "--out", "out", *bare)
    (Path("out") / "results.json").unlink()
    code, out, _ = flashback("show", "out")
    assert code == 0
    assert rows(out)["host.name"] == ["finetune"]
    assert out.endswith("Not finished; `flashback resume out` continues it.\n")


def test_a_run_that_is_there_takes_no_settings(flashback: Command, bare: list[str]) -> None:
    flashback("run", "finetune", "--out", "out", *bare)
    code, out, err = flashback("show", "out", "--set", "training.lr=3")
    assert (code, out) == (2, "")
    assert "the run in out has its settings already" in err


def test_a_record_of_a_host_that_is_not_here_is_shown(flashback: Command, bare: list[str]) -> None:
    flashback("run", "finetune", "--out", "out", *bare)
    config = Path("out/config.yaml")
    config.write_text(config.read_text().replace("name: finetune", "name: somebodys"))
    code, out, _ = flashback("show", "out")
    assert code == 0
    assert "somebodys without flashback on tiny.npz, seed 0" in out


def test_a_torn_record_is_one_sentence(flashback: Command, bare: list[str]) -> None:
    flashback("run", "finetune", "--out", "out", *bare)
    Path("out/results.json").write_text("{")
    code, _, err = flashback("show", "out")
    assert (code, err.count("\n")) == (2, 1)
    assert "the record in out cannot be shown" in err
