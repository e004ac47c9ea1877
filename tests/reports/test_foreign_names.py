"""Names from anybody's files: control characters, bytes that are not UTF-8, and disks that take no report."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.cli import main
from flashback.errors import CONTROLS, FlashbackError
from flashback.reports import read_report, write_plots, write_report
from flashback.reports.versions import plot_versions
from flashback.reports.write import csv_text

ESCAPE = "a\x1b]0;TITLE\x07b\x1b[2J\u202ec\x9b"


def call(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def controls(text: str) -> set[str]:
    return set(CONTROLS.findall(text)) - {"\n"}


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Two runs with control characters wherever a record or a path has a text."""
    names = [f"{ESCAPE}{k}" for k in range(20)]
    for seed, host in enumerate((ESCAPE, f"{ESCAPE}2")):
        config = made_config(host, seed=seed, host__net=ESCAPE, recipe=ESCAPE)
        matrices = {setting: made_matrix(2, seed) for setting in SETTINGS}
        log = [{"event": "epoch", "task": 0, "stage": ESCAPE, "epoch": 0, "epochs": 1, "losses": {ESCAPE: 1.0}}]
        facts = {"data": {"class_names": names}, "device": ESCAPE, "commit": ESCAPE, "changed_on_resume": [ESCAPE]}
        folder = tmp_path / "runs" / f"{ESCAPE}{seed}"
        write_run(folder, config, matrices, log=log, confusion=[[8, 2], [5, 15]], **facts)
        results = json.loads((folder / "results.json").read_text())
        results["classifier"], results["classifiers"] = ESCAPE, {ESCAPE: results["classifiers"]["linear"]}
        (folder / "results.json").write_text(json.dumps(results))
    (tmp_path / "runs" / f"{ESCAPE}-half").mkdir()
    (tmp_path / "runs" / f"{ESCAPE}-half" / "config.yaml").write_text("seed: 0\n")
    return tmp_path / "runs"


def test_no_form_of_a_report_holds_control_characters(hostile: Path, tmp_path: Path) -> None:
    report = read_report(hostile, against=ESCAPE, labels={f"{ESCAPE} label": hostile / f"{ESCAPE}1"})
    written = write_report(report, tmp_path / "out.html", "all")
    assert {path.suffix for path in written} == {".html", ".md", ".tex", ".csv"}
    for path in written:
        text = path.read_text(encoding="utf-8")
        assert not controls(text), path.name
        assert "x1b]0;TITLE" in text.replace("\\]", "]"), path.name
    (data,) = [line for line in (tmp_path / "out.html").read_text().split("\n") if 'id="data"' in line]
    assert not controls(json.dumps(json.loads(data.split(">")[1].split("<")[0]), ensure_ascii=False))
    assert write_plots(report, tmp_path / "plots")


def test_the_command_prints_no_control_characters(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("report", hostile, "--out", hostile.parent / f"{ESCAPE}.html") == 0
    printed = capsys.readouterr()
    assert not controls(printed.out)
    assert not controls(printed.err)
    assert "\\x1b]0;TITLE" in printed.out


def test_csv_escapes_texts_and_leaves_numbers_alone() -> None:
    rows = [{"name": "\t=1+1\x1b", "difference": -1.5, "p": None, "seed": -3, "folder": "-x"}]
    assert csv_text(rows) == "name,difference,p,seed,folder\n'\\t=1+1\\x1b,-1.5,,-3,'-x\n"


def test_folders_whose_names_are_not_utf8_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    write_comparison(runs / os.fsdecode(b"\xff"), seeds=1)
    assert call("report", runs, "--format", "all") == 0
    page = (runs / "report.html").read_text(encoding="utf-8")
    assert "\\udcff/host/seed-0" in page
    assert "\\udcff/host/seed-0" in (runs / "report.runs.csv").read_text(encoding="utf-8")
    assert "caf\\udce9" in capsys.readouterr().out


@pytest.fixture
def small_files() -> Iterator[None]:
    """As with ulimit -f; a full disk fails in the same calls."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs", seeds=1)


def test_a_report_that_cannot_be_written_is_named(
    runs: Path, capsys: pytest.CaptureFixture[str], small_files: None
) -> None:
    assert call("report", runs, "--out", runs / "page.html") != 0
    error = capsys.readouterr().err
    assert f"{runs}/page.html cannot be written (File too large)" in error
    assert error.count("\n") == 1
    assert {path.name for path in runs.iterdir()} == {"host", "flashback"}


def test_a_picture_of_versions_that_cannot_be_written_is_named(tmp_path: Path, small_files: None) -> None:
    path = tmp_path / "history.png"
    path.write_text("earlier")
    with pytest.raises(FlashbackError, match=r"history\.png cannot be written \(File too large\)"):
        plot_versions([], None, path)
    assert path.read_text() == "earlier"


def test_a_chart_that_cannot_be_written_is_named(runs: Path, small_files: None) -> None:
    with pytest.raises(FlashbackError, match=r"answers-class-incremental\.png cannot be written \(File too large\)"):
        write_plots(read_report(runs), runs / "plots")
