"""Choose settings on a validation split of the training images, never on the test images."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import yaml

from flashback.config import RunConfig, to_dict
from flashback.errors import import_extra, require
from flashback.files import refuse_special, write_atomically
from flashback.hosts.external import HostFiles, find_hosts
from flashback.recipes import Recipe, check_free, comparable, configure
from flashback.recipes.resolving import is_recipe_file, recipe_from_file
from flashback.records import RunFolder, dotted, read_record
from flashback.studies.sweeps import label
from flashback.training.finished import IGNORED, finished_run
from flashback.training.first_task_cache import SHARED
from flashback.training.running import run
from flashback.training.trainer import Observer

VALIDATION = 0.1  # of the training images of every class
ALPHAS = (0.001, 0.01, 0.1, 1.0)
CHECKED = 500  # combinations, a millisecond each
HELD_OUT = "benchmark.validation"
FLASHBACK = "flashback."
STUDY = "study.db"  # beside the config.yaml of its first choice; no run lies in the folder itself
Space = dict[str, Sequence[Any]]  # the values to choose among, by setting; a range has an order to search along
Choice = tuple[Any, ...]  # one value for each setting of a space


@dataclass(frozen=True)
class Tuned:
    """The best choice, and all that were tried, each once; fewer than requested if there are no more."""

    choice: dict[str, Any]
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
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Tuned:
    """Search settings with Optuna on a validation split.

    Settings of flashback are chosen for the host with flashback; all others, which both arms share, for the host alone.
    The host alone with nothing chosen runs too, as the accuracy to beat. The study and its runs are kept in `out`, and
    the same call goes on with them.

    Args:
        host: The name of the method.
        benchmark: The name of a benchmark, or the path of an .npz file or of a folder of images.
        out: The folder for the study, its runs and recipe.yaml.
        over: The values to choose among, by setting; by default alpha_p and E1.
        trials: How many choices to try, those of earlier calls included.
        seed: Decides all randomness.
        recipe: "controlled", "anchor", "as-published", "defaults" or the path of a recipe file.
        settings: Settings by dotted key that are not chosen; they win over the recipe.
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
    given = dotted(settings or {})
    check_free(given, "tuning")
    find_hosts(host_file)
    bare = {key: value for key, value in given.items() if not key.startswith(FLASHBACK)}

    def configured(chosen: Mapping[str, Any], flashback: bool) -> RunConfig:
        values = {HELD_OUT: VALIDATION, **(given if flashback else bare), **chosen}
        return configure(host, benchmark, flashback=flashback, seed=seed, recipe=recipe, settings=values, data=data)

    alone = configured({}, flashback=False)
    require(alone.benchmark.validation > 0, "tuning needs benchmark.validation above 0: test images are not for it")
    space: Space = dict(over or usual_space(alone.training.epochs))
    with_flashback = check_space(space, given)
    space = as_configured(space, lambda chosen: configured(chosen, with_flashback))

    def config_of(choice: Choice) -> RunConfig:
        return configured(dict(zip(space, choice, strict=True)), with_flashback)

    first = tuple(values[0] for values in space.values())
    folder = RunFolder.open(Path(out), to_dict(config_of(first)), IGNORED, comparable, what="a tuning").path
    study = open_study(optuna, folder, space, seed)

    def accuracy_of(config: RunConfig, name: str) -> float:
        run_folder, shared = folder / name, folder / SHARED
        refuse_special(run_folder)
        if finished_run(run_folder, to_dict(config), data=data) is None:  # the same choice may come up again
            run(config, out=run_folder, data=data, device=device, observers=[watch(name)], first_tasks=shared)
        accuracy: float = read_record(run_folder).results["class_incremental"]["average_accuracy"]
        return accuracy

    def objective(trial: Any) -> float:
        choice = tuple(suggested(trial, key, values) for key, values in space.items())
        return accuracy_of(config_of(choice), label(dict(zip(space, choice, strict=True))))

    go_on(study, space, objective, trials)
    accuracies = tried(study, space)
    same = [value for choice, value in accuracies.items() if config_of(choice) == alone]  # the recipe's own values
    host_accuracy = same[0] if same else accuracy_of(alone, "host")
    shutil.rmtree(folder / SHARED, ignore_errors=True)
    best = max(accuracies, key=lambda choice: accuracies[choice])
    chosen = dict(zip(space, best, strict=True))
    sources = {
        "given to flashback tune": {key: value for key, value in given.items() if key != HELD_OUT},
        f"tuned on a validation split of the training images, {len(accuracies)} choices": chosen,
    }
    note = f"validation average accuracy {accuracies[best]:.2f}, of the host alone {host_accuracy:.2f}"
    path = write_recipe(folder / "recipe.yaml", alone, recipe, sources, note)
    ranked = sorted(accuracies.items(), key=lambda entry: -entry[1])
    all_tried = [{**dict(zip(space, choice, strict=True)), "accuracy": value} for choice, value in ranked]
    return Tuned(chosen, accuracies[best], all_tried, path, host_accuracy, with_flashback)


