from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from made_runs import SETTINGS, made_config, made_matrix, write_comparison, write_run

from flashback.config import to_dict
from flashback.recipes import configure
from flashback.reports import csv_table, html_page, markdown_tables, read_report
from flashback.reports.departures import departures, is_whole
from flashback.reports.naming import setting_in_words
from flashback.reports.reading import Run

SHORTENED: list[dict[str, Any]] = [
    {"benchmark__tasks": 3},
    {"benchmark__validation": 0.1},
    {"benchmark__sizes": [50, 50]},
    {"training__epochs": 6, "flashback__epochs": 1},
    {"training__first_epochs": 6},
]


def any_run(folder: Path) -> Run:
    return read_report([folder]).runs[0]


# ---------------------------------------------------------------- whole runs


@pytest.mark.parametrize("changes", SHORTENED)
def test_printed_values_stand_beside_whole_runs_alone(changes: dict[str, Any], tmp_path: Path) -> None:
    write_comparison(tmp_path / "whole", seeds=1)
    whole = read_report([tmp_path / "whole"])
    assert is_whole(whole.runs[0])
    for write in (csv_table, html_page, markdown_tables):
        assert "49.82" in write(whole)
    write_comparison(tmp_path / "short", seeds=1, **changes)
    short = read_report([tmp_path / "short"])
    assert not any(map(is_whole, short.runs))
    for write in (csv_table, html_page, markdown_tables):
        assert "49.82" not in write(short)
    assert 'id="the-paper"' not in html_page(short)
    both = csv.DictReader(io.StringIO(csv_table(read_report([tmp_path]))))
    assert len({row["method"] for row in both if row["host_printed"]}) == 1


@pytest.mark.parametrize(
    "changes",
    [{"training__lr": 0.5}, {"flashback__epochs": 5}, {"training__precision": "bf16"}, {"checkpoint__epochs": 1}],
)
def test_other_settings_do_not_shorten_a_run(changes: dict[str, Any], tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1, **changes)
    assert all(map(is_whole, read_report([tmp_path]).runs))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {("Table 1", 72.39), ("Table 2", 91.33), ("Table 8", 17.27), ("Table 10", 20.04)}),
        ({"flashback__alpha": 1.0}, {("Table 7", 69.19)}),
        ({"flashback__alpha": 0.5}, set()),
        ({"flashback__epochs": 50, "flashback__second_epochs": 10}, {("Table 6", 68.41)}),
        ({"flashback__second_epochs": 50}, {("Table 6", 72.39)}),
        ({"flashback__epochs": 5}, set()),
        ({"flashback__support": "all"}, set()),
    ],
)
def test_printed_values_are_those_of_the_same_flashback(
    changes: dict[str, Any], expected: set[tuple[str, float]], tmp_path: Path
) -> None:
    write_comparison(tmp_path, benchmark="split-cifar10", seeds=1, **changes)
    (pairing,) = read_report([tmp_path]).pairings
    assert {(printed.where, printed.value["flashback"]) for printed in pairing.printed} == expected


def test_the_host_alone_has_the_printed_values_of_the_usual_flashback(tmp_path: Path) -> None:
    config = made_config(benchmark="split-cifar10", flashback__alpha=1.0)  # of no account where flashback is off
    write_run(tmp_path / "host", config, {setting: made_matrix(3) for setting in SETTINGS})
    (pairing,) = read_report([tmp_path]).pairings
    assert {printed.where for printed in pairing.printed} == {"Table 1", "Table 2", "Table 8", "Table 10"}


def test_further_stages_of_a_host_belong_to_its_budget(tmp_path: Path) -> None:
    write_comparison(tmp_path / "whole", "lucir", seeds=1)
    assert is_whole(any_run(tmp_path / "whole"))
    write_comparison(tmp_path / "short", "lucir", seeds=1, host__finetune_epochs=1)
    assert departures(any_run(tmp_path / "short")) == {"host.finetune_epochs": 1}
    assert not is_whole(any_run(tmp_path / "short"))


