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
    assert "icarl on split-cifar100: Average accuracy, class-incremental, equal budget:" in said.out
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
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "out.html", "out.md", "out.tex", "out.csv", "plots"}
    assert any((tmp_path / "plots").glob("*.pdf"))


def test_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("icarl", "lucir"):
        matrices = {setting: made_matrix(3) for setting in SETTINGS}
        write_run(tmp_path / name / "run", made_config(name), matrices)
    assert call("report", tmp_path / "icarl", tmp_path / "lucir", "--out", tmp_path / "both.html") == 0
    said = capsys.readouterr().out
    assert "icarl on split-cifar100" in said
    assert "lucir on split-cifar100" in said


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
