"""Choosing alpha_p and E1 on a validation split of the training images, never on the test images."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from flashback.config import RunConfig, to_dict, within
from flashback.errors import import_extra
from flashback.hosts.outside import HostFiles, find_hosts
from flashback.recipes import check_free, comparable, configure
from flashback.records import RunFolder, dotted, read_record, write_atomically
from flashback.training.beginnings import SHARED
from flashback.training.finished import IGNORED, finished_run
from flashback.training.running import run
from flashback.training.trainer import Observer

VALIDATION = 0.1  # of the training images of every class
ALPHAS = (0.001, 0.01, 0.1, 1.0)
CHOSEN = ("flashback.alpha", "flashback.epochs")
HELD_OUT = "benchmark.validation"
STUDY = "study.db"  # beside the config.yaml of its first choice; no run lies in the folder itself
Choice = tuple[float, int]  # alpha_p and E1


@dataclass(frozen=True)
class Tuned:
    """The best choice, and all that were tried, each once; fewer than asked for where there are no more."""

    alpha: float
    epochs: int
    accuracy: float
    trials: list[dict[str, Any]]
    recipe: Path
    host_accuracy: float  # of the host alone, on the same validation images


def tune(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    out: str | Path,
    trials: int = 8,
    seed: int = 0,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Tuned:
    """Search alpha_p and E1 with Optuna. The study and its runs lie in `out`; the same call goes on with them.

    The host alone runs too: a choice that does not reach it is no gain.
    """
    optuna = needed_optuna()
    within(trials >= 1, f"trials (--trials) is at least 1, not {trials}")
    own = dotted(settings or {})
    check_free(own, "tuning")
    for key in CHOSEN:
        within(key not in own, f"tuning chooses {key} itself; take it out of the settings")
    find_hosts(host_file)

    def configured(alpha: float, epochs: int) -> RunConfig:
        chosen = {HELD_OUT: VALIDATION, **own, **dict(zip(CHOSEN, (alpha, epochs), strict=True))}
        return configure(host, benchmark, flashback=True, seed=seed, recipe=recipe, settings=chosen, data=data)

    base = configured(ALPHAS[0], 1)
    within(base.benchmark.validation > 0, "tuning needs benchmark.validation above 0: test images are not for it")
    # Another tuning in the same folder is refused.
    folder = RunFolder.open(Path(out), to_dict(base), IGNORED, comparable).path
    study = optuna.create_study(
        study_name="flashback",
        storage=f"sqlite:///{(folder / STUDY).resolve()}",
        direction="maximize",
        load_if_exists=True,
    )
    study.sampler = optuna.samplers.TPESampler(seed=seed + len(study.trials))
    lengths = range(1, max(1, base.training.epochs // 2) + 1)

    def accuracy_of(config: RunConfig, name: str) -> float:
        place, shared = folder / name, folder / SHARED
        if finished_run(place, to_dict(config), data=data) is None:  # the same choice may come up again
            run(config, out=place, data=data, device=device, observers=[watch(name)], first_tasks=shared)
        accuracy: float = read_record(place).results["class_incremental"]["average_accuracy"]
        return accuracy

    def objective(trial: Any) -> float:
        alpha = trial.suggest_categorical("alpha", ALPHAS)
        epochs = trial.suggest_int("epochs", lengths[0], lengths[-1])
        return accuracy_of(configured(alpha, epochs), f"alpha={alpha},E1={epochs}")

    go_on(study, objective, trials, list(product(ALPHAS, lengths)))
    bare = {key: value for key, value in own.items() if not key.startswith("flashback.")}
    alone = configure(host, benchmark, seed=seed, recipe=recipe, settings={HELD_OUT: VALIDATION, **bare}, data=data)
    host_accuracy = accuracy_of(alone, "host")
    shutil.rmtree(folder / SHARED, ignore_errors=True)
    settings = {key: value for key, value in own.items() if key != HELD_OUT}
    return conclude(study, folder, host, base.benchmark.name, recipe, settings, host_accuracy)


def go_on(study: Any, objective: Callable[[Any], float], trials: int, choices: list[Choice]) -> None:
    """Try as many different choices as were asked for, or all there are, those of earlier calls included."""
    for choice in interrupted(study):
        enqueue(study, choice)  # its run goes on
    while len(done := tried(study)) < min(trials, len(choices)):
        study.optimize(objective, n_trials=1)
        if len(tried(study)) == len(done):  # the sampler came back to a choice: it would do so again and again
            left = [choice for choice in choices if choice not in done]
            enqueue(study, random.Random(len(study.trials)).choice(left))


def tried(study: Any) -> dict[Choice, float]:
    """The accuracy of every choice that has one."""
    return {choice_of(trial): trial.value for trial in study.trials if trial.value is not None}


def interrupted(study: Any) -> list[Choice]:
    begun = dict.fromkeys(choice_of(trial) for trial in study.trials if trial.params.keys() == {"alpha", "epochs"})
    return [choice for choice in begun if choice not in tried(study)]


def choice_of(trial: Any) -> Choice:
    return trial.params["alpha"], trial.params["epochs"]


def enqueue(study: Any, choice: Choice) -> None:
    study.enqueue_trial(dict(zip(("alpha", "epochs"), choice, strict=True)))


def needed_optuna() -> Any:
    optuna = import_extra("optuna", "tune", "flashback tune needs the package optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def conclude(
    study: Any,
    folder: Path,
    host: str,
    benchmark: str,
    recipe: str,
    given: Mapping[str, Any],
    host_accuracy: float,
) -> Tuned:
    """The given settings and the chosen ones, each with its source."""
    found = tried(study)
    best = max(found, key=lambda choice: found[choice])
    source = f"tuned on a validation split of the training images, {len(found)} choices"
    settings = {key: {"value": value, "from": "given to flashback tune"} for key, value in given.items()}
    settings |= {key: {"value": value, "from": source} for key, value in zip(CHOSEN, best, strict=True)}
    document = {
        "host": host,
        "recipes": [
            {
                "benchmark": benchmark,
                "kind": recipe,
                "note": f"validation average accuracy {found[best]:.2f}, of the host alone {host_accuracy:.2f}",
                "settings": settings,
            }
        ],
    }
    path = folder / "recipe.yaml"
    write_atomically(path, yaml.safe_dump(document, sort_keys=False))
    trials = [{"alpha": alpha, "epochs": epochs, "accuracy": value} for (alpha, epochs), value in found.items()]
    return Tuned(*best, found[best], trials, path, host_accuracy)
