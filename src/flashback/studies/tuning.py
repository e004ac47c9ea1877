"""Choose settings on a validation split of the training images, never on the test images."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import yaml

from flashback.config import RunConfig, to_dict
from flashback.errors import import_extra, require
from flashback.files import ANOTHER_FOLDER, refuse_special, remove_cache, write_atomically
from flashback.hosts.external import HostFiles, external_code
from flashback.recipes import Recipe, check_not_fixed_by_user, configure
from flashback.recipes.resolving import is_recipe_file, recipe_from_file
from flashback.records import RunFolder, dotted, is_begun, read_record
from flashback.studies.executors import find_executor
from flashback.studies.jobs import Executor, Job, Local, RunContext, is_finished, run_all
from flashback.studies.shared_study import SharedStudy
from flashback.studies.sweeps import label
from flashback.training.first_task_cache import SHARED
from flashback.training.running import run_digest
from flashback.training.trainer import Observer

VALIDATION = 0.1  # of the training images of every class
ALPHAS = (0.001, 0.01, 0.1, 1.0)
AT_A_TIME = 8  # choices that are tried at a time on other machines
CHECKED = 500  # combinations, a millisecond each
HELD_OUT = "benchmark.validation"
FLASHBACK = "flashback."
OLD_STUDY = "study.db"  # marks the folder of a tuning of version 0.1.0, which has a config.yaml but is not a run
Space = dict[str, Sequence[Any]]  # the values to choose among, by setting; a range has an order to search along
Choice = Mapping[str, Any]  # one value for each setting of a space
Trials = list[tuple[Choice, float]]  # choices that were tried, each with its accuracy


@dataclass(frozen=True)
class TuningResult:
    """The best choice, and all choices that were tried, each once; fewer than requested if there are no more."""

    choice: Choice
    accuracy: float
    trials: list[dict[str, Any]]  # choices, each with its "accuracy"
    recipe: Path
    host_accuracy: float  # of the host alone with nothing chosen, on the same validation images
    with_flashback: bool  # settings of flashback were chosen, not those of both arms


def tune(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    out: str | Path,
    over: Mapping[str, Sequence[Any]] | None = None,
    trials: int = 8,
    seed: int = 0,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    on: str | Executor = "local",
    storage: str | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> TuningResult:
    """Search settings with Optuna on a validation split.

    Settings of flashback are chosen for the host with flashback; all others, which both arms share, for the host alone.
    The host alone with nothing chosen runs first, as the accuracy to beat. All runs are kept in `out`. The same call
    continues them, and an interrupted search tries the same choices as one that was never interrupted.

    Args:
        host: The name of the method.
        benchmark: The name of a benchmark, or the path of an .npz file or of a folder of images.
        out: The folder for all runs and recipe.yaml.
        over: The values to choose among, by setting; by default alpha_p and E1.
        trials: How many choices to try, those of earlier calls included.
        seed: Decides all randomness.
        recipe: "controlled", "anchor", "as-published", "improved", "defaults" or the path of a recipe
            file.
        settings: Settings by dotted key that are not chosen; they win over the recipe.
        jobs: How many choices are tried at a time; by default one on this machine, and eight elsewhere. Which choices
            are tried depends on it.
        on: Where runs train, as for `compare`.
        storage: Where several calls, each with a folder of its own, share the search: the address of a PostgreSQL
            database, or "journal:FILE" on a disk they share.
        data: The folder the data sets are in; by default the cache folder.
        device: "auto", "cpu" or "cuda".
        host_file: A file, or several, that register hosts or nets.
        watch: Gives the observer of a run by its name.

    Returns:
        The best choice, all trials, and the path of a recipe file that holds the choice.

    Raises:
        FlashbackError: Optuna is missing, or the settings to choose make no sense.
    """
    optuna = import_extra("optuna", "tune", "flashback tune needs the package optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    require(trials >= 1, f"trials (--trials) is at least 1, not {trials}")
    overrides, folder = dotted(settings or {}), Path(out)
    check_not_fixed_by_user(overrides, "tuning")
    executor = find_executor(on, jobs)
    at_a_time = getattr(executor, "jobs", None) or (1 if isinstance(executor, Local) else AT_A_TIME)
    context = RunContext.of(data, device, host_file, executor=executor)
    bare = {key: value for key, value in overrides.items() if not key.startswith(FLASHBACK)}

    def configured(choice: Choice, flashback: bool) -> RunConfig:
        values = {HELD_OUT: VALIDATION, **(overrides if flashback else bare), **choice}
        return configure(host, benchmark, flashback=flashback, seed=seed, recipe=recipe, settings=values, data=data)

    alone = configured({}, flashback=False)
    require(alone.benchmark.validation > 0, "tuning needs benchmark.validation above 0; it never uses test images")
    first_epochs = range(1, max(1, alone.training.epochs // 2) + 1)
    space: Space = dict(over or {"flashback.alpha": ALPHAS, "flashback.epochs": first_epochs})
    with_flashback = check_space(space, overrides)
    space = as_configured(space, lambda choice: configured(choice, with_flashback))
    require(not is_begun(folder) or (folder / OLD_STUDY).exists(), f"{folder} holds a run; {ANOTHER_FOLDER}")

    def accuracies_of(configs: Mapping[str, RunConfig]) -> list[float]:
        planned = [
            Job("", seed, to_dict(config), folder / name, context, name, folder / SHARED)
            for name, config in configs.items()
        ]
        for job in planned:
            refuse_special(job.folder)
        failures = run_all([job for job in planned if not is_finished(job)], executor, watch, folder)
        require(not failures, "; ".join(f"{name}: {problem}" for name, problem in failures.items()))
        records = [read_record(job.folder).results["class_incremental"] for job in planned]
        return [float(record["average_accuracy"]) for record in records]

    def try_choices(choices: Sequence[Choice]) -> list[float]:
        configs = [configured(choice, with_flashback) for choice in choices]
        new = {label(choice): config for choice, config in zip(choices, configs, strict=True) if config != alone}
        measured = dict(zip(new, accuracies_of(new), strict=True))
        return [measured.get(label(choice), host_accuracy) for choice in choices]

    (host_accuracy,) = accuracies_of({"host": alone})
    if storage is None:
        results = search(optuna, space, try_choices, trials, seed, at_a_time)
    else:
        base = to_dict(alone)
        learned = [run_digest(alone, context.checksum(base) or ""), external_code(alone.host.name, alone.host.net)]
        identity = [learned, overrides, {key: list(values) for key, values in space.items()}]
        with RunFolder(folder).lock():
            study = SharedStudy(optuna, storage, identity, folder, seed)
            results = study.search(space, suggested, try_choices, trials, at_a_time)
    require(bool(results), "other drivers are trying all the choices; repeat the command when one of them has finished")
    ranked = sorted(results, key=lambda trial: -trial[1])
    remove_cache(folder / SHARED)
    best, accuracy = ranked[0]
    sources = {
        "given to flashback tune": {key: value for key, value in overrides.items() if key != HELD_OUT},
        f"tuned on a validation split of the training images, {len(ranked)} choices": best,
    }
    note = f"validation average accuracy {accuracy:.2f}, of the host alone {host_accuracy:.2f}"
    path = write_recipe(folder / "recipe.yaml", alone, recipe, sources, note)
    all_tried = [{**choice, "accuracy": value} for choice, value in ranked]
    return TuningResult(best, accuracy, all_tried, path, host_accuracy, with_flashback)


def search(
    optuna: Any,
    space: Space,
    try_choices: Callable[[Sequence[Choice]], Sequence[float]],
    trials: int,
    seed: int,
    at_a_time: int = 1,
) -> Trials:
    """Try different choices until there are `trials` of them, or all there are; returns each with its accuracy.

    The runs on disk are the study: repeating the search over them leads to the choice at which it was interrupted.
    Choices are asked for and told in batches, so the search does not depend on which run of a batch ends first.
    """
    sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=at_a_time > 1)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    left: list[Choice] = [dict(zip(space, values, strict=True)) for values in product(*space.values())]
    results: Trials = []
    while left and len(results) < trials:
        batch: list[Choice] = []
        pending: list[tuple[Any, Choice]] = []
        while left and len(batch) < min(at_a_time, trials - len(results)):
            trial = study.ask()
            choice: Choice = {key: suggested(trial, key, values) for key, values in space.items()}
            if choice in left:
                left.remove(choice)
                batch.append(choice)
            else:  # the sampler came back to a choice: it would do so again and again
                study.enqueue_trial(random.Random(trial.number + 1).choice(left))
            if choice in batch:
                pending.append((trial, choice))
            else:
                study.tell(trial, accuracy_in(results, choice))
        results += zip(batch, try_choices(batch), strict=True)
        for trial, choice in pending:
            study.tell(trial, accuracy_in(results, choice))
    return results


def accuracy_in(results: Trials, choice: Choice) -> float:
    return next(accuracy for earlier, accuracy in results if earlier == choice)


def check_space(space: Space, settings: Mapping[str, Any]) -> bool:
    """Refuse what cannot be chosen; return whether it is flashback's settings that are."""
    check_not_fixed_by_user(space, "tuning")
    for key, values in space.items():
        require(key not in settings, f"tuning chooses {key} itself; take it out of the settings")
        require(not key.startswith("benchmark."), f"{key} cannot be tuned: it changes what is to be learned")
        several = isinstance(values, Sequence) and not isinstance(values, str)
        require(several and bool(values), f"{key} needs a list of values to choose among")
        require(
            all(isinstance(value, str | int | float | None) for value in values),
            f"{key} is chosen among numbers, words, true and false; for lists use a sweep on validation images",
        )
    of_flashback = [key.startswith(FLASHBACK) for key in space]
    require(
        all(of_flashback) or not any(of_flashback),
        "settings of flashback are tuned for the host with flashback, those of both arms for the host alone: first "
        "tune the latter, then, with the recipe that this writes, the former",
    )
    return all(of_flashback)