def test_without_a_recipe_any_number_of_epochs_is_whole(tmp_path: Path) -> None:
    write_comparison(tmp_path / "whole", "an-own-host", seeds=1, training__epochs=2)
    assert is_whole(any_run(tmp_path / "whole"))
    write_comparison(tmp_path / "short", "an-own-host", seeds=1, benchmark__tasks=2)
    assert not is_whole(any_run(tmp_path / "short"))


def test_a_recipe_file_is_held_against_the_recipe_it_builds_on(tmp_path: Path) -> None:
    write_comparison(tmp_path / "whole", seeds=1, recipe="tuned.yaml", flashback__alpha=0.5)
    assert [departures(run) for run in read_report([tmp_path]).runs] == [{}, {"flashback.alpha": 0.5}]
    assert ">recipe tuned.yaml</span>" in html_page(read_report([tmp_path]))
    write_comparison(tmp_path / "short", seeds=1, recipe="tuned.yaml", training__epochs=20)
    assert not is_whole(any_run(tmp_path / "short"))


def test_shortened_runs_do_not_count_for_the_test_over_methods(tmp_path: Path) -> None:
    for host in ("icarl", "xder"):
        write_comparison(tmp_path / "whole" / host, host, gain=len(host))
    before = read_report([tmp_path])
    for k, changes in enumerate(SHORTENED):
        write_comparison(tmp_path / f"icarl{k}", "icarl", gain=-20, **changes)
        write_comparison(tmp_path / f"lucir{k}", "lucir", gain=-20, **changes)
    after = read_report([tmp_path])
    assert len(after.pairings) == 2 + 2 * len(SHORTENED)
    assert after.over_methods("split-cifar100") == before.over_methods("split-cifar100") is not None
    assert "The paper prints t = 4.34" in html_page(after)
    short = read_report([tmp_path / "icarl0", tmp_path / "lucir0"])
    assert short.over_methods("split-cifar100") is None
    assert "The paper prints t" not in html_page(short)


# ---------------------------------------------------------------- names


