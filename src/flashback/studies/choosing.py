"""Choose a form and its weights on validation images, within a budget of runs; "take the host alone" is an answer."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from flashback.config import RunConfig, to_dict
from flashback.errors import FlashbackError, require
from flashback.files import ANOTHER_FOLDER, write_atomically
from flashback.hosts.external import HostFiles
from flashback.metrics.statistics import deviation, mean, signed
from flashback.recipes import check_not_fixed_by_user, configure, falls_back_to_defaults
from flashback.recipes.catalogue import CONTROLLED, DEFAULTS, IMPROVED
from flashback.recipes.resolving import is_recipe_file, recipe_from_file
from flashback.records import dotted, is_begun
from flashback.records.terms import FLASHBACK, HOST
from flashback.results.naming import setting_in_words
from flashback.studies.comparison import read_finished
from flashback.studies.executors import find_executor
from flashback.studies.jobs import Executor, Job, RunContext, group_failures, is_finished, run_jobs
from flashback.studies.sweeps import label
from flashback.studies.tuning import HELD_OUT, VALIDATION, write_recipe
from flashback.studies.variants import (
    FLASHBACK_KEYS,
    PHASE_1_EPOCHS,
    Variant,
    catalogue,
    check_equal_cost,
    of_recipe,
    parse_form,
    phase_1_share,
    variants_of,
)
from flashback.training.building import build_method, open_benchmark
from flashback.training.trainer import Observer

SCREENING = (0.25, 0.5)  # lengths of the short runs, as shares of the epochs
KEPT = 3  # one in three candidates of a kind, with flashback or without, continues to longer runs
FINALISTS = 2  # forms of flashback that are trained at full length, with several seeds
FEWEST_SEEDS = 2
EPOCHS, FIRST_EPOCHS, SECOND_EPOCHS = "training.epochs", "training.first_epochs", "flashback.second_epochs"
ALONE = Variant("host alone", {}, False)
TRIALS = "trials.json"


@dataclass(frozen=True)
class Trial:
    """A candidate at one length: its accuracy on validation images by seed, None where its run failed."""

    name: str
    settings: dict[str, Any]
    flashback: bool
    epochs: int
    accuracies: dict[int, float | None]

    @cached_property
    def mean(self) -> float | None:
        """The mean over all seeds; None if one of them has no accuracy."""
        known = [value for value in self.accuracies.values() if value is not None]
        return mean(known) if len(known) == len(self.accuracies) else None

    def lead(self, other: "Trial") -> tuple[float, float] | None:
        """The mean advantage over another candidate with the same seeds, and its standard error."""
        pairs = [(self.accuracies[seed], value) for seed, value in other.accuracies.items() if seed in self.accuracies]
        differences = [ours - others for ours, others in pairs if ours is not None and others is not None]
        if len(differences) < len(pairs) or len(differences) < FEWEST_SEEDS:
            return None
        return sum(differences) / len(differences), (deviation(differences) or 0.0) / math.sqrt(len(differences))

    def pays_over(self, other: "Trial") -> bool:
        """Whether it leads by more than the standard error; else the simpler one is kept."""
        lead = self.lead(other)
        return lead is not None and lead[0] > max(0.0, lead[1])


@dataclass(frozen=True)
class FormChoice:
    """The outcome of all trials, and whether to take the best form or the host alone.

    Attributes:
        plain: The host as its recipe has it, at full length.
        tuned: The best candidate without flashback.
        form: The best form of flashback; None if no form applies to this host.
        trials: All candidates at all lengths, the shortest first.
        left_out: The candidates that do not apply to this host, with the reason.
        failures: What went wrong with the runs that failed; their candidates come last.
        spent: The cost of all runs in runs of full length.
        recipe: A recipe file of the kind `improved`.
    """

    plain: Trial
    tuned: Trial
    form: Trial | None
    trials: list[Trial]
    left_out: dict[str, str]
    failures: dict[str, str]
    spent: float
    recipe: Path = field(compare=False)

    @property
    def takes_form(self) -> bool:
        return self.form is not None and self.form.pays_over(self.tuned)

    @property
    def answer(self) -> str:
        seeds = f"{len(self.plain.accuracies)} seeds"
        tuned = "as its recipe has it" if self.tuned is self.plain else f"with {self.tuned.name}"
        if self.form is None:
            return f"Take the host alone, {tuned}: no form of flashback applies to it."
        lead = self.form.lead(self.tuned)
        numbers = (
            f"{signed(lead[0])} points, standard error {lead[1]:.2f}, {seeds}" if lead else "not all runs finished"
        )
        over = f"over the host alone {tuned}" if self.takes_form else f"{self.form.name} gains too little: {numbers}"
        if self.takes_form:
            return f"Take {self.form.name} ({numbers}, {over})."
        return f"Take the host alone, {tuned} ({over})."


def choose_form(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    out: str | Path,
    forms: Sequence[str] = (),
    budget: float = 20,
    seed: int = 0,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    on: str | Executor = "local",
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> FormChoice:
    """Choose among the host alone, its controls and forms of flashback, by average accuracy on a validation split.

    All candidates run with a quarter of the epochs; the best third of those with flashback, and of those without, with
    half of them. The host as its recipe has it, the best candidate without flashback and the best two with it then run
    at full length, with as many seeds as the budget allows. The simpler one is kept unless the other leads by more than
    the standard error of the difference by seed. The rule is fixed, so an interrupted call, repeated, ends with the
    same answer as one that was never interrupted.

    Args:
        host: The name of a method.
        benchmark: The name of a benchmark, or the path of an .npz file or of a folder of images.
        out: The folder for all runs, trials.json and recipe.yaml.
        forms: Forms beside the host alone: names of the catalogue, each with all its values, or settings as
            "key=value,key=value"; by default the whole catalogue.
        budget: What all runs together may cost, in runs of full length.
        seed: The first seed; longer runs also take those after it.
        recipe: "controlled", or a recipe file of that kind or of the kind "improved".
        settings: Settings by dotted key that are not chosen; they win over the recipe.
        jobs: How many runs train at a time, as for `compare`.
        on: Where runs train, as for `compare`.
        data: The folder the data sets are in; by default the cache folder.
        device: "auto", "cpu" or "cuda".
        host_file: A file, or several, that register hosts or nets.
        watch: Gives the observer of a run by its name.

    Returns:
        The choice, all trials, and the path of the recipe file.

    Raises:
        FlashbackError: The budget is too small for this many candidates, or the input makes no sense.
    """
    overrides, folder = dotted(settings or {}), Path(out)
    require(math.isfinite(budget), f"a budget (--budget) is a number of runs, not {budget}")
    check_not_fixed_by_user(overrides, "tuning")
    of_flashback = [key for key in overrides if key.startswith(FLASHBACK_KEYS)]
    require(not of_flashback, f"forms choose {', '.join(of_flashback)}; take it out of the settings, or name a form")
    check_kind(host, str(benchmark), recipe)
    require(not is_begun(folder), f"{folder} holds a run; {ANOTHER_FOLDER}")
    executor = find_executor(on, jobs)
    context = RunContext.of(data, device, host_file, executor=executor)

    def configured(form: Variant, epochs: int | None = None, at: int = seed, recipes: bool = False) -> RunConfig:
        values = {HELD_OUT: VALIDATION, **(of_recipe(overrides) if recipes else overrides)}
        if form.settings or form.phase1 is not None:
            values |= form.at(epochs or full)
        if epochs is not None:
            values |= shortened(base, epochs)
        return configure(host, benchmark, flashback=form.flashback, seed=at, recipe=recipe, settings=values, data=data)

    base = configured(ALONE)
    require(base.benchmark.validation > 0, "tuning needs benchmark.validation above 0; it never uses test images")
    full = base.training.epochs
    shares = [phase_1_share(configured(Variant("", {}, arm), recipes=True)) for arm in (False, True)]
    candidates, left_out = applicable(candidates_of(forms, base, *shares), configured, data)
    lengths = sorted({max(2, round(share * full)) for share in SCREENING if max(2, round(share * full)) < full})
    seeds = affordable_seeds(candidates, lengths, full, budget)

    def train(chosen: Sequence[Variant], epochs: int, some: Sequence[int]) -> list[Trial]:
        planned = {}
        for form in chosen:
            for number in some:
                config = configured(form, epochs, number)
                arm = FLASHBACK if form.flashback else HOST
                path = folder / f"{epochs}-epochs" / arm / label(form.at(epochs)) / f"seed-{number}"
                title = f"{form.name}, {epochs} epochs, seed {number}"
                planned[form.name, number] = Job(arm, number, to_dict(config), path, context, title)
        missing = [job for job in planned.values() if not is_finished(job)]
        failures.update(run_jobs(missing, executor, watch, folder))

        def accuracy(job: Job) -> float | None:
            return None if job.name in failures else read_finished(job.folder).metric()

        return [
            Trial(f.name, f.at(epochs), f.flashback, epochs, {n: accuracy(planned[f.name, n]) for n in some})
            for f in chosen
        ]

    trials: list[Trial] = []
    failures: dict[str, str] = {}
    for epochs in lengths:
        trials += train(candidates, epochs, [seed])
        candidates = best_third(candidates, trials[-len(candidates) :])
    finalists = final_round(candidates) if lengths else candidates
    last = train(finalists, full, range(seed, seed + seeds))
    trials += last
    plain, *others = last
    reasons = "; ".join(f"{name}: {problem}" for name, problem in group_failures(failures).items())
    require(plain.mean is not None, f"the host alone failed, so there is nothing to compare with ({reasons})")
    controls = sorted((trial for trial in others if not trial.flashback), key=lambda trial: -(trial.mean or 0.0))
    tuned = next((trial for trial in controls if trial.pays_over(plain)), plain)
    ranked = sorted((trial for trial in others if trial.flashback), key=lambda trial: -(trial.mean or 0.0))
    spent = sum(trial.epochs * len(trial.accuracies) for trial in trials) / full
    best = ranked[0] if ranked else None
    chosen = FormChoice(plain, tuned, best, trials, left_out, failures, spent, folder / "recipe.yaml")
    tried = next((configured(form, full) for form in finalists if best and form.name == best.name), base)
    write_choice(chosen, base, tried, recipe, {key: value for key, value in overrides.items() if key != HELD_OUT})
    return chosen


def check_kind(host: str, benchmark: str, recipe: str) -> None:
    kind = recipe_from_file(host, benchmark, Path(recipe)).kind if is_recipe_file(recipe) else recipe
    allowed = (CONTROLLED, IMPROVED) if is_recipe_file(recipe) else (CONTROLLED,)
    if falls_back_to_defaults(host, benchmark, CONTROLLED):
        allowed = (*allowed, DEFAULTS)
    require(kind in allowed, f"forms are chosen on top of the controlled recipe, not of {kind}")


def shortened(base: RunConfig, epochs: int) -> dict[str, Any]:
    first = base.training.first_epochs
    scaled = None if first is None else max(1, round(first * epochs / base.training.epochs))
    return {EPOCHS: epochs, FIRST_EPOCHS: scaled, SECOND_EPOCHS: None}


def candidates_of(forms: Sequence[str], base: RunConfig, share: float, flashback_share: float) -> list[Variant]:
    """The host alone, and every combination of values of the forms, each with a name of its own.

    Args:
        forms: Names of the catalogue, or settings.
        base: The host alone.
        share: The share of phase 1 in the recipe of the host alone, for forms of the catalogue.
        flashback_share: The share in the recipe for flashback, for forms that are settings.
    """
    candidates = [ALONE]
    for text in forms or list(catalogue()):
        several = [parse_form(text, base, share)] if "=" in text else list(variants_of(text.strip(), base, share))
        for form in several:
            varying = [key for key, value in form.settings.items() if any(o.settings[key] != value for o in several)]
            words = ", ".join(setting_in_words(key, form.settings[key]) for key in varying)
            name = f"{form.name} ({words})" if words else form.name
            candidates.append(scaling(replace(form, name=name), flashback_share, base.training.epochs))
    names = [form.name for form in candidates]
    require(len(set(names)) == len(names), "each form counts once; one is repeated")
    return candidates


def scaling(form: Variant, share: float, full: int) -> Variant:
    """A form whose phase 1 keeps its share of the epochs, by default the recipe's, in shorter runs."""
    if not form.flashback or form.settings.get("flashback.teacher") == "running":
        return form
    settings = dict(form.settings)
    first = settings.pop(PHASE_1_EPOCHS, None)
    phase1 = form.phase1 if first is None else first / full
    return replace(form, settings=settings, phase1=share if phase1 is None else phase1)


