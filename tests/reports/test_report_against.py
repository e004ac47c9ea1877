from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.errors import FlashbackError
from flashback.metrics import paired_test
from flashback.metrics.statistics import holm
from flashback.reports import html_page, markdown_tables, read_report, write_report
from flashback.reports.against import tested_against as versus_of
from flashback.reports.against import untested
from flashback.reports.markdown import plain
from flashback.reports.tables import csv_against

CI, TI = SETTINGS
AA = "average_accuracy"


def write_host(folder: Path, host: str, seeds: int = 3, shift: float = 0.0, draw: int = 0, **changes: Any) -> None:
    run = changes.pop("run", {})
    for seed in range(seeds):
        matrices = {setting: made_matrix(3, seed + draw, shift) for setting in SETTINGS}
        write_run(folder / f"seed-{seed}", made_config(host, seed=seed, **changes), matrices, **run)


def averages(seeds: int, shift: float, draw: int) -> dict[int, float]:
    return {seed: sum(made_matrix(3, seed + draw, shift)[-1]) / 3 for seed in range(seeds)}


def test_one_method_against_another_is_the_paired_test_by_seed(tmp_path: Path) -> None:
    write_host(tmp_path / "a", "icarl", seeds=4)
    write_host(tmp_path / "b", "lucir", seeds=3, shift=2, draw=9)
    write_host(tmp_path / "c", "xder", seeds=3, shift=4, draw=40)
    report = read_report([tmp_path], against="icarl")
    tests = {one.method.name: one.row(TI).test for one in versus_of(report)}
    base = averages(4, 0, 0)
    expected = {"lucir": paired_test(base, averages(3, 2, 9)), "xder": paired_test(base, averages(3, 4, 40))}
    assert tests == expected
    rows = [
        row for row in csv.DictReader(io.StringIO(csv_against(report))) if (row["metric"], row["setting"]) == (AA, TI)
    ]
    adjusted = dict(zip(expected, holm([test.p or 1 for test in expected.values()]), strict=True))
    for row in rows:
        assert float(row["p_adjusted"]) == pytest.approx(adjusted[row["method"]])
        assert float(row["p"]) == pytest.approx(expected[row["method"]].p)
        assert (row["against"], row["pairs"], row["against_seeds"], row["method_seeds"]) == ("icarl", "3", "4", "3")
    assert {row["method"] for row in rows} == {"lucir", "xder"}


def test_every_form_names_both_methods_and_what_else_differs(tmp_path: Path) -> None:
    write_host(tmp_path / "a", "mine")
    write_host(tmp_path / "b", "yours", shift=2, draw=9, training__lr=0.1, run={"must_match": {"torch": "3.0"}})
    report = read_report([tmp_path / "a", tmp_path / "b"], against="mine")
    (versus,) = versus_of(report)
    assert versus.differing == ["training.lr", "device", "torch"]
    sentence = versus.answer(CI)
    assert "equal budget (they also differ in training.lr, device, torch): " in sentence
    assert "Flashback" not in sentence
    for write in (markdown_tables, html_page):
        text = write(report).replace("\\_", "_")
        assert sentence in text
        assert "yours against mine" in text
        assert "yours against mine" not in write(read_report([tmp_path]))
    names = [path.name for path in write_report(report, tmp_path / "out.html", "all")]
    assert "out.against.csv" in names


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
    report = read_report([tmp_path], against="mine")
    assert versus_of(report) == []
    (said,) = untested(report)
    assert said.startswith("yours")
    assert said.endswith(f"is not tested against mine: {reason}.")
    assert plain(said) in markdown_tables(report)


def test_a_method_is_tested_against_the_setting_of_the_other_that_is_most_alike(tmp_path: Path) -> None:
    for memory in (100, 200):
        for host in ("mine", "yours"):
            write_host(tmp_path / f"{host}-{memory}", host, host__memory_size=memory)
    found = versus_of(read_report([tmp_path], against="mine"))
    assert {(one.method.name, one.base.name) for one in found} == {
        (f"yours (host.memory_size {memory})", f"mine (host.memory_size {memory})") for memory in (100, 200)
    }


def test_a_choice_between_equals_is_left_to_the_user(tmp_path: Path) -> None:
    for rate in (0.1, 0.2):
        write_host(tmp_path / f"mine-{rate}", "mine", training__lr=rate)
    write_host(tmp_path / "yours", "yours", training__lr=0.3)
    with pytest.raises(FlashbackError, match=r"several methods; name one of: mine \(training.lr 0.1\), mine"):
        versus_of(read_report([tmp_path], against="mine"))
    (one, other) = versus_of(read_report([tmp_path], against="mine (training.lr 0.1)"))
    assert {one.base.name, other.base.name} == {"mine (training.lr 0.1)"}


def test_the_arm_with_flashback_is_a_method_too(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", "icarl", seeds=3)
    (versus,) = versus_of(read_report([tmp_path], against="icarl with flashback"))
    (pairing,) = read_report([tmp_path]).pairings
    difference, other = versus.row(CI).test.difference, pairing.row(CI).test.difference
    assert difference is not None
    assert other is not None
    assert difference == pytest.approx(-other)
    with pytest.raises(FlashbackError, match="unknown method 'lucir'; known: icarl, icarl with flashback"):
        read_report([tmp_path], against="lucir")


def test_a_short_name_stands_for_the_settings_of_its_arm(tmp_path: Path) -> None:
    for memory in (100, 200):
        write_comparison(tmp_path / str(memory), "mine", seeds=2, host__memory_size=memory)
    for name, base in (("mine", "mine"), ("mine with flashback", "mine with flashback")):
        found = versus_of(read_report([tmp_path], against=name))
        assert {one.base.name for one in found} == {f"{base} (host.memory_size {memory})" for memory in (100, 200)}
