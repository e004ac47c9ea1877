from __future__ import annotations

import pytest
from made_runs import made_config

from flashback.benchmarks import describe_benchmarks
from flashback.hosts import HOSTS
from flashback.reports.printed import (
    implied_new_task_accuracies,
    inconsistencies,
    printed_for,
    printed_tests,
    printed_values,
    references,
    references_beside,
)
from flashback.reports.words import TITLES

BENCHMARKS = [str(row["name"]) for row in describe_benchmarks()]


def test_every_value_names_what_there_is() -> None:
    for printed in printed_values():
        assert printed.benchmark in BENCHMARKS
        assert printed.host in HOSTS
        assert printed.metric in TITLES
        assert printed.where.startswith("Table ")
        assert 0 < min(printed.value.values()) <= max(printed.value.values()) < 100
    assert set(printed_tests()) <= set(BENCHMARKS)


def test_references_are_of_methods_that_cannot_be_run() -> None:
    for reference in references():
        assert reference.benchmark in BENCHMARKS
        assert reference.host not in HOSTS
        assert reference.text("host").endswith("(quoted)")
    assert {reference.host for reference in references()} == {"DyTox"}


@pytest.mark.parametrize(
    ("host", "benchmark", "beside"),
    [
        (
            "foster",
            "cifar100-b0-10",
            ["DyTox on cifar100-b0-10, class-incremental average accuracy: 57.76"],
        ),
        ("foster", "cifar100-b50-10", []),
        ("lucir", "cifar100-b50-2", []),
        ("icarl", "split-cifar100", []),
    ],
)
def test_references_stand_beside_values_of_their_table(host: str, benchmark: str, beside: list[str]) -> None:
    sentences = references_beside(printed_for(made_config(host, benchmark)))
    assert len(sentences) == len(beside)
    for sentence, expected in zip(sentences, beside, strict=True):
        assert sentence.startswith(expected)
        assert "(quoted) in Table " in sentence


def test_aanets_are_quoted_without_flashback() -> None:
    """Table 5, the three protocols in their order."""
    protocols = [f"cifar100-b50-{step}" for step in (10, 5, 2)]
    for name, row in (
        ("icarl-aanets", ["64.22 ± 0.42", "60.26 ± 0.73", "56.43 ± 0.81"]),
        ("lucir-aanets", ["66.74 ± 0.37", "65.29 ± 0.43", "63.50 ± 0.61"]),
    ):
        cells = [cell for protocol in protocols for cell in printed_for(made_config(name, protocol))]
        assert {cell.where for cell in cells} == {"Table 5"}
        assert [cell.text("host") for cell in cells] == [f"{value} (quoted)" for value in row]
        assert not any(cell.text("flashback") for cell in cells)


def test_the_rows_of_the_table_of_the_state_of_the_art() -> None:
    """Table 4, host alone; a dash where the paper has one."""
    printed = {
        "joint": "- - 81.50 81.50",
        "replay": "41.01 41.26 41.00 43.38",
        "icarl": "49.52 52.04 50.98 53.69",
        "bic": "50.79 49.19 42.40 49.90",
        "wa": "52.30 55.85 55.04 56.64",
        "podnet": "- - 45.40 62.94",
        "der-expansion": "58.59 61.94 66.84 71.10",
        "foster": "62.54 64.01 70.14 75.52",
        "beef": "60.98 65.24 68.78 70.98",
        "beef-compress": "61.45 64.54 71.12 74.62",
    }
    benchmarks = ["cifar100-b0-10", "cifar100-b50-10", "imagenet100-b0-10", "imagenet100-b50-10"]
    found = {(cell.host, cell.benchmark): cell for cell in printed_values() if cell.where == "Table 4"}
    assert all("host" in cell.quoted for cell in found.values())
    for host, row in printed.items():
        cells = [found.get((host, benchmark)) for benchmark in benchmarks]
        assert [f"{cell.value['host']:.2f}" if cell else "-" for cell in cells] == row.split()
    assert {host for host, _ in found} == set(printed)


@pytest.mark.parametrize(
    ("host", "benchmark", "memory", "expected"),
    [
        ("icarl", "split-cifar100", 2000, {("Table 1", 49.82, 53.2), ("Table 2", 83.99, 86.77),
                                           ("Table 8", 27.47, 23.07), ("Table 10", 37.47, 33.07)}),
        ("icarl", "split-cifar100", 500, {("Table 8", 44.94, 48.19), ("Table 8", 31.71, 24.51)}),
        ("icarl", "split-cifar100", 300, set()),
        ("oewc", "split-tinyimagenet", 0, {("Table 1", 7.58, 8.85), ("Table 2", 19.2, 21.01)}),
        ("lucir", "cifar100-b50-2", 0, {("Table 5", 57.54, 64.05)}),
        ("beef-compress", "imagenet100-b50-10", 0, {("Table 4", 74.62, 79.82)}),
        ("icarl", "split-fashion-mini", 2000, set()),
    ],
)  # fmt: skip
def test_values_are_found_for_the_runs_they_are_about(
    host: str, benchmark: str, memory: int, expected: set[tuple[str, float, float]]
) -> None:
    found = printed_for(made_config(host, benchmark, host__memory_size=memory))
    assert {(cell.where, cell.value["host"], cell.value["flashback"]) for cell in found} == expected


@pytest.mark.parametrize("host", ["icarl", "lucir"])
def test_runs_with_so_many_images_a_class_are_not_those_with_a_fixed_memory(host: str) -> None:
    assert printed_for(made_config(host))
    assert printed_for(made_config(host, host__memory_per_class=5)) == []


def test_a_quoted_value_says_so_and_names_the_own_run() -> None:
    (cell,) = [c for c in printed_for(made_config("xder", "split-cifar100")) if c.where == "Table 1"]
    assert cell.text("host") == "59.14 (quoted), 57.57 (own run)"
    assert cell.text("flashback") == "58.02"


@pytest.mark.parametrize(
    ("benchmark", "parts"),
    [
        ("split-cifar10", [("xder", "printed +2.64", "+2.22")]),
        ("split-cifar100", [("xder", "printed +0.45", "-1.12", "57.57"), ("t-test", "t = 4.34", "3.10", "3.82")]),
        ("split-tinyimagenet", [("t-test", "t = 5.74", "5.94"), ("icarl", "27.32 and 31.18", "33.18 and 35.16")]),
        ("imagenet100-b50-10", [("beef-compress", "printed +4.20", "+5.20")]),
        ("cifar100-b50-10", []),
        ("split-fashion-mini", []),
    ],
)
def test_what_does_not_follow_from_the_tables_is_found(benchmark: str, parts: list[tuple[str, ...]]) -> None:
    sentences = inconsistencies([benchmark])
    assert len(sentences) == len(parts)
    for sentence, expected in zip(sentences, parts, strict=True):
        assert all(part in sentence for part in expected)
        assert "None" not in sentence
        assert "memory_per_class" not in sentence


def test_forgetting_and_ratio_imply_the_accuracy_on_the_last_task() -> None:
    (sentence,) = implied_new_task_accuracies(["split-cifar100"])
    assert "73.3 without and 69.8 with flashback" in sentence  # 100 * 27.47 / 37.47 and 100 * 23.07 / 33.07
