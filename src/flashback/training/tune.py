"""Choosing alpha_p and E1 on a validation split of the training images, never on the test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from flashback.config import RunConfig, to_dict, within
from flashback.errors import FlashbackError
from flashback.hosts.outside import find_hosts
from flashback.recipes import check_free, configure
from flashback.records import RunFolder, is_finished, read_record, write_atomically
from flashback.training.run import run
from flashback.training.trainer import Observer

VALIDATION = 0.1  # of the training images of every class
ALPHAS = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Tuned:
    """The best trial, and all others beside it."""

    alpha: float
    epochs: int
    accuracy: float
    trials: list[dict[str, Any]]
    recipe: Path


def tune(
    host: str,
    benchmark: str = "split-fashion-mini",
    *,
    out: str | Path,
    trials: int = 8,
    seed: int = 0,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    host_file: str | Path | None = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Tuned:
    """Search alpha_p and E1 with Optuna. The study and its runs lie in `out`; the same call goes on with them."""
    optuna = needed_optuna()
    within(trials >= 1, f"--trials is at least 1, not {trials}")
    check_free(settings or {}, "tuning")
    find_hosts(host_file)
    fixed = {"benchmark.validation": VALIDATION, **(settings or {})}

    def configured(alpha: float, epochs: int) -> RunConfig:
        chosen = {**fixed, "flashback.alpha": alpha, "flashback.epochs": epochs}
        return configure(host, benchmark, flashback=True, seed=seed, recipe=recipe, settings=chosen)

    base = configured(ALPHAS[0], 1)
    within(base.benchmark.validation > 0, "tuning needs benchmark.validation above 0: test images are not for it")
    folder = RunFolder.open(Path(out), to_dict(base)).path  # another tuning in the same folder is refused
    study = optuna.create_study(
        study_name="flashback",
        storage=f"sqlite:///{(folder / 'study.db').resolve()}",
        direction="maximize",
        load_if_exists=True,
    )
    done = len(finished_trials(study))
    study.sampler = optuna.samplers.TPESampler(seed=seed + done)

    def objective(trial: Any) -> float:
        alpha = trial.suggest_categorical("alpha", ALPHAS)
        epochs = trial.suggest_int("epochs", 1, max(1, base.training.epochs // 2))
        place = folder / f"alpha={alpha},E1={epochs}"
        if not is_finished(place):  # the same choice may come up again
            run(configured(alpha, epochs), out=place, data=data, device=device, observers=[watch(place.name)])
        accuracy: float = read_record(place).results["class_incremental"]["average_accuracy"]
        return accuracy

    for trial in study.trials:
        if trial.value is None and trial.params:
            study.enqueue_trial(trial.params, skip_if_exists=True)  # it was interrupted: its run goes on
    study.optimize(objective, n_trials=max(0, trials - done))
    return conclude(study, folder, host, benchmark, recipe)


def finished_trials(study: Any) -> list[Any]:
    return [trial for trial in study.trials if trial.value is not None]


def needed_optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError:
        raise FlashbackError("flashback tune needs the package optuna; install flashback-cl[tune]") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def conclude(study: Any, folder: Path, host: str, benchmark: str, recipe: str) -> Tuned:
    """The chosen values, written as settings with their source."""
    best = study.best_trial
    trials = [{**trial.params, "accuracy": trial.value} for trial in finished_trials(study)]
    source = f"tuned on a validation split of the training images, {len(trials)} trials"
    chosen = {"flashback.alpha": best.params["alpha"], "flashback.epochs": best.params["epochs"]}
    document = {
        "host": host,
        "recipes": [
            {
                "benchmark": benchmark,
                "kind": recipe,
                "note": f"validation average accuracy {best.value:.2f}",
                "settings": {key: {"value": value, "from": source} for key, value in chosen.items()},
            }
        ],
    }
    path = folder / "recipe.yaml"
    write_atomically(path, yaml.safe_dump(document, sort_keys=False))
    return Tuned(best.params["alpha"], best.params["epochs"], best.value, trials, path)