def applicable(
    candidates: Sequence[Variant], configured: Callable[[Variant], RunConfig], data: str | Path | None
) -> tuple[list[Variant], dict[str, str]]:
    """The candidates that this host can have, and the others with the reason; the host alone has to work."""
    benchmark = open_benchmark(configured(ALONE), data)
    build_method(configured(ALONE), benchmark, "cpu")
    kept, left_out = [], {}
    for form in candidates:
        try:
            check_equal_cost(configured(form), configured(ALONE))
            build_method(configured(form), benchmark, "cpu")
            kept.append(form)
        except FlashbackError as error:
            left_out[form.name] = str(error)
    require(len(kept) > 1, f"no form applies to this host: {next(iter(left_out.values()), '')}")
    return kept, left_out


def affordable_seeds(candidates: Sequence[Variant], lengths: Sequence[int], full: int, budget: float) -> int:
    """The seeds of the runs at full length that the budget leaves after the short runs."""
    cost, counts = 0.0, [sum(form.flashback == kind for form in candidates) for kind in (False, True)]
    finalists = (min(counts[0], 2) + min(counts[1], FINALISTS)) if lengths else sum(counts)
    for epochs in lengths:
        cost += sum(counts) * epochs / full
        counts = [kept(count) for count in counts]
    seeds = math.floor((budget - cost) / finalists + 1e-9)
    require(
        seeds >= FEWEST_SEEDS,
        f"a budget (--budget) of {budget:g} runs is too small for {len(candidates)} candidates, which need at least "
        f"{math.ceil(10 * (cost + FEWEST_SEEDS * finalists) - 1e-9) / 10:g}; raise it, or name fewer forms (--form)",
    )
    return seeds


