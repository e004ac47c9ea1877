"""Tables of a report in all their forms, and rows for one's own analysis."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_frontier, write_run

from flashback.errors import FlashbackError
from flashback.metrics import paired_over_methods, paired_over_tasks, paired_test
from flashback.metrics.statistics import holm
from flashback.reports import accuracy_rows, class_rows, read_report, run_rows, write_report
from flashback.reports.data import against_rows, comparison_rows, metric_rows
from flashback.reports.page import html_page
from flashback.reports.report import Report, obstacles, over_tasks
from flashback.reports.tables import arms_table, classes_table, methods_tables, result_row, results_table
from flashback.reports.text import escaped, latex, markdown, plain
from flashback.reports.words import direction
from flashback.reports.write import csv_text
from flashback.results import Row, Sample, compare_methods

CI, TI = SETTINGS
AA = "average_accuracy"
NASTY = "a|b*c_d<e>#f$g%h&i{j}\\k~l^m\n- n"


def write_host(folder: Path, host: str, seeds: int = 3, shift: float = 0.0, draw: int = 0, **changes: Any) -> None:
    run = changes.pop("run", {})
    for seed in range(seeds):
        matrices = {setting: made_matrix(3, seed + draw, shift) for setting in SETTINGS}
        write_run(folder / f"seed-{seed}", made_config(host, seed=seed, **changes), matrices, **run)


def averages(seeds: int, shift: float, draw: int) -> dict[int, float]:
    return {seed: sum(made_matrix(3, seed + draw, shift)[-1]) / 3 for seed in range(seeds)}


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# ---------------------------------------------------------------- CSV and data frames


def test_csv_has_one_line_per_comparison_setting_and_metric(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a")
    write_run(tmp_path / "b", made_config("finetune"), {setting: made_matrix(4) for setting in SETTINGS})
    report = read_report(tmp_path)
    rows = rows_of(csv_text(comparison_rows(report)))
    assert len(rows) == 2 * 2 * 8
    row = next(row for row in rows if (row["method"], row["setting"], row["metric"]) == ("icarl", TI, AA))
    expected = report.comparisons[0].row(TI)
    assert float(row["host_mean"]) == expected.left.mean
    assert float(row["flashback_deviation"]) == expected.right.deviation
    assert (float(row["p"]), float(row["t"])) == (expected.test.p, expected.test.t)
    assert (row["pairs"], row["host_seeds"], row["budget"]) == ("3", "3", "equal budget")
    alone = next(row for row in rows if row["method"] == "finetune")
    assert (alone["flashback_mean"], alone["p"], alone["budget"]) == ("", "", "budget unknown")


def test_csv_holds_no_formulas(tmp_path: Path) -> None:
    write_run(tmp_path / "a", made_config("=1+1"), {setting: made_matrix(2) for setting in SETTINGS})
    assert rows_of(csv_text(comparison_rows(read_report(tmp_path))))[0]["host"] == "'=1+1"


def test_csv_has_a_setting_of_both_arms_where_they_differ(tmp_path: Path) -> None:
    for arm, rate in (("host", 0.001), ("flashback", 0.1)):
        config = made_config(recipe="improved", training__lr=rate, flashback__enabled=arm == "flashback")
        write_run(tmp_path / "a" / arm, config, {setting: made_matrix(2) for setting in SETTINGS})
    write_comparison(tmp_path / "b", "lucir", seeds=1, training__lr=0.3)
    rows = rows_of(csv_text(comparison_rows(read_report(tmp_path))))
    assert {row["host"]: row["training.lr"] for row in rows} == {"icarl": "0.001 / 0.1", "lucir": "0.3"}


def test_runs_are_listed_by_setting_classifier_metric_and_cell(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=2, tasks=3, training__lr=0.1)
    write_comparison(tmp_path / "b", seeds=2, tasks=3, training__lr=0.2)
    report = read_report(tmp_path)
    metrics, cells = rows_of(csv_text(metric_rows(report))), rows_of(csv_text(accuracy_rows(report)))
    assert len(metrics) == 8 * 2 * 12
    assert len(cells) == len(accuracy_rows(report)) == 8 * 2 * 6
    assert {row["training.lr"] for row in metrics} == {"0.1", "0.2"}
    content = json.loads((tmp_path / "a/flashback/seed-1/results.json").read_text())
    for row in cells:
        if row["folder"] == "a/flashback/seed-1":
            matrix = content[row["setting"]]["matrix"]
            assert float(row["accuracy"]) == matrix[int(row["after_task"]) - 1][int(row["task"]) - 1]
    run = next(row for row in run_rows(report) if (row["folder"], row["setting"]) == ("a/flashback/seed-1", CI))
    assert run[AA] == pytest.approx(content[CI][AA])
    assert (run["arm"], run["seed"], run["classifier"], run["training.lr"]) == ("flashback", 1, "linear", 0.1)


def test_accuracy_by_class_is_listed_where_it_is_recorded(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    facts: dict[str, Any] = {"class_order": [1, 0], "data": {"class_names": ["bee", "ant"]}}
    write_run(tmp_path / "a", made_config(), matrices, confusion=[[8, 2], [5, 15]], **facts)
    write_run(tmp_path / "b", made_config("lucir"), matrices)
    report = read_report(tmp_path)
    result = [(row["class"], row["images"], row["accuracy"]) for row in class_rows(report)]
    assert result == [("bee", 10, 80.0), ("ant", 20, 75.0)]
    (table,) = classes_table(report)
    assert table.columns == ("class", "icarl")
    assert table.rows[""] == [["bee", "80.00"], ["ant", "75.00"]]
    assert "| bee | 80.00 |" in markdown(report)
    assert tmp_path / "out.classes.csv" in write_report(report, tmp_path / "out", "classes-csv")


def test_a_class_without_test_images_has_no_accuracy(tmp_path: Path) -> None:
    facts: dict[str, Any] = {"class_order": [0, 1], "data": {"class_names": ["ant", "bee"]}}
    matrices = {setting: made_matrix(2) for setting in SETTINGS}
    write_run(tmp_path / "a", made_config(), matrices, confusion=[[8, 2], [0, 0]], **facts)
    report = read_report(tmp_path)
    assert [row["accuracy"] for row in class_rows(report)] == [80.0, None]
    assert classes_table(report)[0].rows[""] == [["ant", "80.00"], ["bee", "–"]]


# ---------------------------------------------------------------- tables


def test_the_results_hold_means_deviations_difference_and_p(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=6, gain=9)
    report = read_report(tmp_path, metrics=["AA"])
    row, (cells,) = report.pairings[0].row(CI), results_table(report).rows[CI]
    assert cells[2] == f"{row.left.mean:.2f} ± {row.left.deviation:.2f}"
    assert cells[4] == f"{row.test.difference:+.2f}"
    assert cells[4].kind == "better significant"  # type: ignore[attr-defined]
    assert cells[7] == "6"
    host, flashback, difference = arms_table(report).rows[CI]
    assert [host[2], flashback[2]] == cells[2:4]
    assert difference[2].startswith(f"{cells[4]} (")


@pytest.mark.parametrize(("difference", "word"), [(0.004, ""), (-0.004, ""), (None, ""), (0.01, "better")])
def test_a_difference_that_is_written_as_zero_has_no_direction(difference: float | None, word: str) -> None:
    assert direction(AA, difference) == word
    assert direction("forgetting", difference) == {"better": "worse"}.get(word, "")


def test_zero_has_no_sign() -> None:
    row = Row.of(CI, AA, Sample.of({0: 1.0, 1: 2.0}), Sample.of({0: 1.0, 1: 2.0 - 1e-12}))
    assert result_row("x", row)[4] == "+0.00"


def test_only_the_best_of_a_protocol_is_bold_and_no_bound(tmp_path: Path) -> None:
    for k, host in enumerate(("icarl", "lucir", "xder")):
        write_host(tmp_path / host, host, seeds=1, shift=k)
    write_host(tmp_path / "joint", "joint", seeds=1, shift=9)
    path = tmp_path / "joint" / "seed-0" / "results.json"
    content = json.loads(path.read_text())
    for setting in SETTINGS:
        content[setting]["average_incremental_accuracy"] = None
    path.write_text(json.dumps(content))
    write_host(tmp_path / "short", "replay", seeds=1, shift=7, benchmark__tasks=2)
    report = read_report(tmp_path, metrics=["AA"])
    bold = {t.title: [row[0] for row in t.rows[CI] if "best" in row[2].kind] for t in methods_tables(report, [AA])}  # type: ignore[attr-defined]
    assert bold == {"Methods on split-cifar100": ["xder"], "Methods on split-cifar100 (2 tasks)": []}
    text = latex(report)
    assert text.count(r"\textbf{") == 2
    assert r"\emph{split-cifar100 (2 tasks)}" in text
    ranked = report.ranked(CI)["split-cifar100"]
    assert [method.name for method in ranked] == ["joint", "xder", "lucir", "icarl"]


def test_methods_are_ranked_together_where_they_could_be_tested(tmp_path: Path) -> None:
    for k, changes in enumerate(
        [{}, {}, {"benchmark__order": 3}, {"benchmark__sizes": [1, 2]}, {"benchmark__validation": 0.1}]
    ):
        write_host(tmp_path / str(k), f"host{k}", seeds=1, **changes)
    write_host(tmp_path / "data", "other", seeds=1, run={"data_checksum": "0123456789"})
    report = read_report(tmp_path)
    pairs = list(combinations(report.methods, 2))
    for one, two in pairs:
        assert (one.protocol == two.protocol) == (not obstacles(compare_methods(one, two)))
    assert len(set(report.protocols.values())) == 5


def test_names_cannot_break_markdown_or_latex(tmp_path: Path) -> None:
    write_comparison(tmp_path, NASTY, seeds=1)
    report = read_report(tmp_path)
    assert plain(NASTY) in markdown(report)
    assert all(line.count(" | ") == 9 for line in markdown(report).splitlines() if line.startswith("| a"))
    assert escaped(NASTY) in latex(report)
    assert escaped("-1.50 50%") == r"$-$1.50 50\%"


@pytest.mark.parametrize(
    ("out", "form", "expected"),
    [
        ("r.html", "html", ["r.html"]),
        ("r.html", "md", ["r.md"]),
        ("r.tex", "latex", ["r.tex"]),
        ("mine", "csv", ["mine.csv"]),
        ("v1.5", "runs-csv", ["v1.5.runs.csv"]),
        ("r.html", "all", ["r.html", "r.md", "r.tex", "r.csv", "r.runs.csv", "r.tasks.csv"]),
    ],
)
def test_files_are_written_where_they_were_asked_for(out: str, form: str, expected: list[str], tmp_path: Path) -> None:
    write_host(tmp_path / "runs", "icarl", seeds=1)
    written = write_report(read_report(tmp_path / "runs"), tmp_path / "deep" / out, form)
    assert [path.name for path in written] == expected
    assert all(path.exists() for path in written)


@pytest.mark.parametrize(
    ("form", "words"),
    [("pdf", "unknown format"), ("classes-csv", "no accuracies by class"), ("against-csv", "needs a method")],
)
def test_forms_that_cannot_be_written_are_refused(form: str, words: str, tmp_path: Path) -> None:
    write_host(tmp_path / "runs", "icarl", seeds=1)
    with pytest.raises(FlashbackError, match=words):
        write_report(read_report(tmp_path / "runs"), tmp_path / "out", form)


# ---------------------------------------------------------------- tests of significance


def test_one_method_against_another_is_the_paired_test_by_seed(tmp_path: Path) -> None:
    write_host(tmp_path / "a", "icarl", seeds=4)
    write_host(tmp_path / "b", "lucir", seeds=3, shift=2, draw=9)
    write_host(tmp_path / "c", "xder", seeds=3, shift=4, draw=40)
    report = read_report(tmp_path, against="icarl")
    base = averages(4, 0, 0)
    expected = {"lucir": paired_test(base, averages(3, 2, 9)), "xder": paired_test(base, averages(3, 4, 40))}
    assert {test.right.name: test.row(TI).test for test in report.baseline_comparisons} == expected
    adjusted = dict(zip(expected, holm([test.p or 1 for test in expected.values()]), strict=True))
    rows = [row for row in rows_of(csv_text(against_rows(report))) if (row["metric"], row["setting"]) == (AA, TI)]
    assert {row["method"] for row in rows} == {"lucir", "xder"}
    for row in rows:
        assert float(row["p_adjusted"]) == pytest.approx(adjusted[row["method"]])
        assert (row["against"], row["pairs"], row["against_seeds"], row["method_seeds"]) == ("icarl", "3", "4", "3")


def test_what_else_differs_is_named_beside_a_test(tmp_path: Path) -> None:
    write_host(tmp_path / "a", "mine")
    write_host(tmp_path / "b", "yours", shift=2, draw=9, training__lr=0.1, run={"must_match": {"torch": "3.0"}})
    report = read_report(tmp_path, against="mine")
    (test,) = report.baseline_comparisons
    assert "training.lr, device, torch" in test.answer(CI)
    assert "Flashback" not in test.answer(CI)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"host__memory_size": 10}, "host.memory_size differs"),
        ({"benchmark__tasks": 3}, "tasks differs"),
        ({"benchmark__order": [1, 0]}, "order differs"),
    ],
)
def test_methods_on_other_tasks_or_with_another_memory_are_not_tested(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    write_host(tmp_path / "a", "mine")
    write_host(tmp_path / "b", "yours", **changes)
    report = read_report(tmp_path, against="mine")
    assert report.baseline_comparisons == []
    assert report.untested_remarks[0].endswith(f"is not tested against mine: {reason}.")


def test_of_several_settings_the_most_alike_is_the_baseline(tmp_path: Path) -> None:
    for memory in (100, 200):
        for host in ("mine", "yours"):
            write_host(tmp_path / f"{host}-{memory}", host, host__memory_size=memory)
    tests = read_report(tmp_path, against="mine").baseline_comparisons
    assert {(one.right.name, one.left.name) for one in tests} == {
        (f"yours (host.memory_size {memory})", f"mine (host.memory_size {memory})") for memory in (100, 200)
    }


def test_an_unknown_baseline_is_refused(tmp_path: Path) -> None:
    write_host(tmp_path, "mine", seeds=1)
    with pytest.raises(FlashbackError, match="unknown method 'lucir'; known: mine"):
        read_report(tmp_path, against="lucir")


def mean_averages(folder: Path, arm: str, setting: str) -> float:
    matrices = [json.loads(p.read_text())[setting]["matrix"] for p in (folder / arm).glob("*/results.json")]
    return sum(sum(matrix[-1]) / len(matrix) for matrix in matrices) / len(matrices)


def test_the_test_over_methods_pairs_methods_and_settings(tmp_path: Path) -> None:
    hosts = ("icarl", "lucir", "xder")
    for host in hosts:
        write_comparison(tmp_path / host, host, gain=len(host))
    write_comparison(tmp_path / "short", "oewc", benchmark__tasks=4)
    expected = paired_over_methods(
        *(
            {h: {s: mean_averages(tmp_path / h, arm, s) for s in SETTINGS} for h in hosts}
            for arm in ("host", "flashback")
        )
    )
    report = read_report(tmp_path)
    test = report.over_methods("split-cifar100")
    assert test is not None
    assert (test.pairs, test.t) == (6, pytest.approx(expected.t))
    write_comparison(tmp_path / "again", "xder", training__lr=0.01)  # a method that ran twice does not count
    twice = read_report(tmp_path).over_methods("split-cifar100")
    assert twice is not None
    assert twice.pairs == 4


def test_the_test_over_tasks_uses_means_over_common_seeds(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    write_run(tmp_path / "odd", made_config(seed=7), {setting: made_matrix(4, 7, -60) for setting in SETTINGS})
    means = []
    for arm in ("host", "flashback"):
        rows = [json.loads(path.read_text())[TI]["matrix"] for path in (tmp_path / arm).glob("*/results.json")]
        means.append([[(a + b) / 2 for a, b in zip(*both, strict=True)] for both in zip(*rows, strict=True)])
    test = over_tasks(read_report(tmp_path).pairings[0], TI)
    assert (test.pairs, test.p) == (4, pytest.approx(paired_over_tasks(*means).p))


# ---------------------------------------------------------------- what the report says about its runs


def test_settings_that_all_share_are_named_once(tmp_path: Path) -> None:
    for host in ("icarl", "lucir"):
        write_comparison(tmp_path / host, host, seeds=1, training__epochs=2, host__net="mynet")
    report: Report = read_report(tmp_path)
    assert [pairing.name for pairing in report.pairings] == ["icarl", "lucir"]
    assert set(report.shared_changes.split(", ")) >= {"2 epochs", "host.net mynet"}


def test_every_text_says_what_differs_between_the_arms(tmp_path: Path) -> None:
    for arm, rate, steps in (("host", 0.3, 640), ("flashback", 0.1, 700)):
        config = made_config(recipe="improved", training__lr=rate, flashback__enabled=arm == "flashback")
        write_run(tmp_path / arm, config, {setting: made_matrix(2) for setting in SETTINGS}, steps=steps)
    report = read_report(tmp_path)
    for text in (html_page(report), markdown(report)):
        assert "unequal budget" in text
        assert "the arms differ in training.lr" in text
    captions = [line for line in latex(report).splitlines() if "caption" in line]
    assert len(captions) == 2
    assert all("icarl: unequal budget. icarl: the arms differ in training.lr" in caption for caption in captions)


def test_runs_that_differ_are_named_without_a_comparison_too(tmp_path: Path) -> None:
    for seed, device in enumerate(("one", "two")):
        config, matrices = made_config(seed=seed), {setting: made_matrix(2) for setting in SETTINGS}
        write_run(tmp_path / device, config, matrices, must_match={"device": device})
    assert "\n% icarl: the runs differ in device.\n" in latex(read_report(tmp_path))


def test_links_to_runs_are_not_followed_but_named(tmp_path: Path) -> None:
    write_comparison(tmp_path / "elsewhere", seeds=1)
    write_host(tmp_path / "runs" / "lucir", "lucir", seeds=1)
    (tmp_path / "empty").mkdir()
    targets = {"run": "elsewhere/host/seed-0", "both": "elsewhere", "known": "runs/lucir", "up": "", "empty": "empty"}
    for name, target in targets.items():
        (tmp_path / "runs" / f"link-{name}").symlink_to(tmp_path / target, target_is_directory=True)
    report = read_report(tmp_path / "runs")
    assert [run.name for run in report.runs] == ["lucir/seed-0"]
    assert list(report.skipped) == ["link-both", "link-run", "link-up"]
    assert "link, which is not followed" in report.skipped["link-run"]
    assert read_report(tmp_path).skipped == {}
    assert len(read_report(tmp_path / "runs" / "link-both").runs) == 2  # given by the user


def test_runs_of_different_code_are_not_compared_and_are_named(tmp_path: Path) -> None:
    for arm, code in (("host", "a" * 16), ("flashback", "b" * 16)):
        config = made_config(flashback__enabled=arm == "flashback")
        matrices = {setting: made_matrix(4) for setting in SETTINGS}
        write_run(tmp_path / arm, config, matrices, must_match={"code": code}, changed_on_resume=["torch"])
    report = read_report(tmp_path)
    assert report.comparisons == []
    assert [remark for remark in report.code_remarks if "aaaaaaaa, bbbbbbbb" in remark]
    assert [remark for remark in report.code_remarks if remark.startswith("host was resumed")]


def test_frontiers_of_one_host_have_different_headings_and_name_their_failures(tmp_path: Path) -> None:
    for name in ("two", "four"):
        (tmp_path / name).mkdir()
        frontier = write_frontier(tmp_path / name)
    failed = replace(frontier, failures={"host alone, seed 1": "out of memory"})
    (tmp_path / "four" / "frontier.json").write_text(json.dumps(failed.as_dict()))
    report = read_report(tmp_path)
    headings = [frontier.title for frontier in report.frontiers]
    assert headings == [f"icarl on split-cifar100 (folder {name})" for name in ("four", "two")]
    text = markdown(report)
    assert all(heading in text for heading in headings)
    assert text.count("host alone, seed 1 failed: out of memory") == 1
