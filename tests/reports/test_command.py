from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.cli import main
from flashback.metrics import paired_test
from flashback.metrics.statistics import deviation, mean, signed


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_report_is_written_beside_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_comparison(tmp_path, seeds=2)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text("seed: 0\n")
    assert call("report", tmp_path) == 0
    output = capsys.readouterr()
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert output.out.startswith(
        "4 finished runs on split-cifar100: 1 comparison.\nicarl: Average accuracy, class-incr"
    )
    assert "left out: half: not finished" in output.err


@pytest.mark.slow
def test_all_forms_and_plots(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=1)
    assert (
        call(
            "report",
            tmp_path / "runs",
            "--out",
            tmp_path / "out.html",
            "--format",
            "all",
            "--plots",
            tmp_path / "plots",
        )
        == 0
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs",
        "out.html",
        "out.md",
        "out.tex",
        "out.csv",
        "out.runs.csv",
        "out.tasks.csv",
        "plots",
    }
    assert any((tmp_path / "plots").glob("*.pdf"))


@pytest.mark.slow
def test_of_many_comparisons_the_terminal_says_how_they_came_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k, gain in enumerate([9.0, 9.0, 9.0, -9.0, -9.0, 0.0]):
        write_comparison(tmp_path / f"many{k}", seeds=6, gain=gain, training__lr=1.0 + k)
    for k in range(4):
        write_comparison(tmp_path / f"one{k}", seeds=1, training__lr=10.0 + k)
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    for host in ("finetune", "joint"):
        write_run(tmp_path / host, made_config(host), matrices)
    alone = "2 single arms, with nothing to compare: finetune, joint."
    assert call("report", tmp_path) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    sentences = rest[: rest.index(alone)]
    assert (first, len(sentences)) == ("82 finished runs on split-cifar100: 10 comparisons, 2 single arms.", 10)
    assert len([line for line in rest if line.startswith("  icarl")]) == 2 * 20  # in the tables of both settings
    assert first.removesuffix(".") in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_comparison(tmp_path / "more", seeds=1, training__lr=20.0)
    assert call("report", tmp_path) == 0
    output = capsys.readouterr().out.splitlines()
    assert [*output[:3], output[-1]] == [
        "84 finished runs on split-cifar100: 11 comparisons, 2 single arms.",
        "By average accuracy, class-incremental: 3 significantly better with flashback, "
        "2 significantly worse with flashback, 1 without a significant difference, 5 that allow no test. "
        "The report has the answers.",
        alone,
        f"Report: {tmp_path / 'report.html'}",
    ]


def test_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("icarl", "lucir"):
        matrices = {setting: made_matrix(3) for setting in SETTINGS}
        write_run(tmp_path / name / "run", made_config(name), matrices)
    assert call("report", tmp_path / "icarl", tmp_path / "lucir", "--out", tmp_path / "both.html") == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "2 finished runs on split-cifar100: 2 methods."
    assert output[1].rstrip() == "Methods, class-incremental, best first"


def test_methods_without_flashback_stand_in_a_table_with_their_means(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k, host in enumerate(("finetune", "icarl", "lucir")):
        for seed in range(2):
            matrices = {SETTINGS[0]: made_matrix(3, seed, shift=k), SETTINGS[1]: made_matrix(3, seed, shift=-k)}
            write_run(tmp_path / host / str(seed), made_config(host, seed=seed), matrices)
    assert call("report", tmp_path) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("  ") and line.strip()]
    assert [row[0] for row in rows] == ["method", "lucir", "icarl", "finetune", "method", "finetune", "icarl", "lucir"]
    average = [sum(made_matrix(3, seed, shift=2)[-1]) / 3 for seed in range(2)]
    assert rows[1][:2] == ["lucir", "2"]
    assert float(rows[1][2]) == pytest.approx(mean(average), abs=0.0051)
    assert float(rows[1][4]) == pytest.approx(deviation(average), abs=0.0051)
    assert call("report", tmp_path, "--metrics", "f, new_task_accuracy,AA") == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("  method"))
    assert head.split() == ["method", "seeds", "F", "↓", "NTA", "↑", "AA", "↑"]


def test_a_method_against_another_in_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for k, host in enumerate(("icarl", "lucir")):
        for seed in range(3):
            matrices = {setting: made_matrix(3, seed + 7 * k, shift=k) for setting in SETTINGS}
            write_run(tmp_path / host / str(seed), made_config(host, seed=seed), matrices, steps=640 + k)
    assert call("report", tmp_path, "--against", "icarl") == 0
    out = capsys.readouterr().out
    averages = [{s: sum(made_matrix(3, s + 7 * k, shift=k)[-1]) / 3 for s in range(3)} for k in (0, 1)]
    test = paired_test(*averages)
    row = out.split("against icarl: average")[1].split("  lucir")[1].splitlines()[0].split()
    assert row[0] == "icarl"
    assert signed(test.difference) in row
    assert row[-1] == "3"
    assert "unequal budget, with different training.batch_size, training.lr" in " ".join(out.split())


def test_runs_made_with_different_code_are_not_presented_as_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm, code in ((False, "a" * 16), (True, "b" * 16)):
        config = made_config("of-my-own", flashback__enabled=arm)
        matrices = {setting: made_matrix(3, shift=9 * arm) for setting in SETTINGS}
        write_run(tmp_path / str(arm), config, matrices, must_match={"code": code})
    assert call("report", tmp_path, "--format", "all") == 0
    out = capsys.readouterr().out
    message = "of-my-own: its runs were made with different code (aaaaaaaa, bbbbbbbb), so they are not compared"
    assert out.splitlines()[1].startswith(message)
    assert "changes this by" not in out
    for form in ("html", "md", "tex"):
        text = (tmp_path / f"report.{form}").read_text(encoding="utf-8")
        assert message in text
        assert "changes this by" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "is not a folder"),
        (["."], "there is no finished run"),
        ([".", "--format", "pdf"], "unknown format"),
        (["runs", "--against", "lucir"], "unknown method 'lucir'; known: icarl, icarl with flashback"),
        (["runs", "--metrics", "AA,XY"], "unknown metric 'XY'; known: AA, AIA, BWT"),
        (["runs", "--metrics", "last_accuracy_images"], "these runs have no last_accuracy_images; choose other"),
        (["runs", "--format", "against-csv"], "against-csv needs a method to test against; name one (--against)"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    if words != "there is no finished run":
        write_comparison(tmp_path / "runs", seeds=1)
    assert call("report", *arguments) == 2
    output = capsys.readouterr().err.strip()
    assert output.startswith("error: ")
    assert words in output
    assert "\n" not in output


def test_labels_and_references_are_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrices = {setting: made_matrix(3) for setting in SETTINGS}
    write_run(tmp_path / "runs" / "a", made_config("icarl"), matrices)
    (tmp_path / "r.yaml").write_text(
        "tables: [{where: Table 7, setting: class_incremental, metric: average_accuracy, "
        "cells: {split-cifar100: {icarl: {host: 50}}}}]"
    )
    labels = ("--label", f"our net={tmp_path / 'runs' / 'a'}")
    assert call("report", tmp_path / "runs", *labels, "--references", tmp_path / "r.yaml") == 0
    assert "our net" in capsys.readouterr().out
    assert "Table 7" in (tmp_path / "runs" / "report.html").read_text()
    assert call("report", tmp_path / "runs", "--label", "our net") == 2
    assert "--label takes NAME=FOLDER" in capsys.readouterr().err
