"""A form is chosen on validation images within its budget, and "take the host alone" is an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashback import FlashbackError, configure
from flashback.recipes import config_from_dict, resolving
from flashback.studies import choosing
from flashback.studies.choosing import Trial, choose_form
from flashback.studies.jobs import Job
from flashback.training import Interrupted

EPOCHS = 8
SETTINGS: dict[str, Any] = {"training.epochs": EPOCHS, "benchmark.tasks": 2, "host.net": "smallcnn"}
Score = Callable[[Any], float | None]


class FakeRuns:
    """Runs that answer at once with the accuracy that `score` gives their configuration."""

    def __init__(self, score: Score) -> None:
        self.score, self.jobs, self.left = score, list[Job](), 10**6

    def run_jobs(self, jobs: Sequence[Job], *_: Any, **__: Any) -> dict[str, str]:
        failures = {}
        for job in jobs:
            if not self.left:
                raise Interrupted
            self.left -= 1
            self.jobs.append(job)
            accuracy = self.score(config_from_dict(job.config))
            if accuracy is None:
                failures[job.name] = "the loss is no longer finite"
                continue
            job.folder.mkdir(parents=True)
            (job.folder / "accuracy").write_text(str(accuracy + 0.1 * (job.seed % 2)))
        return failures


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    runs = FakeRuns(lambda config: 50.0)
    monkeypatch.setattr(choosing, "run_jobs", lambda *a, **k: runs.run_jobs(*a, **k))
    monkeypatch.setattr(choosing, "is_finished", lambda job: (job.folder / "accuracy").exists())
    read = lambda folder: SimpleNamespace(metric=lambda: float((folder / "accuracy").read_text()))  # noqa: E731
    monkeypatch.setattr(choosing, "read_finished", read)
    return runs


def free_primary_pays(config: Any) -> float:
    score = 50.0 + (1.0 if config.training.stability == 3 else 0.0)
    if config.flashback.enabled and config.flashback.phase1_stability == 0:
        score += 3.0 if config.flashback.alpha == pytest.approx(0.1) else 1.0
    return score


def test_the_form_that_pays_is_chosen_and_its_recipe_sets_up_both_arms(fake: FakeRuns, tmp_path: Path) -> None:
    fake.score = free_primary_pays
    choice = choose_form("lucir", out=tmp_path, settings=SETTINGS)
    assert choice.takes_form
    assert choice.form is not None
    assert (choice.form.name, choice.tuned.name) == (
        "free-primary (flashback.alpha 0.1)",
        "stability (training.stability 3.0)",
    )
    assert "Take free-primary (flashback.alpha 0.1) (+2.00 points" in choice.answer
    host, form = (configure("lucir", recipe=str(choice.recipe), flashback=arm) for arm in (False, True))
    assert (host.training.stability, form.training.stability) == (3.0, 1.0)  # the form won without that weight
    assert (host.training.epochs, host.benchmark.validation) == (EPOCHS, 0.0)
    assert (form.flashback.phase1_stability, form.flashback.alpha, form.flashback.epochs) == (0.0, 0.1, 3)
    recipe = choice.recipe.read_text()
    assert "kind: improved" in recipe
    assert "candidates on validation images" in recipe
    written = json.loads((tmp_path / "trials.json").read_text())
    assert written["answer"] == choice.answer
    assert len(written["trials"]) == len(choice.trials)


def test_the_host_alone_is_an_answer(fake: FakeRuns, tmp_path: Path) -> None:
    fake.score = lambda config: 50.0 - 2 * config.flashback.enabled
    choice = choose_form("lucir", out=tmp_path, settings=SETTINGS)
    assert not choice.takes_form
    assert choice.tuned is choice.plain
    assert choice.answer.startswith("Take the host alone, as its recipe has it (")
    assert "gains too little: -2.00 points" in choice.answer


def test_validation_images_alone_and_within_the_budget(fake: FakeRuns, tmp_path: Path) -> None:
    choice = choose_form("lucir", out=tmp_path, settings=SETTINGS, budget=16)
    assert all(job.config["benchmark"]["validation"] == 0.1 for job in fake.jobs)
    lengths = [job.config["training"]["epochs"] for job in fake.jobs]
    assert choice.spent == sum(lengths) / EPOCHS <= 16
    assert lengths == sorted(lengths)
    assert (lengths.count(2), lengths.count(4)) == (13, 5)  # all candidates, then a third of each kind
    assert sorted({job.seed for job in fake.jobs if job.config["training"]["epochs"] == EPOCHS}) == [0, 1]
    assert all(0 < job.config["flashback"]["epochs"] < job.config["training"]["epochs"] for job in fake.jobs)
    more = choose_form("lucir", out=tmp_path, settings=SETTINGS, budget=20)
    assert len(more.plain.accuracies) == 3  # what is there is used again
    assert len(fake.jobs) == len(lengths) + 4


def test_forms_of_ones_own_keep_their_share_of_phase_1(fake: FakeRuns, tmp_path: Path) -> None:
    forms = ["flashback.alpha=0.5", "flashback.epochs=4,flashback.alpha=0.3", "training.average=0.9"]
    choose_form("lucir", out=tmp_path, settings=SETTINGS, forms=forms)
    phases = {
        (job.config["flashback"]["alpha"], job.config["training"]["epochs"]): job.config["flashback"]["epochs"]
        for job in fake.jobs
        if job.config["flashback"]["enabled"]
    }
    assert phases == {(0.5, 2): 1, (0.5, 4): 1, (0.5, 8): 1, (0.3, 2): 1, (0.3, 4): 2, (0.3, 8): 4}


def improved_recipe(path: Path, **changes: Any) -> str:
    """A recipe file that changes settings for flashback alone; two underscores stand for a dot."""
    given = {key.replace("__", "."): {"value": value, "from": "trials"} for key, value in changes.items()}
    kind = {"benchmark": "split-fashion-mini", "kind": "improved", "settings": {}, "flashback_settings": given}
    path.write_text(json.dumps({"host": "lucir", "recipes": [kind]}))
    return str(path)


def test_a_recipe_for_both_arms_holds_what_was_tried(fake: FakeRuns, tmp_path: Path) -> None:
    """The recipe's own changes for flashback are neither mixed into a form nor lost in the recipe that is written."""
    recipe = improved_recipe(tmp_path / "improved.yaml", training__average=0.99, flashback__teacher="running")
    fake.score = lambda config: 50.0 + config.flashback.enabled + 2 * (config.training.average == 0.999)
    choice = choose_form("lucir", out=tmp_path / "out", settings=SETTINGS, recipe=recipe, budget=30)
    flashback = [job.config for job in fake.jobs if job.config["flashback"]["enabled"]]
    assert {config["training"]["average"] for config in flashback} == {None}
    assert {config["flashback"]["teacher"] for config in flashback} == {"primary", "running"}
    assert not choice.left_out
    assert choice.tuned.name == "average (training.average 0.999)"
    written = configure("lucir", recipe=str(choice.recipe), flashback=True)
    assert written.training.average is None
    assert written.flashback.teacher == ("running" if "running" in choice.form.name else "primary")  # type: ignore[union-attr]


