"""`flashback bench`: figures of training steps, printed and written to bench.json."""

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
    monkeypatch.setattr(bench, "ON_CPU", replace(bench.ON_CPU, per_class=10, seconds=0.01))


def measure(*hosts: str, **options: Any) -> bench.Bench:
    return bench.bench(hosts, device="cpu", **{"batches": [4], **options})


def test_steps_of_both_arms() -> None:
    figures = measure("icarl").figures
    assert [(f.flashback, f.mode, f.batch_size) for f in figures] == [(arm, "eager", 4) for arm in (False, True)]
    for figure in figures:
        assert figure.problem == ""
        assert figure.images_per_second == pytest.approx(4 * figure.steps_per_second, rel=0.01)
        assert figure.steps_per_second > 0


def test_a_host_without_knowledge_has_one_arm() -> None:
    assert [f.flashback for f in measure("finetune").figures] == [False]
    assert measure("finetune", flashback=True).figures == []


def test_a_failure_is_a_figure_with_its_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "begin_second_task", lambda trainer: (_ for _ in ()).throw(RuntimeError("no\nmemory")))
    measure("finetune", out=tmp_path)
    (figure,) = json.loads((tmp_path / "bench.json").read_text())["figures"]
    assert figure["problem"] == "RuntimeError: no memory"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"modes": ["captured"]}, "only --mode eager"),
        ({"modes": ["quick"]}, "unknown mode 'quick'"),
        ({"batches": [0]}, "--batch is at least 1"),
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
    assert "finetune" in captured.out
    assert captured.out.splitlines()[-1] == f"Figures: {tmp_path / 'bench.json'}"
    assert len(captured.err.splitlines()) == 1
