"""Published values from a YAML file beside ours."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import yaml
from made_runs import SETTINGS, write_comparison

from flashback.benchmarks.specs import BENCHMARKS
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.reports import read_report, write_report
from flashback.reports.page import html_page
from flashback.reports.references import read_references
from flashback.reports.tables import references_table

PAPER = Path(__file__).parents[2] / "reproduction" / "paper-values.yaml"


def write_references(path: Path, **cell: Any) -> Path:
    table = {
        "where": "Table 9",
        "setting": SETTINGS[0],
        "metric": "average_accuracy",
        "cells": {"split-cifar100": {"icarl": {"host": 50.0, "flashback": 53.5, **cell}}},
        "references": {"split-cifar100": {"Another": {"host": 60.0}}},
    }
    path.write_text(yaml.safe_dump({"tables": [table]}))
    return path


def test_published_values_stand_beside_ours(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs")
    file = write_references(tmp_path / "r.yaml", deviation=[0.5, 0.25], quoted=True, note="mind this")
    report = read_report(tmp_path / "runs", references=file)
    table = references_table(report)
    (row,) = table.rows[SETTINGS[0]]
    assert row[:4] == ["icarl", "AA", "Table 9", "50.00 ± 0.50 (quoted)"]
    assert (row[5], row[7]) == ("53.50 ± 0.25", "+3.50")
    assert "icarl: mind this" in table.notes
    assert any("Another" in note for note in table.notes)
    files = write_report(report, tmp_path / "out.html", "all")
    assert all("Table 9" in path.read_text() for path in files if path.name in ("out.html", "out.md", "out.csv"))


def test_published_values_are_numbers_in_csv(tmp_path: Path) -> None:
    write_comparison(tmp_path / "runs")
    file = write_references(tmp_path / "r.yaml", host=-12.5)
    (path,) = write_report(read_report(tmp_path / "runs", references=file), tmp_path / "out.csv", "csv")
    first = next(csv.DictReader(path.open()))
    assert (first["host_published"], first["flashback_published"]) == ("-12.5", "53.5")


def test_without_a_file_no_published_value_is_shown(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    report = read_report(tmp_path)
    assert not references_table(report)
    assert 'id="published-values"' not in html_page(report)


@pytest.mark.parametrize(
    ("changes", "when", "expected"),
    [
        ({}, {"host.net": "resnet18"}, True),
        ({}, {"host.net": "resnet32"}, False),
        ({}, {"host.no_such_setting": None}, True),
        ({"benchmark__tasks": 4}, {}, False),  # shorter than the benchmark
        ({"benchmark__validation": 0.1}, {}, False),
        ({"training__epochs": 3}, {}, False),
        ({"training__lr": 7.0}, {}, True),
        ({"flashback__alpha": 7.0}, {}, False),  # another flashback than the recipe's
        ({"flashback__alpha": 7.0}, {"flashback.alpha": 7.0}, True),
        ({}, {"flashback.alpha": 0.01}, False),
    ],
)
def test_values_stand_beside_the_runs_they_are_about(
    changes: dict[str, Any], when: dict[str, Any], expected: bool, tmp_path: Path
) -> None:
    write_comparison(tmp_path / "runs", seeds=1, **changes)
    report = read_report(tmp_path / "runs", references=write_references(tmp_path / "r.yaml", when=when))
    assert bool(report.references_beside) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "cannot be read"),
        ("[]", "has no list of tables"),
        ("tables: [{setting: x}]", "table 1 of .* is not complete"),
        ("tables: [{where: here, setting: x, metric: y, cells: {}}]", "no such setting or metric"),
    ],
)
def test_a_broken_file_is_refused_in_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(FlashbackError, match=words):
        read_references(tmp_path / "r.yaml")
    with pytest.raises(FlashbackError, match="cannot be read"):
        read_references(tmp_path / "nowhere.yaml")


def test_the_paper_s_values_name_hosts_and_benchmarks_that_exist() -> None:
    references = read_references(PAPER)
    assert len(references.values) == 132
    for one in references.values:
        assert one.host in HOSTS
        assert one.benchmark in BENCHMARKS
        assert one.value.keys() <= {"host", "flashback"}
        assert all(0 <= value <= 100 for value in one.value.values())