def as_configured(space: Space, configured: Callable[[Choice], RunConfig]) -> Space:
    result: Space = {}
    first = {key: values[0] for key, values in space.items()}
    for key, values in space.items():
        converted = [dotted(to_dict(configured({**first, key: value})))[key] for value in values]
        require(len(set(converted)) == len(converted), f"{key} has the same value twice among those to choose among")
        result[key] = values if isinstance(values, range) else converted
    for choice in islice(product(*result.values()), CHECKED):  # values may be fine alone and not together
        configured(dict(zip(result, choice, strict=True)))
    return result


def suggested(trial: Any, key: str, values: Sequence[Any]) -> Any:
    if isinstance(values, range):
        return trial.suggest_int(key, values[0], values[-1])
    return trial.suggest_categorical(key, values)


def write_recipe(
    path: Path,
    base: RunConfig,
    recipe: str,
    sources: Mapping[str, Mapping[str, Any]],
    note: str,
    kind: str = "",
    flashback: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a recipe file that keeps the values of the recipe file it starts from.

    Args:
        path: The file to write.
        base: A configuration with the host and the benchmark.
        recipe: The kind of recipe, or the recipe file, that it starts from.
        sources: The new values for both arms, by their source.
        note: A remark.
        kind: The kind of the recipe; by default that of the one it starts from.
        flashback: New values for the arm with flashback alone, by their source.
    """
    host, benchmark = base.host.name, base.benchmark.name
    file = Path(recipe) if is_recipe_file(recipe) else None
    before = recipe_from_file(host, benchmark, file) if file else Recipe(host, benchmark, recipe, {}, {}, {})

    def sourced(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {
            key: {"value": value, "from": source} for source, some in sources.items() for key, value in some.items()
        }

    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: {"value": value, "from": before.sources[key]} for key, value in values.items() if key not in new}

    new = sourced(sources)
    entry = {
        "benchmark": benchmark,
        "kind": kind or before.kind,
        "note": note,
        "settings": kept(before.settings) | new,
        "flashback_settings": kept(before.flashback_settings) | sourced(flashback or {}),
    }
    write_atomically(path, yaml.safe_dump({"host": host, "recipes": [entry]}, sort_keys=False))
    return path