# ---------------------------------------------------------------- what to choose among


def usual_space(epochs: int) -> Space:
    """alpha_p, and E1 up to half of the epochs."""
    return {"flashback.alpha": ALPHAS, "flashback.epochs": range(1, max(1, epochs // 2) + 1)}


def check_space(space: Space, settings: Mapping[str, Any]) -> bool:
    """Refuse what cannot be chosen; return whether it is flashback's settings that are."""
    check_free(space, "tuning")
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


def as_configured(space: Space, configured: Callable[[Mapping[str, Any]], RunConfig]) -> Space:
    """The values as a configuration has them; refuses bad ones before anything is trained."""
    resolved: Space = {}
    first = {key: values[0] for key, values in space.items()}
    for key, values in space.items():
        read = [dotted(to_dict(configured({**first, key: value})))[key] for value in values]
        require(len(set(read)) == len(read), f"{key} has the same value twice among those to choose among")
        resolved[key] = values if isinstance(values, range) else read
    for choice in islice(product(*resolved.values()), CHECKED):  # values may be fine alone and not together
        configured(dict(zip(resolved, choice, strict=True)))
    return resolved


def open_study(optuna: Any, folder: Path, space: Space, seed: int) -> Any:
    """Open the study of a folder; its space cannot change."""
    refuse_special(folder / STUDY)
    study = optuna.create_study(
        study_name="flashback",
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        direction="maximize",
        load_if_exists=True,
    )
    now = {key: list(values) for key, values in space.items()}
    before = study.user_attrs.get("over", now)
    require(before == now, f"{folder} holds a tuning over {before}; choose another folder for one over {now}")
    study.set_user_attr("over", now)
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    return study


def suggested(trial: Any, key: str, values: Sequence[Any]) -> Any:
    if isinstance(values, range):
        return trial.suggest_int(key, values[0], values[-1])
    return trial.suggest_categorical(key, values)


# ---------------------------------------------------------------- trying


def go_on(study: Any, space: Space, objective: Callable[[Any], float], trials: int) -> None:
    """Try different choices until there are `trials` of them, or all there are, those of earlier calls included."""
    for choice in dict.fromkeys(choice_of(trial, space) for trial in begun(study, space)):
        if choice not in tried(study, space):
            enqueue(study, space, choice)  # its run was interrupted and goes on
    choices = list(product(*space.values()))
    while len(done := tried(study, space)) < min(trials, len(choices)):
        study.optimize(objective, n_trials=1)
        if len(tried(study, space)) == len(done):  # the sampler came back to a choice: it would do so again and again
            left = [choice for choice in choices if choice not in done]
            enqueue(study, space, random.Random(len(study.trials)).choice(left))


def tried(study: Any, space: Space) -> dict[Choice, float]:
    """The accuracy of every choice that has one."""
    trials = [trial for trial in begun(study, space) if trial.value is not None]
    return {choice_of(trial, space): trial.value for trial in trials}


def begun(study: Any, space: Space) -> list[Any]:
    return [trial for trial in study.trials if trial.params.keys() == space.keys()]


def choice_of(trial: Any, space: Space) -> Choice:
    return tuple(trial.params[key] for key in space)


def enqueue(study: Any, space: Space, choice: Choice) -> None:
    study.enqueue_trial(dict(zip(space, choice, strict=True)))


# ---------------------------------------------------------------- what comes of it


def write_recipe(path: Path, base: RunConfig, recipe: str, sources: Mapping[str, Mapping[str, Any]], note: str) -> Path:
    """Write settings with their sources, on top of those of the recipe file that tuning began with, if any."""
    host, benchmark = base.host.name, base.benchmark.name
    before = Recipe(host, benchmark, recipe, {}, {}, {})
    if is_recipe_file(recipe):
        before = recipe_from_file(host, benchmark, Path(recipe))
    new = {key: {"value": value, "from": source} for source, values in sources.items() for key, value in values.items()}

    def kept(values: Mapping[str, Any]) -> dict[str, Any]:
        return {key: {"value": value, "from": before.sources[key]} for key, value in values.items() if key not in new}

    entry = {
        "benchmark": benchmark,
        "kind": before.kind,
        "note": note,
        "settings": kept(before.settings) | new,
        "flashback_settings": kept(before.flashback_settings),
    }
    write_atomically(path, yaml.safe_dump({"host": host, "recipes": [entry]}, sort_keys=False))
    return path
