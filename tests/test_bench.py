"""`flashback bench`: figures of steps and runs, kept and continued in bench.json."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flashback import bench
from flashback.cli import main
from flashback.errors import FlashbackError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ON_CPU", replace(bench.ON_CPU, per_class=10, seconds=0.01, tasks=2))


def measure(*hosts: str, **options: Any) -> bench.Bench:
    return bench.bench(hosts, device="cpu", batches=[4], **options)


def test_steps_and_runs_of_both_arms() -> None:
    figures = measure("icarl").figures
    cases = [(f.kind, f.flashback, f.mode, f.batch_size) for f in figures]
    assert cases == [(kind, arm, "eager", 4) for kind in ("steps", "runs") for arm in (False, True)]
    for figure in figures:
        assert figure.problem == ""
        assert figure.images_per_second > figure.steps_per_second > 0
    run = figures[2]
    images = 2 * (20 + 20) + 2 * 20  # epochs of new images, and the exemplars of the first task, which are all of them
    assert run.images_per_second * run.seconds == pytest.approx(images, rel=0.2)


def test_a_host_without_knowledge_has_one_arm() -> None:
    assert [f.flashback for f in measure("finetune", only=["steps"]).figures] == [False]
    assert measure("finetune", only=["steps"], flashback=True).figures == []


def test_the_same_folder_is_continued(tmp_path: Path) -> None:
    taken: list[str] = []
    options = {"only": ["steps"], "flashback": False, "out": tmp_path, "show": lambda f: taken.append(f.host)}
    measure("finetune", **options)
    result = measure("finetune", "lwf", **options)
    assert taken == ["finetune", "lwf"]
    assert [f["host"] for f in json.loads((tmp_path / "bench.json").read_text())["figures"]] == taken
    assert [f.host for f in result.figures] == taken


@pytest.mark.parametrize("content", ["{", "{}", '{"device": "other"}'])
def test_a_folder_of_something_else_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "bench.json").write_text(content)
    with pytest.raises(FlashbackError, match="holds no figures"):
        measure("finetune", out=tmp_path)


def test_figures_of_another_machine_are_refused(tmp_path: Path) -> None:
    measure("finetune", only=["steps"], out=tmp_path)
    text = (tmp_path / "bench.json").read_text()
    (tmp_path / "bench.json").write_text(text.replace('"precision": "fp32"', '"precision": "bf16"'))
    with pytest.raises(FlashbackError, match="another device, precision, version or size"):
        measure("finetune", out=tmp_path)


def test_a_failure_is_kept_and_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bench, "begin_second_task", lambda trainer: (_ for _ in ()).throw(RuntimeError("no\nmemory")))
        (failed,) = measure("finetune", only=["steps"], out=tmp_path).figures
        assert failed.problem == "RuntimeError: no memory"
    (figure,) = measure("finetune", only=["steps"], out=tmp_path).figures
    assert figure.problem == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"modes": ["captured"]}, "only --mode eager"),
        ({"modes": ["quick"]}, "unknown mode 'quick'"),
        ({"only": ["step"]}, "did you mean 'steps'"),
        ({"tasks": 0}, "--tasks is at least 1"),
        ({"epochs": 1}, "--epochs is at least 2"),
    ],
)
def test_what_cannot_be_measured_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        measure("finetune", **options)
    with pytest.raises(FlashbackError, match="joint does not learn task by task"):
        measure("joint")


def test_the_command_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # a narrower table folds its names
    command = ["bench", "finetune", "--batch", "4", "--mode", "eager", "--device", "cpu", "--out", str(tmp_path)]
    with pytest.raises(SystemExit) as end:
        main(command)
    captured = capsys.readouterr()
    assert end.value.code == 0
    assert "finetune, step" in captured.out
    assert "finetune, run of 2 tasks, 2 epochs each" in captured.out
    assert captured.out.splitlines()[-1] == f"Figures: {tmp_path / 'bench.json'}"
    assert len(captured.err.splitlines()) == 2
