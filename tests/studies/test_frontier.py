"""A frontier is traced from ordinary runs, goes on where it stopped, and says what its runs say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashback import FlashbackError, RunConfig
from flashback.metrics import trade_off
from flashback.recipes import configure
from flashback.reports import read_report
from flashback.results import Frontier, read_run
from flashback.results.frontier import read_frontier
from flashback.studies import trace_frontier, variants
from flashback.studies.variants import catalogue, check_equal_cost, of_recipe, phase_1_share, variants_of
from flashback.training import Interrupted
from helpers import write_tiny

SETTINGS = {"training.epochs": 2, "training.batch_size": 8, "training.lr": 0.3, "flashback.epochs": 1}


def parse_form(text: str, base: RunConfig) -> variants.Variant:
    return variants.parse_form(text, base, phase_1_share(base))


def trace(tmp_path: Path, out: str = "out", **options: Any) -> Frontier:
    benchmark = tmp_path / "tiny.npz"
    if not benchmark.exists():
        write_tiny(benchmark)
    settings = {**SETTINGS, "benchmark.sizes": [2, 3, 2]}
    arguments = {"forms": ["printed", "training.average=0.5"], "weights": [4, 0.25], "seeds": [3], **options}
    return trace_frontier("lwf-mc", benchmark, out=tmp_path / out, settings=settings, device="cpu", **arguments)


def test_points_are_those_of_the_runs_and_repeating_trains_nothing(tmp_path: Path) -> None:
    frontier = trace(tmp_path)
    assert [curve.name for curve in frontier.curves] == ["host alone", "printed", "training.average 0.5"]
    assert [curve.flashback for curve in frontier.curves] == [False, True, False]
    runs = {str(path.parent): read_run(path.parent) for path in (tmp_path / "out").rglob("results.json")}
    assert len(runs) == 6
    for curve in frontier.curves:
        for setting, by_seed in curve.points.items():
            for weight, point in zip(frontier.weights, by_seed[3], strict=True):
                (run,) = (
                    run
                    for run in runs.values()
                    if run.config["training"]["stability"] == weight
                    and (run.arm == "flashback") == curve.flashback
                    and run.config["training"]["average"] == curve.settings.get("training.average")
                )
                assert point == trade_off(run.matrix(setting))
    written = (tmp_path / "out" / "frontier.json").read_bytes()
    trained: list[str] = []
    assert trace(tmp_path, watch=lambda name: trained.append) == frontier
    assert not trained
    assert (tmp_path / "out" / "frontier.json").read_bytes() == written
    assert read_report(tmp_path / "out").frontiers[0].curves == frontier.curves


def test_an_interrupted_trace_ends_with_the_same_answer(tmp_path: Path) -> None:
    events = 0

    def interrupt(event: Any) -> None:
        nonlocal events
        events += event["event"] == "evaluation"
        if events == 5:
            raise Interrupted

    with pytest.raises(Interrupted):
        trace(tmp_path, "cut", forms=["printed"], watch=lambda name: interrupt)
    assert not (tmp_path / "cut" / "frontier.json").exists()
    cut, whole = (trace(tmp_path, out, forms=["printed"]) for out in ("cut", "whole"))
    assert cut == whole
    assert json.loads((tmp_path / "cut" / "frontier.json").read_text())["weights"] == [0.25, 4.0]
    assert read_frontier(tmp_path / "cut").curves == whole.curves


def test_a_failed_run_leaves_a_gap_and_is_named(tmp_path: Path) -> None:
    frontier = trace(tmp_path, forms=["flashback.alpha=1e30"], weights=[1, 2])
    assert len(frontier.failures) == 2
    assert all("no longer finite" in problem for problem in frontier.failures.values())
    assert all(point.old is None for point in frontier.points()["flashback.alpha 1e30"])
    assert all(point.old is not None for point in frontier.points()["host alone"])


def test_forms_are_names_settings_or_both() -> None:
    base = configure("lucir", "split-cifar100")
    free = parse_form("free-primary", base)
    assert free.flashback
    assert free.settings["flashback.phase1_stability"] == 0
    assert free.settings["flashback.alpha"] == 0.8  # ten times the recipe's
    assert free.at(60)["flashback.epochs"] == 21
    assert free.at(2)["flashback.epochs"] == 1
    other = parse_form("free-primary,flashback.alpha=0.5,flashback.epochs=7", base)
    assert (other.settings["flashback.alpha"], other.at(60)["flashback.epochs"]) == (0.5, 7)
    assert other.name == "free-primary (flashback.alpha 0.5, flashback.epochs 7)"
    printed = configure("lucir", "split-cifar100", flashback=True, settings=parse_form("printed", base).at(60))
    assert printed == configure("lucir", "split-cifar100", flashback=True)
    short = configure("lucir", "split-cifar100", settings=of_recipe({"training.epochs": 20}))
    assert parse_form("printed", short).at(20)["flashback.epochs"] == 3  # a sixth, as in the recipe
    control = parse_form("training.average=0.9,training.views=[crop,flip]", base)
    assert not control.flashback
    assert control.settings["training.views"] == ["crop", "flip"]
    with pytest.raises(FlashbackError, match="a form chooses seed itself"):
        parse_form("seed=3", base)


def test_a_form_of_the_catalogue_is_the_same_with_every_recipe() -> None:
    """An improved recipe changes settings for flashback; the printed form is still the printed one."""
    base, improved = (configure("lucir", "split-cifar100", recipe=kind) for kind in ("controlled", "improved"))
    printed, free = ([parse_form(name, recipe) for recipe in (base, improved)] for name in ("printed", "free-primary"))
    for plain, undone in (printed, free):
        configs = [
            configure("lucir", "split-cifar100", flashback=True, recipe=recipe.recipe, settings=form.at(60))
            for form, recipe in ((plain, base), (undone, improved))
        ]
        assert configs[0].flashback == configs[1].flashback
    own = parse_form("flashback.where=better", improved)
    assert own.at(60) == {"flashback.where": "better"}  # on top of the recipe


def test_a_form_has_both_phases_or_is_refused(tmp_path: Path) -> None:
    base = configure("lucir", "split-cifar100")
    assert parse_form("printed", base).at(1)["flashback.epochs"] == 1
    none = configure("lucir", "split-cifar100", settings={"flashback.epochs": 0}, flashback=False)
    assert parse_form("printed", none).at(60)["flashback.epochs"] == 0
    write_tiny(tmp_path / "tiny.npz")
    with pytest.raises(FlashbackError, match="leaves nothing for phase 2"):
        trace_frontier(
            "lwf-mc", tmp_path / "tiny.npz", out=tmp_path / "out", device="cpu",
            settings={"training.epochs": 1, "training.batch_size": 8, "benchmark.sizes": [2, 3, 2]},
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("flashback.second_epochs=9", r"the two phases take 1 \+ 9 epochs and the host alone takes 2"),
        ("training.epochs=3", "training.epochs would be 3 and for the host alone 2"),
        ("training.first_epochs=5", "training.first_epochs would be 5 and for the host alone None"),
    ],
)
def test_forms_of_another_cost_are_refused(tmp_path: Path, form: str, words: str) -> None:
    with pytest.raises(FlashbackError, match=f"forms are compared at equal cost, but {words}"):
        trace(tmp_path, forms=[form])
    assert not (tmp_path / "out").exists()


def test_the_epochs_of_other_stages_count_too() -> None:
    base = configure("lucir")
    longer = configure("lucir", settings=parse_form("host.finetune_epochs=200", base).settings)
    with pytest.raises(FlashbackError, match=r"host\.finetune_epochs would be 200 and for the host alone 10"):
        check_equal_cost(longer, base)


def test_what_a_recipe_changes_for_flashback_does_not_undo_the_users_epochs(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.npz")
    change = {"training.epochs": {"value": 5, "from": "trials"}}
    kind = {"benchmark": "tiny.npz", "kind": "improved", "settings": {}, "flashback_settings": change}
    recipe = tmp_path / "improved.yaml"
    recipe.write_text(json.dumps({"host": "lwf-mc", "recipes": [kind]}))
    frontier = trace(tmp_path, forms=["printed"], weights=[1, 2], recipe=str(recipe))
    assert not frontier.failures
    runs = [read_run(path.parent) for path in (tmp_path / "out").rglob("results.json")]
    assert {run.config["training"]["epochs"] for run in runs} == {2}


def test_a_host_without_a_stability_loss_is_refused_whatever_the_weights(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.npz")
    with pytest.raises(FlashbackError, match="stability"):
        trace_frontier(
            "er", tmp_path / "tiny.npz", out=tmp_path / "out", weights=[0.3, 1.0], device="cpu",
            settings={**SETTINGS, "benchmark.sizes": [2, 3, 2]},
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", catalogue())
def test_every_form_of_the_catalogue_is_valid(name: str) -> None:
    base = configure("lucir", "split-cifar100")
    forms = list(variants_of(name, base, 0.2))
    assert len({str(form.settings) for form in forms}) == len(forms)
    for form in forms:
        config = configure("lucir", "split-cifar100", flashback=form.flashback, settings=form.at(60))
        assert config.flashback.enabled == form.flashback
    assert catalogue()[name]["about"]
