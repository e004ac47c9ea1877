"""The bench measures what is chosen and missing, keeps each figure at once, and keeps figures of others apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_figures import made_bench

from flashback.cli import main
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.speed import Bench, Choice, bench, measuring, read_bench, setup
from flashback.speed.figures import Case, Speed, write_bench
from flashback.training import Interrupted

STEPS = Choice(hosts=("icarl", "finetune"), sections=("steps",))


@pytest.fixture(autouse=True)
def small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "ON_CPU", replace(setup.ON_CPU, per_class=10, seconds=0.01))


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The labels of what is measured; measuring itself is left out."""
    labels: list[str] = []

    def pretend(setup: object, case: Case) -> Speed:
        labels.append(case.label)
        return Speed(**vars(case), images_per_second=7.0, preparation_seconds=0.0, peak_bytes=0)

    monkeypatch.setattr(measuring, "steady_state", pretend)
    return labels


def test_steps_and_parts_are_measured(tmp_path: Path) -> None:
    lines: list[str] = []
    choice = replace(STEPS, sections=("steps", "parts"))
    found = bench(choice, device="cpu", out=tmp_path, show=lines.append)
    assert [speed.method for speed in found.speeds] == ["icarl", "icarl + flashback", "finetune"]
    assert all(speed.images_per_second > 0 for speed in found.speeds)
    assert found.speeds[1].knowledge_bytes["plastic"] > 0
    assert found.parts.keys() == {
        "fisher",
        "herding all images, class means",
        "evaluation of a task",
        "checkpoint",
        "trainer over a bare loop",
    }
    assert 0.5 < found.parts["trainer over a bare loop"] < 1.5  # below 1.05 on a quiet machine
    assert len(lines) == len(found.speeds) + len(found.parts)
    assert read_bench(tmp_path / "bench.json") == found
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md", "bench.png"}


def test_only_what_is_missing_is_measured(tmp_path: Path, taken: list[str]) -> None:
    first = bench(STEPS, device="cpu", out=tmp_path)
    assert taken == ["icarl, batch 32, eager", "icarl + flashback, batch 32, eager", "finetune, batch 32, eager"]
    taken.clear()
    more = bench(replace(STEPS, hosts=("icarl", "der"), batches=(32, 8), flashback=False), device="cpu", out=tmp_path)
    assert taken == ["icarl, batch 8, eager", "der, batch 32, eager", "der, batch 8, eager"]
    assert more.speeds[:3] == first.speeds
    assert more.date == first.date


def test_each_figure_is_kept_at_once_and_failures_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: list[str]
) -> None:
    whole = measuring.steady_state
    kept: list[int] = []

    def fail_with_flashback(setup: Any, case: Case) -> Speed:
        path = tmp_path / "bench.json"
        kept.append(len(read_bench(path).speeds) if path.exists() else 0)
        if case.flashback:
            raise RuntimeError("CUDA out of memory.\nTried to allocate a lot")
        return whole(setup, case)

    monkeypatch.setattr(measuring, "steady_state", fail_with_flashback)
    broken = bench(STEPS, device="cpu", out=tmp_path)
    label = "icarl + flashback, batch 32, eager"
    assert kept == [0, 1, 1]
    assert broken.failures == {label: "RuntimeError: CUDA out of memory. Tried to allocate a lot"}
    monkeypatch.setattr(measuring, "steady_state", whole)
    taken.clear()
    mended = bench(STEPS, device="cpu", out=tmp_path)
    assert taken == [label]
    assert mended.failures == {}
    assert read_bench(tmp_path / "bench.json") == mended


def other_device(found: Bench) -> None:
    found.device = "another"


def other_torch(found: Bench) -> None:
    found.versions["torch"] = "1.0"


def other_precision(found: Bench) -> None:
    found.precision = "tf32"


def other_size(found: Bench) -> None:
    found.size = replace(found.size, classes=3)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (other_device, "device"),
        (other_torch, "versions.torch"),
        (other_precision, "precision"),
        (other_size, "size.classes"),
    ],
)
def test_figures_of_other_surroundings_are_refused(
    tmp_path: Path, taken: list[str], change: Callable[[Bench], None], named: str
) -> None:
    found = bench(STEPS, device="cpu", out=tmp_path)
    change(found)
    write_bench(found, tmp_path)
    taken.clear()
    with pytest.raises(FlashbackError, match=rf"other surroundings \(differs in {named}\)"):
        bench(STEPS, device="cpu", out=tmp_path)
    assert taken == []


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"device": 3}', '{"speeds": [{"host": "icarl"}]}', "\x00"])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bench.json").write_text(text)
    with pytest.raises(FlashbackError, match="holds no figures of a bench"):
        bench(STEPS, device="cpu", out=tmp_path)


def test_made_figures_survive_the_file(tmp_path: Path) -> None:
    write_bench(made_bench(), tmp_path)
    assert read_bench(tmp_path / "bench.json") == made_bench()
    assert json.loads((tmp_path / "bench.json").read_text())["speeds"][1]["mode"] == "eager"