def kept(count: int) -> int:
    return max(FINALISTS, math.ceil(count / KEPT)) if count > FINALISTS else count


def best_third(candidates: Sequence[Variant], trials: Sequence[Trial]) -> list[Variant]:
    """The best of those without flashback and of those with it, best first."""
    accuracy = {trial.name: trial.mean for trial in trials}

    def rank(form: Variant) -> float:
        value = accuracy[form.name]
        return math.inf if value is None else -value

    groups = [sorted((f for f in candidates if f.flashback == kind), key=rank) for kind in (False, True)]
    return [form for group in groups for form in group[: kept(len(group))]]


def final_round(candidates: Sequence[Variant]) -> list[Variant]:
    """The host alone, the best other candidate without flashback, and the best ones with it."""
    others = [form for form in candidates if not form.flashback and form != ALONE]
    return [ALONE, *others[:1], *[form for form in candidates if form.flashback][:FINALISTS]]


def write_choice(
    chosen: FormChoice, base: RunConfig, tried: RunConfig, recipe: str, user_settings: Mapping[str, Any]
) -> None:
    """Write all trials, and a recipe: the tuned host for both arms, and what the form, as it was tried, changes."""
    trials = [{**asdict(trial), "mean": trial.mean} for trial in chosen.trials]
    content = {"answer": chosen.answer, "spent": chosen.spent, "trials": trials, "left_out": chosen.left_out}
    content["failures"] = chosen.failures
    write_atomically(chosen.recipe.with_name(TRIALS), json.dumps(content, indent=1) + "\n")
    candidates = len({trial.name for trial in chosen.trials})
    source = f"flashback tune --forms: {candidates} candidates on validation images, {chosen.spent:.1f} full runs"
    as_tried = dotted(to_dict(tried))
    form: dict[str, Any] = {}
    if chosen.form is not None:
        undone = {key: as_tried[key] for key in chosen.tuned.settings if key not in chosen.form.settings}
        form = undone | chosen.form.settings
    write_recipe(
        chosen.recipe,
        base,
        recipe,
        {"given to flashback tune": user_settings, source: chosen.tuned.settings},
        chosen.answer,
        kind=IMPROVED,
        flashback={source: form},
    )
