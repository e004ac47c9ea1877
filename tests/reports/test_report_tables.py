from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from made_runs import SETTINGS, made_config, made_matrix, made_results, write_comparison, write_run

import flashback
from flashback.errors import FlashbackError
from flashback.metrics import average_accuracy, paired_test
from flashback.reports import (
    csv_of_runs,
    csv_table,
    html_page,
    latex_tables,
    markdown_tables,
    read_report,
    write_report,
)
from flashback.reports.markdown import plain, table_lines
from flashback.reports.tables import latex

EVIL = "a|b<script>&_{x}$1%\\=~^#`*\nnext"


def average(folder: Path, arm: str, seed: int, setting: str) -> float:
    return average_accuracy(json.loads((folder / arm / f"seed-{seed}" / "results.json").read_text())[setting]["matrix"])


def test_csv_has_one_line_per_method_setting_and_metric(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    rows = list(csv.DictReader(io.StringIO(csv_table(read_report([tmp_path])))))
    assert len(rows) == 2 * 8
    row = next(row for row in rows if (row["setting"], row["metric"]) == (SETTINGS[0], "average_accuracy"))
    values = {arm: [average(tmp_path, arm, seed, SETTINGS[0]) for seed in (0, 1)] for arm in ("host", "flashback")}
    test = paired_test(values["host"], values["flashback"])
    assert float(row["host_mean"]) == pytest.approx(sum(values["host"]) / 2)
    assert float(row["difference"]) == pytest.approx(test.difference)
    assert float(row["p"]) == pytest.approx(test.p)
    assert (row["host"], row["benchmark"], row["recipe"]) == ("icarl", "split-cifar100", "controlled")
    assert (row["host_seeds"], row["pairs"], row["budget"]) == ("2", "2", "equal budget")
    assert (row["host_printed"], row["flashback_printed"], row["printed_in"]) == ("49.82", "53.2", "Table 1")


def test_csv_holds_no_formulas(tmp_path: Path) -> None:
    write_run(tmp_path / "run", made_config("=1+1", "@x"), {setting: made_matrix(3) for setting in SETTINGS})
    row = next(csv.DictReader(io.StringIO(csv_table(read_report([tmp_path])))))
    assert (row["host"], row["benchmark"], row["method"]) == ("'=1+1", "'@x", "'=1+1")


def test_csv_of_runs_has_one_line_per_run_setting_classifier_and_metric(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    path = tmp_path / "host" / "seed-1" / "results.json"
    results = json.loads(path.read_text())
    other = made_results({setting: made_matrix(4, seed=9) for setting in SETTINGS})
    results["classifiers"]["other"] = other["classifiers"]["linear"]
    path.write_text(json.dumps(results))
    rows = list(csv.DictReader(io.StringIO(csv_of_runs(read_report([tmp_path])))))
    assert list(rows[0]) == [
        "method", "folder", "host", "benchmark", "recipe", "arm", "seed", "setting", "classifier", "metric", "value"
    ]  # fmt: skip
    keys = [tuple(list(row.values())[:-1]) for row in rows]
    assert len(set(keys)) == len(keys)
    assert len({key[:-1] for key in keys}) == (4 + 1) * 2
    found = {(row["arm"], row["seed"], row["setting"], row["classifier"], row["metric"]): row["value"] for row in rows}
    for arm in ("host", "flashback"):
        for seed in (0, 1):
            for setting in SETTINGS:
                value = found[arm, str(seed), setting, "linear", "average_accuracy"]
                assert float(value) == pytest.approx(average(tmp_path, arm, seed, setting), abs=1e-12)
    assert float(found["host", "1", SETTINGS[0], "other", "forgetting"]) == other[SETTINGS[0]]["forgetting"]
    assert {row["folder"] for row in rows} == {f"{arm}/seed-{k}" for arm in ("host", "flashback") for k in (0, 1)}
    assert {(row["host"], row["benchmark"], row["recipe"]) for row in rows} == {
        ("icarl", "split-cifar100", "controlled")
    }


def test_csv_of_runs_tells_methods_apart_as_the_other_table_does(tmp_path: Path) -> None:
    """A grid of a setting, and one of flashback's own, whose methods share the runs of the host."""
    write_comparison(tmp_path / "small", seeds=2, host__memory_size=500)
    write_comparison(tmp_path / "large", seeds=2, host__memory_size=900)
    stronger = made_config(flashback__enabled=True, host__memory_size=900, flashback__alpha=0.7)
    matrices = {setting: made_matrix(4, seed=9) for setting in SETTINGS}
    write_run(tmp_path / "stronger", stronger, matrices)
    report = read_report([tmp_path])
    rows = list(csv.DictReader(io.StringIO(csv_of_runs(report))))
    table = list(csv.DictReader(io.StringIO(csv_table(report))))
    assert {row["method"] for row in rows} == {row["method"] for row in table} == {p.name for p in report.pairings}
    assert len(report.pairings) == 3
    for row in table:  # what the example of the docs does: a mean for each method and arm
        for arm in ("host", "flashback"):
            own = [
                float(run["value"])
                for run in rows
                if (run["method"], run["arm"]) == (row["method"], arm)
                and (run["setting"], run["metric"]) == (row["setting"], row["metric"])
                and run["value"]
            ]
            assert str(len(own)) == row[f"{arm}_seeds"]
            if own:
                assert sum(own) / len(own) == pytest.approx(float(row[f"{arm}_mean"]))


def test_markdown_has_answers_and_a_table_per_setting(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=3)
    text = markdown_tables(read_report([tmp_path]))
    host = [average(tmp_path, "host", seed, SETTINGS[1]) for seed in range(3)]
    assert "## Class-incremental" in text
    assert "## Task-incremental" in text
    assert "3 pairs (one per seed)" in text
    section = text.split("## Task-incremental")[1]
    line = next(line for line in section.splitlines() if line.startswith("| icarl | host |"))
    assert line.split("|")[3].strip().startswith(f"{sum(host) / 3:.2f} ± ")
    assert "## The paper" in text
    assert "printed +0.45" in text
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in tables[:5]} == {11}


def test_tables_say_once_on_what_they_are_and_which_arms_stand_alone(tmp_path: Path) -> None:
    write_comparison(tmp_path / "icarl", benchmark="somewhere/my_own.npz", seeds=1)
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    write_run(tmp_path / "alone", made_config("lucir", "somewhere/my_own.npz"), matrices)
    report = read_report([tmp_path])
    lines = markdown_tables(report).splitlines()
    assert r"3 finished runs on my\_own: 1 comparison, 1 single arm." in lines
    assert lines.count("- 1 single arm, with nothing to compare: lucir.") == 2
    assert latex_tables(report).count(r"results on my\_own in percent") == 2


def test_seeds_of_one_arm_alone_are_named_under_every_table(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    before = read_report([tmp_path])
    write_run(tmp_path / "more", made_config(seed=7), {setting: made_matrix(4) for setting in SETTINGS})
    after = read_report([tmp_path])
    said = "Seeds that only one arm has (host: seed 7) count for its mean, not for the difference and its test."
    for write in (markdown_tables, latex_tables, html_page):
        assert "only one arm has" not in write(before)
        assert said in write(after)
    assert f"- icarl: {said}" in markdown_tables(after).splitlines()


def test_markdown_tables_are_put_together_in_one_place() -> None:
    made = table_lines(("a_b", "n"), [["x|y", "-1.00"]], texts=1)
    assert made == [r"| a\_b | n |", "| --- | ---: |", r"| x\|y | -1.00 |"]
    package = Path(flashback.__file__).parent
    rooms = [path for room in ("reports", "speed", "cli") for path in (package / room).glob("*.py")]
    assert [path.name for path in rooms if "---:" in path.read_text(encoding="utf-8")] == ["markdown.py"]


def test_latex_is_booktabs_with_both_arms_and_their_difference(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=3)
    text = latex_tables(read_report([tmp_path]))
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 2
    host = [average(tmp_path, "host", seed, SETTINGS[0]) for seed in range(3)]
    line = next(line for line in text.splitlines() if line.strip().startswith("icarl & host"))
    assert f"{sum(host) / 3:.2f} $\\pm$ " in line
    assert line.endswith(r"\\")
    assert line.count("&") == 9
    assert "& difference & +" in text


def test_names_cannot_break_markdown_or_latex(tmp_path: Path) -> None:
    write_run(tmp_path / "run", made_config(EVIL), {setting: made_matrix(3) for setting in SETTINGS})
    report = read_report([tmp_path])
    line = next(line for line in markdown_tables(report).splitlines() if line.startswith("| a"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 11
    assert not re.search(r"(?<!\\)<script", line)
    row = next(line for line in latex_tables(report).splitlines() if line.startswith("    a"))
    assert len(re.findall(r"(?<!\\)&", row)) == 9
    assert r"\_\{x\}\$1\%\textbackslash{}" in row


def test_escapes() -> None:
    assert plain("a|b\n*c*") == r"a\|b \*c\*"
    assert latex("-3.10 ± 0.2, split-cifar10") == r"$-$3.10 $\pm$ 0.2, split-cifar10"
    assert latex("50% & $x_1$ ± 2") == r"50\% \& \$x\_1\$ $\pm$ 2"


@pytest.mark.parametrize(
    ("out", "form", "expected"),
    [
        ("r.html", "html", ["r.html"]),
        ("r.html", "md", ["r.md"]),
        ("deep/r", "latex", ["deep/r.tex"]),
        ("r.v2", "csv", ["r.v2.csv"]),
        ("r.html", "all", ["r.html", "r.md", "r.tex", "r.csv", "r.runs.csv"]),
        ("r.html", "runs-csv", ["r.runs.csv"]),
        ("r.csv", "runs-csv", ["r.csv"]),
        ("r", "runs-csv", ["r.runs.csv"]),
    ],
)
def test_files_are_written_where_they_were_asked_for(out: str, form: str, expected: list[str], tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs", seeds=1)
    written = write_report(read_report([tmp_path / "runs"]), tmp_path / out, form)
    assert written == [tmp_path / name for name in expected]
    assert all(path.stat().st_size > 100 for path in written)


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1)
    with pytest.raises(FlashbackError, match="unknown format 'htm'; did you mean 'html'"):
        write_report(read_report([tmp_path]), tmp_path / "x.html", "htm")
