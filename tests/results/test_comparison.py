"""Methods and paired comparisons: which runs belong together, and what is computed from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run
from scipy import stats

from flashback.config import to_dict
from flashback.recipes import configure
from flashback.results import Comparison, compare_methods, group_methods, pair_arms, read_runs

CI, TI = SETTINGS
SPR = "stability_plasticity_ratio"
FOUR = {setting: made_matrix(4) for setting in SETTINGS}


def pairs(folder: Path) -> list[Comparison]:
    return pair_arms(group_methods(read_runs(folder).runs))


def only(folder: Path) -> Comparison:
    (comparison,) = pairs(folder)
    return comparison


def averages(folder: Path, arm: str, setting: str) -> list[float]:
    """By hand: the average accuracy of each seed, from the files alone."""
    paths = sorted((folder / arm).glob("seed-*/results.json"))
    matrices = [json.loads(path.read_text())[setting]["matrix"] for path in paths]
    return [sum(matrix[-1]) / len(matrix) for matrix in matrices]


def edit(path: Path, key: str, value: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, key: value}))


@pytest.mark.parametrize("setting", SETTINGS)
def test_arms_are_compared_seed_by_seed(setting: str, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=4)
    comparison, row = only(tmp_path), only(tmp_path).row(setting)
    host, flashback = (averages(tmp_path, arm, setting) for arm in ("host", "flashback"))
    assert comparison.seeds == [0, 1, 2, 3]
    assert (row.left.mean, row.right.mean) == pytest.approx((np.mean(host), np.mean(flashback)))
    assert (row.left.deviation, row.right.deviation) == pytest.approx((np.std(host, ddof=1), np.std(flashback, ddof=1)))
    expected = stats.ttest_rel(flashback, host)
    assert (row.test.t, row.test.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert row.test.difference == pytest.approx(np.mean(flashback) - np.mean(host))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"flashback__epochs": 7, "training__epochs": 20}, "alpha_p 0.5, E1 7 of 20 epochs a task"),
        (
            {"flashback__merge": 0.25, "flashback__distance": "features"},
            "alpha_p 0.5, E1 10 of 60 epochs a task, distance features, merge 0.25",
        ),
        ({"flashback__teacher": "running"}, "alpha_p 0.5, a running teacher with decay 0.999"),
    ],
)
def test_a_comparison_names_the_form_of_flashback(changes: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_comparison(tmp_path, flashback__alpha=0.5, **changes)
    assert only(tmp_path).flashback == text


def test_any_two_methods_are_compared_right_minus_left(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", "icarl", gain=0)
    write_comparison(tmp_path / "b", "lucir", gain=9)
    methods = {method.name: method for method in group_methods(read_runs(tmp_path).runs)}
    comparison = compare_methods(methods["icarl"], methods["lucir with flashback"])
    row = comparison.row(TI, "forgetting")
    left, right = (np.mean([run.metric("forgetting", TI) for run in m.runs.values()]) for m in comparison.methods)
    assert row.test.difference == pytest.approx(right - left)
    assert comparison.name == "lucir with flashback against icarl"
    assert comparison.row(CI).test.difference > 0
    assert compare_methods(methods["lucir with flashback"], methods["icarl"]).outcome() == "worse"
    assert comparison.outcome() == "better"


def test_a_seed_of_only_one_arm_counts_for_its_mean_alone(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=3)
    before = only(tmp_path).row(CI)
    odd = {setting: made_matrix(4, 7, shift=-60.0) for setting in SETTINGS}
    write_run(tmp_path / "odd", made_config(seed=7), odd)
    after = only(tmp_path)
    assert after.seeds == [0, 1, 2, 7]
    assert after.common_seeds == [0, 1, 2]
    assert after.row(CI).left.mean != before.left.mean
    assert after.row(CI).paired_means == pytest.approx((before.left.mean, before.right.mean))
    assert after.row(CI).test == before.test


def test_where_some_seeds_have_no_value_there_is_neither_mean_nor_test(tmp_path: Path) -> None:
    """SPR is undefined where forgetting is negative; a mean over the other seeds would be biased."""
    write_comparison(tmp_path, seeds=3)
    path = tmp_path / "host" / "seed-1" / "results.json"
    results = json.loads(path.read_text())
    results[CI]["matrix"][-1] = [99.0] * 4
    path.write_text(json.dumps(results))
    row = only(tmp_path).row(CI, SPR)
    assert row.left.values[1] is None
    assert (len(row.left), len(row.right)) == (2, 3)
    assert row.left.mean is row.right.mean is row.left.deviation is row.test.difference is None
    assert only(tmp_path).row(CI).test.pairs == 3


def test_one_seed_allows_no_test_and_one_arm_no_comparison(tmp_path: Path) -> None:
    write_comparison(tmp_path / "one", seeds=1)
    single = only(tmp_path / "one")
    assert (single.outcome(), single.row(CI).left.deviation) == ("untested", None)
    write_run(tmp_path / "two", made_config("finetune"), FOUR)
    alone = only(tmp_path / "two")
    assert alone.is_single
    assert [method.arm for method in alone.methods] == ["host"]
    assert alone.equal_budget is None


@pytest.mark.parametrize(("gain", "outcome"), [(6.0, "better"), (-6.0, "worse")])
def test_an_outcome_has_the_sign_of_the_difference(gain: float, outcome: str, tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=5, gain=gain)
    assert only(tmp_path).outcome(CI) == outcome


@pytest.mark.parametrize("quantity", ["steps", "images"])
def test_a_budget_is_equal_in_steps_and_images_at_every_seed(quantity: str, tmp_path: Path) -> None:
    write_comparison(tmp_path)
    assert only(tmp_path).equal_budget is True
    edit(tmp_path / "flashback" / "seed-1" / "run.json", quantity, 641)
    assert only(tmp_path).equal_budget is False
    assert only(tmp_path).budget == "unequal budget"


def test_cost_is_the_mean_of_seeds_and_the_maximum_of_bytes(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    edit(tmp_path / "host" / "seed-1" / "run.json", "seconds", 20.5)
    edit(tmp_path / "host" / "seed-1" / "run.json", "knowledge_bytes", {"stable": 5000})
    cost = only(tmp_path).left.cost
    assert (cost.steps, cost.seconds, cost.bytes) == (640, 16.5, {"stable": 5000})


def test_as_dict_has_the_fields_of_comparison_json(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    content = json.loads(json.dumps(only(tmp_path).as_dict()))
    assert list(content) == [
        "host", "benchmark", "recipe", "seeds", "rows", "cost", "equal_budget", "differing_settings",
        "differing_environment", "failures", "reused", "further_seeds", "flashback", "budget", "sentence",
    ]  # fmt: skip
    assert set(content["rows"][0]) == {"setting", "metric", "values", "mean", "deviation", "test"}
    assert set(content["rows"][0]["values"]) == set(content["cost"]) == {"host", "flashback"}


# ---------------------------------------------------------------- which runs belong together


def test_other_settings_are_another_method_and_saving_is_no_setting(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", training__lr=0.1)
    write_comparison(tmp_path / "b", training__lr=0.3)
    write_run(tmp_path / "c", made_config(seed=9, training__lr=0.3, checkpoint__minutes=9.0), FOUR)
    seeds = {comparison.name: comparison.left.seeds for comparison in pairs(tmp_path)}
    assert sorted(map(len, seeds.values())) == [3, 4]


def test_settings_of_flashback_share_the_host(tmp_path: Path) -> None:
    write_comparison(tmp_path / "a", flashback__alpha=0.1)
    for seed in range(2):
        config = made_config(seed=seed, flashback__enabled=True, flashback__alpha=0.5)
        write_run(tmp_path / "b" / str(seed), config, FOUR)
    first, second = pairs(tmp_path)
    assert first.left == second.left
    assert {first.right.settings["flashback"]["alpha"], second.right.settings["flashback"]["alpha"]} == {0.1, 0.5}
    assert len(group_methods(read_runs(tmp_path).runs)) == 3


def recorded(recipe: str, flashback: bool, **changes: Any) -> dict[str, Any]:
    config = to_dict(configure("lwf-mc", "split-cifar100", flashback=flashback, seed=0, recipe=recipe))
    config["training"] |= changes
    return config


@pytest.mark.parametrize("recipe", ["controlled", "as-published"])
def test_only_arms_of_a_published_recipe_meet_with_different_settings(tmp_path: Path, recipe: str) -> None:
    write_run(tmp_path / "host", recorded(recipe, False, lr=0.5), FOUR)
    write_run(tmp_path / "flashback", recorded(recipe, True), FOUR)
    comparisons = pairs(tmp_path)
    if recipe == "controlled":
        assert [comparison.is_single for comparison in comparisons] == [True, True]
    else:
        assert "training.lr" in comparisons[0].differing_settings
        write_run(tmp_path / "another", recorded(recipe, False, lr=0.7), FOUR)  # which of the two is not clear
        assert all(comparison.is_single for comparison in pairs(tmp_path))


@pytest.mark.parametrize(
    "facts", [{"data_checksum": "other"}, {"class_order": [1, 0]}, {"must_match": {"code": "b" * 16}}]
)
def test_arms_with_other_data_or_code_do_not_meet(facts: dict[str, Any], tmp_path: Path) -> None:
    write_run(tmp_path / "host", recorded("as-published", False), FOUR)
    write_run(tmp_path / "flashback", recorded("as-published", True), FOUR, **facts)
    assert all(comparison.is_single for comparison in pairs(tmp_path))


def test_an_order_drawn_by_seed_is_one_method(tmp_path: Path) -> None:
    for seed in range(2):
        config = made_config(seed=seed, benchmark__order="seed")
        write_run(tmp_path / str(seed), config, FOUR, class_order=[seed, 1 - seed])
    assert only(tmp_path).left.seeds == [0, 1]


@pytest.mark.parametrize(
    "key", ["host.columns", "benchmark.validation", "training.optimiser", "flashback.alpha_schedule"]
)
def test_a_setting_of_a_later_version_has_its_default_in_older_records(tmp_path: Path, key: str) -> None:
    for arm in (False, True):
        config = recorded("controlled", arm)
        if arm:
            section, name = key.split(".")
            del config[section][name]
        write_run(tmp_path / str(arm), config, FOUR)
    comparison = only(tmp_path)
    assert not comparison.is_single
    assert comparison.differing_settings == []


def test_devices_and_versions_that_differ_are_named(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=2)
    assert only(tmp_path).differing_environment == []
    edit(tmp_path / "host" / "seed-0" / "run.json", "must_match", {"device": "made", "torch": "9", "portion": "25"})
    assert only(tmp_path).differing_environment == ["torch"]


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ({}, {}, ["icarl", "lucir"]),
        ({"training__epochs": 2}, {"training__epochs": 2}, ["icarl", "lucir"]),  # shared by all, so left out
        ({"training__epochs": 2}, {}, ["icarl (2 epochs)", "lucir"]),
        ({"benchmark__tasks": 1}, {}, ["icarl (1 task)", "lucir"]),
        ({"benchmark__validation": 0.1}, {}, ["icarl (validation 0.1)", "lucir"]),
    ],
)
def test_names_hold_what_distinguishes_methods(
    first: dict[str, Any], second: dict[str, Any], names: list[str], tmp_path: Path
) -> None:
    write_run(tmp_path / "a", made_config("icarl", **first), FOUR)
    write_run(tmp_path / "b", made_config("lucir", **second), FOUR)
    assert sorted(method.name for method in group_methods(read_runs(tmp_path).runs)) == names


def test_names_have_the_benchmark_where_there_are_several(tmp_path: Path) -> None:
    write_run(tmp_path / "a", made_config("icarl", "split-cifar10"), FOUR)
    write_run(tmp_path / "b", made_config("lucir", "data/mine.npz"), FOUR)
    names = {method.name for method in group_methods(read_runs(tmp_path).runs)}
    assert names == {"icarl on split-cifar10", "lucir on mine"}


def test_names_that_would_be_equal_get_the_settings_in_which_they_differ(tmp_path: Path) -> None:
    for k, changes in enumerate(
        [{}, {"recipe": "anchor"}, {"training__precision": "bf16"}, {"host__net": "a$b", "training__lr": 7.0}]
    ):
        write_run(tmp_path / str(k), made_config("mine", "elsewhere", **changes), FOUR)
    names = [method.name for method in group_methods(read_runs(tmp_path).runs)]
    assert len(set(names)) == 4
    assert all(name.startswith("mine") for name in names)


def test_every_change_that_not_all_share_is_named(tmp_path: Path) -> None:
    changes = {f"training__{key}": 0.125 for key in ("lr", "momentum")}
    write_run(tmp_path / "a", made_config(**changes, benchmark__tasks=2), FOUR)
    write_run(tmp_path / "b", made_config("lucir"), FOUR)
    names = {method.name for method in group_methods(read_runs(tmp_path).runs)}
    assert names == {"icarl (2 tasks, training.lr 0.125, training.momentum 0.125)", "lucir"}