def test_by_itself_every_host_is_measured_in_both_arms(taken: list[str]) -> None:
    bench(Choice(sections=("steps",)), device="cpu")
    expected = [name for name in HOSTS if HOSTS[name].task_by_task]
    assert {label.split(",")[0].split(" + ")[0] for label in taken} == set(expected)
    assert len(taken) == sum(2 if HOSTS[name].has_knowledge else 1 for name in expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("icral", "unknown host 'icral'; did you mean 'icarl'?"),
        ("joint", "joint does not learn task by task"),
        ("--mode fast", "only --mode eager can be measured on a CPU"),
        ("--mode quick", "unknown mode 'quick'"),
        ("--only everything", "unknown section 'everything'"),
        ("--only packed", "--only packed needs --packed"),
        ("icarl --only parts", "the name of a host does nothing here; it needs --only steps or runs or packed"),
        ("--batch 8 --only parts", "--batch does nothing here"),
        ("--mode eager --only parts", "--mode does nothing here"),
        ("--no-flashback --only parts", "--flashback or --no-flashback does nothing here"),
        ("finetune --flashback", "--flashback does nothing here; finetune cannot take it"),
        ("--epochs 3 --only steps", "--epochs does nothing here; it needs --only runs or packed"),
        ("--tasks 3 --only steps --only parts", "--tasks does nothing here; it needs --only runs or packed"),
        ("--cold --only packed --packed 2", "--cold does nothing here; it needs --only runs"),
        ("--packed 2 --only runs", "--packed does nothing here; it needs --only packed"),
        ("--packed 0", "--packed is at least 1"),
        ("--batch 0", "a batch has at least 1 image"),
        ("--epochs 1", "--epochs is at least 2"),
        ("--tasks 0", "--tasks is at least 1"),
        ("--precision bf16", "needs a CUDA device"),
        ("--precision half", "training.precision is one of fp32, tf32, bf16"),
        ("--read bench.txt", "--read takes the .json file of a bench"),
        ("--read nowhere.json", "there is no file nowhere.json"),
    ],
)
def test_bad_choices_are_refused_in_a_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", "--device", "cpu", *words.split()])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_names_and_batches_are_for_every_section(monkeypatch: pytest.MonkeyPatch, taken: list[str]) -> None:
    """By themselves, whole runs are of one host at one batch size."""

    def pretend(found: Bench, setup: object, case: Case) -> str:
        taken.append(case.label)
        return ""

    monkeypatch.setattr(measuring, "take_run", pretend)
    monkeypatch.setattr(measuring, "take_packed", pretend)
    length = "3 tasks of 2 epochs, own cache"
    named = Choice(hosts=("finetune",), batches=(8, 16), packed=(2,))
    bench(replace(named, sections=("runs", "packed")), device="cpu")
    runs = [f"whole run of finetune, batch {batch}, eager, {length}" for batch in (8, 16)]
    assert taken == [*runs, *(f"2 at a time: {label}" for label in runs)]
    taken.clear()
    bench(Choice(sections=("runs",)), device="cpu")
    assert taken == [f"whole run of {method}, batch 32, eager, {length}" for method in ("icarl", "icarl + flashback")]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Interrupted])
@pytest.mark.parametrize("kept", [False, True])
def test_ctrl_c_promises_to_go_on_only_where_figures_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: type, kept: bool
) -> None:
    def interrupted(setup: Any, case: Case) -> Speed:
        raise stop

    monkeypatch.setattr(measuring, "steady_state", interrupted)
    with pytest.raises(SystemExit) as end:
        main(["bench", "--device", "cpu", "--only", "steps", *(["--out", str(tmp_path)] if kept else [])])
    assert end.value.code == 130
    promise = "; the same command goes on where it stopped" if kept else ""
    assert capsys.readouterr().err == f"interrupted{promise}\n"


def test_the_command_prints_tables_and_reads_them_again(
    tmp_path: Path, taken: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "finetune", "der", "--device", "cpu", "--only", "steps", "--no-flashback"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--out", str(tmp_path)])
    assert end.value.code == 0
    assert taken == ["finetune, batch 32, eager", "der, batch 32, eager"]
    printed = capsys.readouterr().out
    assert "Training step, images/s" in printed
    (tmp_path / "bench.png").unlink()
    with pytest.raises(SystemExit):
        main(["bench", "--read", str(tmp_path / "bench.json")])
    assert capsys.readouterr().out.splitlines()[-5:] == printed.splitlines()[-5:]
    assert (tmp_path / "bench.png").exists()


def test_a_failure_is_told_by_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(setup: Any, case: Case) -> Speed:
        raise RuntimeError("no")

    monkeypatch.setattr(measuring, "steady_state", fail)
    with pytest.raises(SystemExit) as end:
        main(["bench", "finetune", "--device", "cpu", "--only", "steps"])
    assert end.value.code == 1
    assert "failed: finetune, batch 32, eager: RuntimeError: no" in capsys.readouterr().err
