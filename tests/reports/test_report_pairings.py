from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.config import to_dict
from flashback.metrics import (
    average_accuracy,
    deviation,
    mean,
    paired_over_methods,
    paired_over_tasks,
    paired_test,
    verdict,
)
from flashback.recipes import configure
from flashback.reports import csv_table, read_report
from flashback.reports.page import html_page
from flashback.reports.pairings import Outcome, Pairing
from flashback.reports.payload import payload
from flashback.reports.sections import remarks
from flashback.reports.tables import markdown_tables
from flashback.studies.comparison import has_equal_budget

CI, TI = SETTINGS
SPR = "stability_plasticity_ratio"


def only(folder: Path) -> Pairing:
    (pairing,) = read_report([folder]).pairings
    return pairing


def averages(folder: Path, arm: str, setting: str) -> dict[int, float]:
    """By hand: the average accuracy of each seed, from the files alone."""
    found = {}
    for path in (folder / arm).glob("seed-*/results.json"):
        matrix = json.loads(path.read_text())[setting]["matrix"]
        found[int(path.parent.name.removeprefix("seed-"))] = sum(matrix[-1]) / len(matrix)
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_arms_are_compared_by_seed(setting: str, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=4)
    pairing = only(tmp_path)
    host, flashback = (averages(tmp_path, arm, setting) for arm in ("host", "flashback"))
    row = pairing.row(setting)
    assert pairing.seeds == [0, 1, 2, 3]
    assert row.mean == pytest.approx(
        {"host": np.mean(list(host.values())), "flashback": np.mean(list(flashback.values()))}
    )
    assert row.deviation["host"] == pytest.approx(np.std(list(host.values()), ddof=1))
    assert row.test.p == pytest.approx(paired_test(host, flashback).p)
    assert verdict(paired_test(host, flashback)) in pairing.answer(setting)


def test_the_answer_names_setting_budget_and_pairs(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=6, gain=8)
    answer = only(tmp_path).answer(CI)
    assert answer.startswith("Average accuracy, class-incremental, equal budget: Flashback is significantly better")
    assert "6 pairs (one per seed)" in answer


