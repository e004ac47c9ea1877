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
