from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.cli import main


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_report_is_written_beside_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_comparison(tmp_path, seeds=2)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text("seed: 0\n")
    assert call("report", tmp_path) == 0
    said = capsys.readouterr()
    assert "</html>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert said.out.startswith("4 finished runs on split-cifar100: 1 comparison.\nicarl: Average accuracy, class-incr")
    assert "left out: half: not finished" in said.err


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
        "plots",
    }
    assert any((tmp_path / "plots").glob("*.pdf"))


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
    first, *sentences, last, _ = capsys.readouterr().out.splitlines()
    assert (first, len(sentences), last) == (
        "82 finished runs on split-cifar100: 10 comparisons, 2 single arms.",
        10,
        alone,
    )
    assert first.removesuffix(".") in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_comparison(tmp_path / "more", seeds=1, training__lr=20.0)
    assert call("report", tmp_path) == 0
    assert capsys.readouterr().out.splitlines() == [
        "84 finished runs on split-cifar100: 11 comparisons, 2 single arms.",
        "By average accuracy, class-incremental: 3 significantly better with flashback, "
        "2 significantly worse with flashback, 1 without a significant difference, 5 that allow no test. "
        "The report has the answers.",
        alone,
        f"Report: {tmp_path / 'report.html'}",
    ]


def test_of_the_evidence_the_terminal_says_where_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_comparison(tmp_path / "runs", seeds=1)
    assert call("report", tmp_path / "runs", "--format", "evidence", "--out", tmp_path / "evidence.md") == 0
    assert capsys.readouterr().out == f"Report: {tmp_path / 'evidence.md'}\n"


def test_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("icarl", "lucir"):
        matrices = {setting: made_matrix(3) for setting in SETTINGS}
        write_run(tmp_path / name / "run", made_config(name), matrices)
    assert call("report", tmp_path / "icarl", tmp_path / "lucir", "--out", tmp_path / "both.html") == 0
    assert capsys.readouterr().out.splitlines()[:2] == [
        "2 finished runs on split-cifar100: 2 single arms.",
        "2 single arms, with nothing to compare: icarl, lucir.",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "is not a folder"),
        (["."], "there is no finished run"),
        ([".", "--format", "pdf"], "unknown format"),
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
    if words == "unknown format":
        write_comparison(tmp_path / "runs", seeds=1)
    assert call("report", *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert words in said
    assert "\n" not in said
