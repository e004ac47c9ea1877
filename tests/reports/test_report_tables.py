from __future__ import annotations

import csv
import io
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
from made_runs import SETTINGS, made_config, made_matrix, made_results, write_comparison, write_run

import flashback
from flashback.errors import FlashbackError
from flashback.metrics import average_accuracy, paired_test
from flashback.reports import (
    accuracy_rows,
    csv_of_runs,
    csv_table,
    html_page,
    latex_tables,
    markdown_tables,
    read_report,
    run_rows,
    square,
    write_report,
)
from flashback.reports.markdown import plain, table_lines
from flashback.reports.tables import csv_of_tasks, latex

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
    assert latex_tables(report).count(r"results on my\_own in percent") == 4  # of methods and of comparisons


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
        ("r.html", "all", ["r.html", "r.md", "r.tex", "r.csv", "r.runs.csv", "r.tasks.csv"]),
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


# ---------------------------------------------------------------- methods, one row each


def write_methods(folder: Path, hosts: tuple[str, ...] = ("finetune", "icarl", "lucir"), seeds: int = 2) -> Path:
    for k, host in enumerate(hosts):
        for seed in range(seeds):
            matrices = {setting: made_matrix(3, seed, shift=2 * k, fall=5 + k) for setting in SETTINGS}
            write_run(folder / host / f"seed-{seed}", made_config(host, seed=seed), matrices)
    return folder