def names_of(folder: Path) -> list[str]:
    return [pairing.name for pairing in read_report([folder]).pairings]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"flashback__alpha": 0.01}, ""),
        ({"checkpoint__minutes": 9.0, "capture": False, "fast": True}, ""),
        ({"benchmark__tasks": 3, "training__epochs": 20}, " (3 tasks, 20 epochs)"),
        ({"benchmark__tasks": 1}, " (1 task)"),
        ({"benchmark__validation": 0.1, "training__lr": 0.5}, " (validation 0.1, training.lr 0.5)"),
        ({"host__memory_size": 500, "training__epochs": 20}, " (20 epochs, host.memory_size 500)"),
        ({"training__milestones": None}, " (training.milestones null)"),
        ({"training__optimiser": "adam"}, " (training.optimiser adam)"),
        (
            {"training__lr": 0.5, "training__momentum": 0.9, "training__gamma": 0.5, "training__weight_decay": 0.1,
             "training__batch_size": 8, "benchmark__tasks": 3},
            " (3 tasks, training.batch_size 8, training.lr 0.5, training.momentum 0.9 and 2 more settings)",
        ),
        (
            {"training__schedule": "a very long name of a schedule that nobody knows"},
            " (training.schedule a very long name of a schedule that nob…)",
        ),
    ],
)  # fmt: skip
def test_a_comparison_is_named_by_what_departs_from_its_recipe(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_comparison(tmp_path, seeds=1, **changes)
    (pairing,) = read_report([tmp_path]).pairings
    assert pairing.name == f"icarl{words}"
    assert f">recipe controlled{', changed' if words else ''}</span>" in html_page(read_report([tmp_path]))


ANCL = {
    "flashback__epochs": 160,
    "flashback__second_epochs": 160,
    "flashback__phase1_stability": 0.0,
    "flashback__phase1_schedule": "host",
    "flashback__alpha": 0.1,
}


def test_ancl_is_named_and_has_its_own_printed_values(tmp_path: Path) -> None:
    """A whole training without the stability loss, then a whole one: twice the steps of the host."""
    for arm, steps in (("host", 100), ("flashback", 200)):
        config = made_config("icarl", "cifar100-b50-10", **ANCL, flashback__enabled=arm == "flashback")
        matrices = {setting: made_matrix(3) for setting in SETTINGS}
        write_run(tmp_path / arm, config, matrices, sizes=[50, 10, 10], steps=steps)
    (pairing,) = read_report([tmp_path]).pairings
    assert pairing.name == "icarl with ANCL (flashback.alpha 0.1)"
    assert "unequal budget" in pairing.answer(SETTINGS[0])
    (printed,) = pairing.printed
    assert (printed.where, printed.text("flashback")) == ("Table 5, ANCL", "61.22 ± 0.88 (quoted)")


@pytest.mark.parametrize("changes", [{"flashback__phase1_stability": 1.0}, {"flashback__epochs": 27}])
def test_other_trainings_are_not_ancl(changes: dict[str, Any], tmp_path: Path) -> None:
    write_comparison(tmp_path, "icarl", "cifar100-b50-10", seeds=1, sizes=[50, 10, 10, 10], **(ANCL | changes))
    (pairing,) = read_report([tmp_path]).pairings
    assert "ANCL" not in pairing.name
    assert pairing.printed == []


def test_names_that_would_be_the_same_say_more(tmp_path: Path) -> None:
    many = {"training__batch_size": 8, "training__lr": 0.5, "training__momentum": 0.9, "training__weight_decay": 0.1}
    for k, gamma in enumerate((0.3, 0.4)):
        write_comparison(tmp_path / "many" / str(k), seeds=1, training__gamma=gamma, **many)
    first, second = names_of(tmp_path / "many")
    assert first.removesuffix(", training.gamma 0.3)") == second.removesuffix(", training.gamma 0.4)")
    assert first.count("training.") == 5


def test_runs_computed_otherwise_are_told_apart(tmp_path: Path) -> None:
    for precision in ("bf16", "fp32"):
        write_comparison(tmp_path / precision, seeds=1, training__precision=precision)
    assert names_of(tmp_path) == [f"icarl (training.precision {p})" for p in ("bf16", "fp32")]


def test_without_a_recipe_names_tell_what_differs_in_few_words(tmp_path: Path) -> None:
    for k, lr in enumerate((0.1, 0.2)):
        changes: dict[str, Any] = {"training__lr": lr, "training__batch_size": 8 * (k + 1), "recipe": "defaults"}
        write_comparison(tmp_path / str(k), "an-own-host", seeds=1, **changes)
    assert names_of(tmp_path) == [f"an-own-host (training.batch_size {size})" for size in (16, 8)]
    page = html_page(read_report([tmp_path]))
    assert page.count(">no recipe</span>") == 2
    assert "recipe defaults" not in page


def test_runs_with_the_defaults_are_held_against_the_recipe_there_is(tmp_path: Path) -> None:
    write_comparison(tmp_path, seeds=1, recipe="defaults", training__epochs=20)
    assert names_of(tmp_path) == ["icarl (20 epochs)"]
    assert ">no recipe</span>" in html_page(read_report([tmp_path]))


def test_a_record_that_names_a_recipe_that_there_is_not_has_the_defaults(tmp_path: Path) -> None:
    config = made_config("icarl", "split-cifar100")
    config["benchmark"]["name"] = "imagenet100-b0-10"
    assert config["recipe"] == "controlled"
    write_run(tmp_path / "0", config, {setting: made_matrix(3) for setting in SETTINGS})
    (run,) = read_report([tmp_path]).runs
    assert (run.recipe, departures(run)) == ("defaults", {})


def test_recipes_are_told_apart(tmp_path: Path) -> None:
    for recipe in ("controlled", "anchor"):
        config = to_dict(configure("lwf-mc", "split-cifar100", recipe=recipe))
        write_run(tmp_path / recipe, config, {setting: made_matrix(3) for setting in SETTINGS})
    assert names_of(tmp_path) == ["lwf-mc", "lwf-mc (recipe anchor)"]


def test_a_setting_that_leaves_the_choice_to_the_package_leaves_no_hole_in_a_name() -> None:
    assert setting_in_words("host.net", "") == "host.net automatic"
    assert setting_in_words("host.net", "resnet18") == "host.net resnet18"
