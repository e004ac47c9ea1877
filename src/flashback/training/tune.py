"""Choosing alpha_p and E1 on a validation split of the training images, never on the test images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from flashback.config import within
from flashback.errors import FlashbackError
from flashback.hosts.outside import find_hosts
from flashback.recipes import configure
from flashback.records import is_finished, make_folder, read_record, write_atomically
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
    find_hosts(host_file)
    folder = Path(out)
    make_folder(folder)
    own = {"benchmark.validation": VALIDATION, **(settings or {})}
    within(
        float(own["benchmark.validation"]) > 0, "tuning needs benchmark.validation above 0: test images are not for it"
    )
    epochs = configure(host, benchmark, flashback=True, recipe=recipe, settings=own).training.epochs
    within(epochs >= 2, "tuning E1 needs at least two epochs (training.epochs)")
    study = optuna.create_study(
        study_name="flashback",
        storage=f"sqlite:///{(folder / 'study.db').resolve()}",
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed),
    )

    def objective(trial: Any) -> float:
        choice = {
            "flashback.alpha": trial.suggest_categorical("alpha", ALPHAS),
            "flashback.epochs": trial.suggest_int("epochs", 1, max(1, epochs // 2)),
        }
        config = configure(host, benchmark, flashback=True, seed=seed, recipe=recipe, settings={**own, **choice})
        place = folder / f"alpha={choice['flashback.alpha']},E1={choice['flashback.epochs']}"
        if not is_finished(place):  # the same choice may come up again
            run(config, out=place, data=data, device=device, observers=[watch(place.name)])
        accuracy: float = read_record(place).results["class_incremental"]["average_accuracy"]
        return accuracy

    done = sum(trial.state.is_finished() for trial in study.trials)
    study.optimize(objective, n_trials=max(0, trials - done))
    return conclude(study, folder, host, benchmark, recipe)


def needed_optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ImportError:
        raise FlashbackError("flashback tune needs the package optuna; install flashback-cl[tune]") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def conclude(study: Any, folder: Path, host: str, benchmark: str, recipe: str) -> Tuned:
    """The chosen values, written as settings with their source."""
    best = study.best_trial
    trials = [{**trial.params, "accuracy": trial.value} for trial in study.trials if trial.value is not None]
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