def test_methods_without_flashback_have_a_row_each(tmp_path: Path) -> None:
    report = read_report([write_methods(tmp_path)], metrics=["F", "AA"])
    text = markdown_tables(report)
    assert text.startswith("# How do the methods compare?\n\n6 finished runs on split-cifar100: 3 methods.\n")
    rows = [line.split(" | ") for line in text.split("## Task")[0].splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == ["| method", "| ---", "| lucir", "| icarl", "| finetune"]
    assert rows[0][1:] == ["seeds", "F ↓", "AA ↑ |"]
    average = sum(sum(made_matrix(3, seed, shift=4, fall=7)[-1]) / 3 for seed in (0, 1)) / 2
    assert float(rows[2][3].split(" ± ")[0]) == pytest.approx(average, abs=0.0051)


def test_latex_marks_the_best_of_each_metric_but_no_bound(tmp_path: Path) -> None:
    write_methods(tmp_path)
    matrices = {setting: made_matrix(3, shift=15) for setting in SETTINGS}
    path = write_run(tmp_path / "joint", made_config("joint"), matrices) / "results.json"
    results = json.loads(path.read_text())
    for setting in SETTINGS:
        results[setting] |= dict.fromkeys(("average_incremental_accuracy", "forgetting"))
    path.write_text(json.dumps(results))
    text = latex_tables(read_report([tmp_path], metrics=["AA", "F"]))
    rows = [line.strip().split(" & ") for line in text.split(r"\bottomrule")[0].splitlines() if " & " in line]
    assert [row[0] for row in rows] == ["method", "joint", "lucir", "icarl", "finetune"]
    assert [[cell.startswith(r"\textbf{") for cell in row[2:]] for row in rows[1:]] == [
        [False, False],
        [True, False],
        [False, False],
        [False, True],
    ]
    assert "joint: no F, since it learned all tasks at once." in text


def test_a_host_that_several_comparisons_share_stands_there_once(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=1)
    stronger = made_config(flashback__enabled=True, flashback__alpha=0.7)
    write_run(tmp_path / "b", stronger, {setting: made_matrix(4, seed=9) for setting in SETTINGS})
    report = read_report([tmp_path])
    rows = [
        [cell.strip() for cell in line.split("|")[1:3]]
        for line in markdown_tables(report).split("All methods")[0].splitlines()
        if line.startswith("| icarl")
    ]
    named = "icarl (flashback.alpha 0.7)"
    assert rows == [
        ["icarl", "host"],
        ["icarl", "with flashback"],
        ["icarl", "difference"],
        [named, "with flashback"],
        [named, "difference"],
    ]
    assert latex_tables(report).count("& host &") == len(SETTINGS)


def test_an_empty_column_has_its_reason_under_the_table(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    assert "no FWT" not in markdown_tables(read_report([tmp_path]))
    for path in tmp_path.rglob("results.json"):
        results = json.loads(path.read_text())
        for setting in SETTINGS:
            results[setting] |= {"zero_shot": None, "untrained": None, "forward_transfer": None}
        path.write_text(json.dumps(results))
    said = "icarl: no FWT, since its classifier gives no score to classes it has not met."
    for write in (markdown_tables, html_page):
        assert said in write(read_report([tmp_path]))


# ---------------------------------------------------------------- a sweep by its own grid


def write_grid(folder: Path) -> Path:
    for memory in (500, 900):
        for alpha in (0.1, 0.7):
            for seed in range(2):
                config = made_config(
                    host__memory_size=memory, flashback__alpha=alpha, flashback__enabled=True, seed=seed
                )
                matrices = {s: made_matrix(3, seed, shift=memory / 1000 + alpha) for s in SETTINGS}
                write_run(folder / f"{memory}-{alpha}-{seed}", config, matrices)
        write_run(folder / f"{memory}", made_config(host__memory_size=memory), {s: made_matrix(3) for s in SETTINGS})
    return folder


def test_tables_of_numbers_have_the_settings_that_differ(tmp_path: Path) -> None:
    report = read_report([write_grid(tmp_path)])
    for write in (csv_table, csv_of_runs, csv_of_tasks):
        text = write(report)
        assert text.splitlines()[0].endswith(",host.memory_size,flashback.alpha")
        rows = list(csv.DictReader(io.StringIO(text)))
        with_flashback = [row for row in rows if row.get("arm", "flashback") == "flashback"]
        found = {(row["host.memory_size"], row["flashback.alpha"]) for row in with_flashback}
        assert found == {(memory, alpha) for memory in ("500", "900") for alpha in ("0.1", "0.7")}
        assert {row["flashback.alpha"] for row in rows if row.get("arm") == "host"} <= {""}  # it does nothing there


def test_accuracies_by_task_are_those_of_the_matrices(tmp_path: Path) -> None:
    report = read_report([write_grid(tmp_path)])
    rows = accuracy_rows(report)
    assert len(rows) == 10 * len(SETTINGS) * 6  # every run once, though its host may be compared several times
    for folder, setting in itertools.product(("500", "900-0.7-1"), SETTINGS):
        matrix = json.loads((tmp_path / folder / "results.json").read_text())[setting]["matrix"]
        own = [row for row in rows if (row["folder"], row["setting"]) == (folder, setting)]
        assert {(row["after_task"], row["task"]): row["accuracy"] for row in own} == {
            (k + 1, j + 1): value for k, line in enumerate(matrix) for j, value in enumerate(line)
        }
    written = list(csv.DictReader(io.StringIO(csv_of_tasks(report))))
    assert [float(row["accuracy"]) for row in written] == [row["accuracy"] for row in rows]


def test_rows_for_a_data_frame_have_metrics_and_settings(tmp_path: Path) -> None:
    rows = run_rows(read_report([write_grid(tmp_path)]))
    assert len(rows) == 10 * len(SETTINGS)
    assert len({tuple(row) for row in rows}) == 1  # all have the same columns
    row = next(row for row in rows if (row["folder"], row["setting"]) == ("900-0.7-1", SETTINGS[0]))
    assert (row["host.memory_size"], row["flashback.alpha"], row["arm"], row["seed"]) == (900, 0.7, "flashback", 1)
    assert row["average_accuracy"] == pytest.approx(average_accuracy(made_matrix(3, 1, shift=1.6)))
    host = next(row for row in rows if row["folder"] == "500")
    assert (host["flashback.alpha"], host["method"]) == (None, "icarl (host.memory_size 500)")


def test_a_matrix_is_made_square() -> None:
    made = square([[1.0], [2.0, 3.0]])
    assert made.tolist()[1] == [2.0, 3.0]
    assert made[0, 0] == 1.0
    assert np.isnan(made[0, 1])