def test_a_seed_of_one_arm_alone_makes_no_pair(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    write_run(tmp_path / "more", made_config(seed=7), {setting: made_matrix(4) for setting in SETTINGS})
    pairing = only(tmp_path)
    assert pairing.seeds == [0, 1, 7]
    assert len(pairing.of("host")) == 3
    assert pairing.row(CI).test.pairs == 2


def write_odd_seed(folder: Path, host: str = "icarl", seed: int = 7, **changes: Any) -> None:
    """A run of one arm alone, far from all others."""
    odd = {setting: made_matrix(4, seed, shift=-60.0) for setting in SETTINGS}
    write_run(folder / f"odd-{seed}", made_config(host, seed=seed, **changes), odd)


def test_a_seed_of_one_arm_alone_counts_for_its_mean_and_is_named(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=3)
    assert read_report([tmp_path]).seed_remarks == []
    before = only(tmp_path).row(CI)
    write_odd_seed(tmp_path)
    write_odd_seed(tmp_path, seed=5, flashback__enabled=True)
    write_odd_seed(tmp_path, seed=4, flashback__enabled=True)
    after = only(tmp_path).row(CI)
    assert after.mean["host"] != before.mean["host"]
    assert after.matched == before.matched == before.mean
    assert after.test == before.test
    assert read_report([tmp_path]).seed_remarks == [
        "icarl: Seeds that only one arm has (host: seed 7; with flashback: seeds 4, 5) count for "
        "its mean, not for the difference and its test."
    ]


def test_where_some_seeds_have_no_ratio_there_is_neither_mean_nor_test(tmp_path: Path) -> None:
    """Where earlier tasks gained there is no SPR; a mean of what is left would be one over the seeds that did worse."""
    write_comparison(tmp_path, seeds=3)
    before = only(tmp_path).row(CI, SPR)
    path = tmp_path / "host" / "seed-1" / "results.json"
    results = json.loads(path.read_text())
    results[CI]["matrix"][-1] = [99.0] * 4
    path.write_text(json.dumps(results))
    report = read_report([tmp_path])
    after = report.pairings[0].row(CI, SPR)
    assert after.values["host"] == before.values["host"] | {1: None}
    assert (before.test.pairs, after.test.pairs) == (3, 0)
    assert after.mean == after.deviation == {"host": None, "flashback": None}
    assert after.test.difference is None
    assert report.seed_remarks == [
        "icarl: SPR, class-incremental, has no value at some seeds (host: seed 1), so neither mean nor test: the "
        "others would be a choice by outcome."
    ]
    (line,) = [
        line
        for line in csv.DictReader(io.StringIO(csv_table(report)))
        if (line["setting"], line["metric"]) == (CI, SPR)
    ]
    assert (line["host_seeds"], line["flashback_seeds"], line["pairs"]) == ("2", "3", "0")
    assert report.pairings[0].row(CI).test.pairs == 3


def test_of_one_arm_alone_no_seed_is_remarked_upon(tmp_path: Path) -> None:
    write_odd_seed(tmp_path)
    assert read_report([tmp_path]).seed_remarks == []


def test_one_seed_allows_no_test_and_one_arm_no_comparison(tmp_path: Path) -> None:
    write_comparison(tmp_path / "one", seeds=1)
    assert "Too few pairs for a test" in only(tmp_path / "one").answer(CI)
    write_run(tmp_path / "two", made_config("finetune"), {setting: made_matrix(4) for setting in SETTINGS})
    pairing = only(tmp_path / "two")
    assert pairing.arms == ["host"]
    assert "nothing to compare" in pairing.answer(CI)


def test_unequal_steps_are_an_unequal_budget(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    path = tmp_path / "flashback" / "seed-1" / "run.json"
    path.write_text(path.read_text().replace('"steps": 640', '"steps": 641'))
    assert "unequal budget" in only(tmp_path).answer(CI)


# ---------------------------------------------------------------- what belongs together


def test_other_settings_are_another_question(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", training__lr=0.1)
    write_comparison(tmp_path / "b", training__lr=0.3)
    pairings = read_report([tmp_path]).pairings
    assert [pairing.name for pairing in pairings] == [
        "icarl",  # 0.3 is the rate of the recipe
        "icarl (training.lr 0.1)",
    ]
    assert all(len(pairing.runs) == 6 for pairing in pairings)


def test_how_often_runs_were_saved_does_not_matter(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=1)
    config = made_config(seed=1, checkpoint__minutes=30.0)
    write_run(tmp_path / "b", config, {setting: made_matrix(4) for setting in SETTINGS})
    assert len(only(tmp_path).runs) == 3


def test_variants_of_flashback_share_the_host(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", flashback__alpha=0.01)
    for seed in range(3):
        config = made_config(seed=seed, flashback__enabled=True, flashback__alpha=0.1)
        write_run(tmp_path / f"b{seed}", config, {setting: made_matrix(4, seed, 9) for setting in SETTINGS})
    report = read_report([tmp_path])
    assert [pairing.name for pairing in report.pairings] == [
        "icarl",
        "icarl (flashback.alpha 0.1)",
    ]
    assert len(report.runs) == 9
    assert report.pairings[0].of("host") == report.pairings[1].of("host")
    assert not report.skipped


def test_arms_that_a_recipe_sets_up_differently_still_meet(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    for seed in range(2):
        one = made_config(seed=seed, recipe="as-published", training__schedule="none")
        other = made_config(seed=seed, recipe="as-published", flashback__enabled=True)
        write_run(tmp_path / f"host{seed}", one, matrices)
        write_run(tmp_path / f"flashback{seed}", other, matrices)
    pairing = only(tmp_path)
    assert pairing.row(CI).test.pairs == 2
    assert pairing.comparison.differing_settings == ["training.schedule"]
    assert "equal budget, arms that also differ in training.schedule: " in pairing.answer(CI)


@pytest.mark.parametrize("recipe", ["controlled", "anchor", "defaults", "mine.yaml"])
def test_arms_of_different_settings_meet_where_a_published_recipe_has_them_alone(tmp_path: Path, recipe: str) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    write_run(tmp_path / "host", made_config(recipe=recipe, training__lr=0.03), matrices)
    write_run(tmp_path / "flashback", made_config(recipe=recipe, training__lr=0.5, flashback__enabled=True), matrices)
    pairings = read_report([tmp_path]).pairings
    assert sorted(pairing.arms for pairing in pairings) == [["flashback"], ["host"]]
    assert all("nothing to compare" in pairing.answer(CI) for pairing in pairings)


OTHER_DATA = [({"data_checksum": "0123456789"}, "data 01234567"), ({"class_order": [3, 1, 2]}, "class order [3, 1, 2]")]


@pytest.mark.parametrize("recipe", ["controlled", "as-published"])
@pytest.mark.parametrize(("other", "words"), OTHER_DATA)
def test_arms_that_learned_from_other_data_do_not_meet(
    tmp_path: Path, recipe: str, other: dict[str, Any], words: str
) -> None:
    """Neither with the same settings nor with those that a recipe sets up differently."""
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    for seed in range(2):
        host = made_config(seed=seed, recipe=recipe)
        schedule = "none" if recipe == "as-published" else host["training"]["schedule"]
        flashback = made_config(seed=seed, recipe=recipe, flashback__enabled=True, training__schedule=schedule)
        write_run(tmp_path / f"host{seed}", host, matrices)
        write_run(tmp_path / f"flashback{seed}", flashback, matrices, **other)
    pairings = read_report([tmp_path]).pairings
    assert sorted(pairing.arms for pairing in pairings) == [["flashback"], ["host"]]
    assert recipe == "as-published" or any(words in pairing.name for pairing in pairings)


def test_arms_of_different_settings_do_not_meet_where_it_is_not_clear_which(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    for index, lr in enumerate((0.1, 0.2)):
        write_run(tmp_path / f"host{index}", made_config(recipe="as-published", training__lr=lr), matrices)
    config = made_config(recipe="as-published", training__lr=0.4, flashback__enabled=True)
    write_run(tmp_path / "flashback", config, matrices)
    assert [pairing.arms for pairing in read_report([tmp_path]).pairings] == [["host"], ["host"], ["flashback"]]


def test_a_run_made_twice_counts_once(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", seeds=2)
    write_run(tmp_path / "b", made_config(seed=1), {setting: made_matrix(4) for setting in SETTINGS})
    report = read_report([tmp_path])
    assert len(report.runs) == 4
    assert report.skipped == {"b": "repeats a/host/seed-1: the same configuration and seed"}


def test_runs_on_other_data_are_kept_apart(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a")
    write_comparison(tmp_path / "b", run={"data_checksum": "other"})
    names = [pairing.name for pairing in read_report([tmp_path]).pairings]
    assert names == ["icarl (data made)", "icarl (data other)"]


def test_other_devices_are_remarked_upon(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1)
    path = tmp_path / "host" / "seed-0" / "run.json"
    path.write_text(path.read_text().replace('"torch": "2.13.0"', '"torch": "2.11.0"'))
    assert only(tmp_path).comparison.differing_environment == ["torch"]


@pytest.mark.parametrize("sizes", [[[], 3, 2], {"first": 2}, None, "22", []])
def test_task_sizes_that_are_none_are_no_reason_to_stumble(tmp_path: Path, sizes: Any) -> None:
    write_comparison(tmp_path, seeds=1, run={"task_sizes": sizes})
    (pairing,) = read_report([tmp_path]).pairings
    assert pairing.comparison.rows


def test_averages_over_images_are_shown_for_unequal_tasks_alone(tmp_path: Path) -> None:
    write_comparison(tmp_path / "b0")
    write_comparison(tmp_path / "b50", benchmark="cifar100-b50-10", sizes=[50, 10, 10, 10])
    b50, b0 = read_report([tmp_path]).pairings
    assert "average_incremental_accuracy_images" not in b0.metrics
    assert b50.row(CI, "last_accuracy_images").mean["host"] == pytest.approx(
        mean(
            [
                json.loads(p.read_text())[CI]["last_accuracy_images"]
                for p in (tmp_path / "b50/host").glob("*/results.json")
            ]
        )
    )


# ---------------------------------------------------------------- settings that came with a later version


def resolved_config(seed: int, flashback: bool, without: str = "", recipe: str = "controlled") -> dict[str, Any]:
    """All settings of a run, or as a version wrote them that did not have one of them yet."""
    config = to_dict(configure("lwf-mc", "split-cifar100", flashback=flashback, seed=seed, recipe=recipe))
    section, _, key = without.partition(".")
    if key:
        del config[section][key]
    return config


KEYS = [
    "host.columns",
    "benchmark.validation",
    "training.first_schedule",
    "training.optimiser",
    "flashback.alpha_schedule",
]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("old", ["host", "flashback", "seed"])
def test_a_setting_that_came_later_neither_splits_nor_flags_older_records(tmp_path: Path, key: str, old: str) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    for seed in (0, 1):
        for arm in ("host", "flashback"):
            is_old = old == arm or (old == "seed" and seed == 1)
            config = resolved_config(seed, arm == "flashback", key if is_old else "")
            write_run(tmp_path / f"{arm}-{seed}", config, matrices)
    report = read_report([tmp_path])
    (pairing,) = report.pairings
    assert pairing.name == "lwf-mc"
    assert len(pairing.runs) == 4
    assert pairing.differing_settings() == ["flashback.enabled"]
    assert pairing.comparison.differing_settings == []
    assert remarks(report) == []
    shown = {row[0]: row[1:] for row in payload(report)["pairings"][0]["config"]}
    assert {name.split(".")[0] for name, values in shown.items() if len(values) > 1} == {"flashback"}


def test_older_records_are_named_by_what_a_later_setting_was_then(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    new = resolved_config(0, False)
    default = new["host"]["columns"]
    assert default != "all"
    new["host"]["columns"] = "all"
    write_run(tmp_path / "new", new, matrices)
    write_run(tmp_path / "old", resolved_config(0, False, "host.columns"), matrices)
    names = {pairing.name for pairing in read_report([tmp_path]).pairings}
    assert names == {"lwf-mc", "lwf-mc (host.columns all)"}


def test_arms_that_a_recipe_sets_up_differently_meet_across_versions(tmp_path: Path) -> None:
    matrices = {setting: made_matrix(4) for setting in SETTINGS}
    host = resolved_config(0, False, "benchmark.validation", recipe="as-published")
    host["training"]["lr"] = 0.5
    write_run(tmp_path / "host", host, matrices)
    write_run(tmp_path / "flashback", resolved_config(0, True, recipe="as-published"), matrices)
    assert only(tmp_path).comparison.differing_settings == ["host.penalty", "training.lr"]  # the first is the recipe's


# ---------------------------------------------------------------- the paper's tests


def test_the_test_over_methods_pairs_methods_and_settings(tmp_path: Path) -> None:
    for host in ("icarl", "lucir", "xder"):
        write_comparison(tmp_path / host, host, gain=len(host))
    write_comparison(tmp_path / "elsewhere", "icarl", "split-cifar10")
    expected = {
        arm: {
            host: {
                setting: float(np.mean(list(averages(tmp_path / host, arm, setting).values()))) for setting in SETTINGS
            }
            for host in ("icarl", "lucir", "xder")
        }
        for arm in ("host", "flashback")
    }
    report = read_report([tmp_path])
    test = report.over_methods("split-cifar100")
    assert test is not None
    assert test.pairs == 6
    assert test.t == pytest.approx(paired_over_methods(expected["host"], expected["flashback"]).t)
    assert report.over_methods("split-cifar10") is None
    write_comparison(tmp_path / "again", "xder", training__lr=0.01)
    without = read_report([tmp_path]).over_methods("split-cifar100")
    assert without is not None
    assert without.pairs == 4, "a method that ran twice does not count"


def test_the_test_over_tasks_uses_means_over_seeds(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    means = []
    for arm in ("host", "flashback"):
        rows = [json.loads(path.read_text())[TI]["matrix"] for path in (tmp_path / arm).glob("*/results.json")]
        means.append([[(a + b) / 2 for a, b in zip(*both, strict=True)] for both in zip(*rows, strict=True)])
    test = only(tmp_path).over_tasks(TI)
    assert test.pairs == 4
    assert test.p == pytest.approx(paired_over_tasks(*means).p)
    assert average_accuracy(means[1]) > average_accuracy(means[0])


@pytest.mark.parametrize("enabled", [False, True])
def test_the_papers_tests_rest_on_common_seeds(tmp_path: Path, enabled: bool) -> None:
    for host in ("icarl", "xder"):
        write_comparison(tmp_path / host, host, gain=len(host))
    before = read_report([tmp_path])
    write_odd_seed(tmp_path, flashback__enabled=enabled)
    after = read_report([tmp_path])
    assert len(after.runs) == len(before.runs) + 1
    test = after.over_methods("split-cifar100")
    assert test is not None
    assert test.p is not None
    assert test == before.over_methods("split-cifar100")
    for setting in SETTINGS:
        assert after.pairings[0].over_tasks(setting).t is not None
        assert after.pairings[0].over_tasks(setting) == before.pairings[0].over_tasks(setting)


def test_without_a_common_seed_the_papers_tests_have_nothing_to_say(tmp_path: Path) -> None:
    for host in ("icarl", "xder", "lucir"):
        write_comparison(tmp_path / host, host, seeds=1)
    write_odd_seed(tmp_path / "a", "der++", seed=1)
    write_odd_seed(tmp_path / "b", "der++", seed=2, flashback__enabled=True)
    report = read_report([tmp_path])
    test = report.over_methods("split-cifar100")
    assert test is not None
    assert test.pairs == 6
    apart = next(pairing for pairing in report.pairings if pairing.name == "der++").over_tasks(CI)
    assert (apart.pairs, apart.difference, apart.unit) == (0, None, "task")


def test_deviation_is_absent_for_one_seed(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1)
    assert only(tmp_path).row(CI).deviation == {"host": None, "flashback": deviation([1.0])}


@pytest.mark.parametrize(("gain", "outcome"), [(6.0, Outcome.BETTER), (-6.0, Outcome.WORSE)])
def test_an_outcome_has_the_sign_of_the_difference(gain: float, outcome: Outcome, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=4, gain=gain)
    (pairing,) = read_report([tmp_path]).pairings
    assert pairing.outcome(SETTINGS[0]) is outcome


@pytest.mark.parametrize("quantity", ["steps", "images"])
def test_a_budget_is_equal_in_steps_and_in_images_at_every_seed(quantity: str) -> None:
    runs = {(arm, seed): {"steps": 10, "images": 80} for arm in ("host", "flashback") for seed in (0, 1)}
    records: Any = {key: SimpleNamespace(run=run) for key, run in runs.items()}
    assert has_equal_budget(records, [0, 1]) is True
    runs["flashback", 1][quantity] += 1
    assert has_equal_budget(records, [0, 1]) is False


def test_a_host_alone_is_not_told_apart_by_settings_of_flashback(tmp_path: Path) -> None:
    for folder, memory, arms in (("a", 100, (False, True)), ("b", 200, (False,))):
        for enabled in arms:
            config = made_config("of-my-own", host__memory_size=memory, flashback__enabled=enabled)
            write_run(tmp_path / folder / str(enabled), config, {setting: made_matrix(3) for setting in SETTINGS})
    names = [pairing.name for pairing in read_report([tmp_path]).pairings]
    assert sorted(names) == ["of-my-own (host.memory_size 100)", "of-my-own (host.memory_size 200)"]


@pytest.mark.parametrize("recipe", ["controlled", "as-published"])
@pytest.mark.parametrize("codes", [("a" * 16, "b" * 16), (None, "b" * 16)])
def test_arms_made_with_different_code_are_not_compared(codes: tuple[Any, Any], recipe: str, tmp_path: Path) -> None:
    """Half of the host arm has the code of the flashback arm, and that half is compared."""
    for seed, arm, code in ((0, False, 0), (1, False, 1), (0, True, 1), (1, True, 1)):
        config = made_config("of-my-own", recipe=recipe, flashback__enabled=arm, seed=seed)
        must_match = {} if codes[code] is None else {"code": codes[code]}
        matrices = {setting: made_matrix(3, seed) for setting in SETTINGS}
        write_run(tmp_path / f"{seed}-{arm}", config, matrices, must_match=must_match)
    report = read_report([tmp_path])
    old = (codes[0] or "unknown")[:8]
    named = f"of-my-own ({'recipe as-published, ' * (recipe == 'as-published')}code {{}})"
    assert {pairing.name: sorted(pairing.runs) for pairing in report.pairings} == {
        named.format("bbbbbbbb"): [("flashback", 0), ("flashback", 1), ("host", 1)],
        named.format(old): [("host", 0)],
    }
    (remark,) = report.code_remarks
    assert remark.startswith(
        f"of-my-own: its runs were made with different code ({', '.join(sorted([old, 'bbbbbbbb']))})"
    )


def test_runs_of_the_same_code_are_compared_without_a_word(tmp_path: Path) -> None:
    write_comparison(tmp_path, "of-my-own", seeds=2, run={"must_match": {"code": "a" * 16}})
    report = read_report([tmp_path])
    assert [pairing.name for pairing in report.comparisons] == ["of-my-own"]
    assert report.code_remarks == []


def test_a_run_that_went_on_with_other_code_is_named_wherever_it_is_reported(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    path = tmp_path / "host" / "seed-1" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"changed_on_resume": ["code"]}))
    report = read_report([tmp_path])
    said = "host/seed-1 went on after an interruption in other surroundings (code)."
    assert report.code_remarks == [said]
    assert said in markdown_tables(report)
    assert said in html_page(report)