def test_all_candidates_of_a_round_have_its_length(fake: FakeRuns, tmp_path: Path) -> None:
    longer = improved_recipe(tmp_path / "longer.yaml", training__epochs=12, training__first_epochs=16)
    choice = choose_form("lucir", out=tmp_path / "out", settings=SETTINGS, forms=["printed"], recipe=longer)
    for job in fake.jobs:
        training, rounds = job.config["training"], job.folder.relative_to(tmp_path / "out").parts[0]
        assert (f"{training['epochs']}-epochs", training["first_epochs"]) == (rounds, None)
    assert choice.spent == sum(job.config["training"]["epochs"] for job in fake.jobs) / EPOCHS


def test_settings_are_added_to_the_recipe_for_flashback(fake: FakeRuns, tmp_path: Path) -> None:
    half = improved_recipe(tmp_path / "half.yaml", flashback__epochs=configure("lucir").training.epochs // 2)
    choose_form("lucir", out=tmp_path / "out", settings=SETTINGS, forms=["flashback.where=better"], recipe=half)
    phases = {
        (job.config["training"]["epochs"], job.config["flashback"]["epochs"])
        for job in fake.jobs
        if job.config["flashback"]["enabled"]
    }
    assert phases == {(2, 1), (4, 2), (8, 4)}


@pytest.mark.parametrize("stop", [1, 9, 15, 20, 25])
def test_an_interrupted_choice_is_the_uninterrupted_one(fake: FakeRuns, tmp_path: Path, stop: int) -> None:
    fake.score, fake.left = free_primary_pays, stop
    with pytest.raises(Interrupted):
        choose_form("lucir", out=tmp_path / "cut", settings=SETTINGS)
    fake.left = 10**6
    cut, whole = (choose_form("lucir", out=tmp_path / out, settings=SETTINGS) for out in ("cut", "whole"))
    assert cut == whole
    assert cut.recipe.read_bytes() == whole.recipe.read_bytes()
    names = [[job.name for job in fake.jobs if job.folder.is_relative_to(tmp_path / out)] for out in ("cut", "whole")]
    assert names[0] == names[1]


def test_a_candidate_that_fails_comes_last(fake: FakeRuns, tmp_path: Path) -> None:
    fake.score = lambda config: None if config.flashback.alpha == pytest.approx(0.1) else free_primary_pays(config)
    choice = choose_form("lucir", out=tmp_path, settings=SETTINGS, forms=["free-primary"], budget=10)
    assert choice.form is not None
    assert choice.form.name == "free-primary (flashback.alpha 0.01)"
    assert choice.trials[1].mean is None
    assert set(choice.failures.values()) == {"the loss is no longer finite"}
    assert all(name.startswith("free-primary (flashback.alpha 0.1), ") for name in choice.failures)
    assert json.loads((tmp_path / "trials.json").read_text())["failures"] == choice.failures


def test_a_choice_without_the_host_alone_is_none(fake: FakeRuns, tmp_path: Path) -> None:
    fake.score = lambda config: 50.0 if config.flashback.enabled else None
    with pytest.raises(
        FlashbackError, match=r"the host alone failed, .* \(host alone, 2 epochs, seed 0 and \d+ more: "
    ):
        choose_form("lucir", out=tmp_path, settings=SETTINGS, forms=["printed"], budget=20)
    assert not (tmp_path / "recipe.yaml").exists()


def test_a_lead_within_its_standard_error_is_not_taken() -> None:
    host = Trial("host", {}, False, 8, {0: 50.0, 1: 50.0, 2: 50.0})
    unsure = Trial("unsure", {}, True, 8, {0: 52.0, 1: 50.0, 2: 49.0})
    sure = Trial("sure", {}, True, 8, {0: 50.5, 1: 50.4, 2: 50.6})
    lead = unsure.lead(host)
    assert lead is not None
    assert lead == pytest.approx((1 / 3, (7 / 3) ** 0.5 / 3**0.5))
    assert not unsure.pays_over(host)
    assert sure.pays_over(host)
    assert not Trial("one seed", {}, True, 8, {0: 60.0}).pays_over(Trial("host", {}, False, 8, {0: 50.0}))
    assert not Trial("failed", {}, True, 8, {0: 60.0, 1: 60.0, 2: None}).pays_over(host)


def test_forms_that_do_not_apply_are_left_out(fake: FakeRuns, tmp_path: Path) -> None:
    choice = choose_form("oewc", out=tmp_path, settings=SETTINGS, budget=30)
    assert {name.split()[0] for name in choice.left_out} == {"running-teacher"}
    assert all("copy of the whole network" in reason for reason in choice.left_out.values())
    bare = choose_form("finetune", out=tmp_path / "bare", settings=SETTINGS, budget=30)
    assert bare.form is None
    assert "no form of flashback applies" in bare.answer


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 8}, r"a budget \(--budget\) of 8 runs is too small for 13 candidates, .* at least 13\.8"),
        ({"recipe": "anchor", "host": "icarl", "benchmark": "split-cifar100"}, "on top of the controlled recipe, not"),
        ({"settings": {"flashback.alpha": 1.0}}, "forms choose flashback.alpha; take it out"),
        ({"settings": {"seed": 1}}, "tuning chooses seed itself"),
        ({"forms": ["prited"]}, "did you mean 'printed'"),
        ({"forms": ["printed", "printed"]}, "each form counts once"),
        ({"forms": ["running-teacher"], "host": "oewc"}, "no form applies to this host"),
        ({"forms": ["flashback.epochs=8"]}, "no form applies to this host: .*leaves nothing for phase 2"),
        ({"forms": ["flashback.epochs=4,flashback.second_epochs=8"]}, "compared at equal cost"),
        ({"forms": ["training.epochs=40"]}, "compared at equal cost"),
        ({"forms": ["host.finetune_epochs=200"]}, "compared at equal cost"),
    ],
)
def test_what_makes_no_sense_is_refused(fake: FakeRuns, tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(FlashbackError, match=words):
        choose_form(**{"host": "lucir", "out": tmp_path, "settings": SETTINGS, **options})
    assert not fake.jobs


def test_an_improved_recipe_is_on_top_of_the_controlled_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from flashback.recipes.catalogue import Recipe, list_recipes

    values = {"training.lr": 0.5}, {"flashback.alpha": 0.7, "training.stability": 2.0}
    improved = Recipe("lucir", "split-cifar10", "improved", *values, dict.fromkeys((*values[0], *values[1]), "trials"))
    recipes = (*list_recipes(), improved)
    monkeypatch.setattr(resolving, "find_recipe", lambda *key: next(
        (recipe for recipe in recipes if (recipe.host, recipe.benchmark, recipe.kind) == key), None
    ))  # fmt: skip
    controlled = configure("lucir", "split-cifar10")
    host, form = (configure("lucir", "split-cifar10", recipe="improved", flashback=arm) for arm in (False, True))
    assert host.host == controlled.host
    assert (host.training.lr, host.training.stability) == (0.5, 1.0)
    assert (form.training.lr, form.training.stability, form.flashback.alpha) == (0.5, 2.0, 0.7)
    assert (host.recipe, host.training.epochs) == ("improved", controlled.training.epochs)
    with pytest.raises(FlashbackError, match="no improved recipe for icarl on split-cifar10"):
        configure("icarl", "split-cifar10", recipe="improved")
