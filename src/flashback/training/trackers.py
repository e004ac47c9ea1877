"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. None is needed; each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from flashback.config import RunConfig, to_dict
from flashback.errors import FlashbackError, unknown
from flashback.records import dotted
from flashback.training.trainer import Event, Observer

Report = Callable[[dict[str, float], int], None]  # values by name, at a step


def make_tracker(name: str, config: RunConfig, folder: Path) -> Observer:
    """An observer that hands every loss term and every accuracy to a tracker."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    report = TRACKERS[name](config, folder)

    def observe(event: Event) -> None:
        values = tracked_values(event)
        if values:
            report(values, event["steps"])

    return observe


def tracked_values(event: Event) -> dict[str, float]:
    """The numbers of an event by name: losses and rate of an epoch, accuracies of an evaluation."""
    if event["event"] == "epoch":
        losses = {f"loss/{name}": value for name, value in event["losses"].items()}
        return {**losses, "rate": event["lr"]}
    if event["event"] == "evaluation":
        values: dict[str, float] = {}
        for classifier, settings in event["accuracy"].items():
            for setting, row in settings.items():
                values[f"{setting}/{classifier}/average accuracy"] = sum(row) / len(row)
                values |= {f"{setting}/{classifier}/task {k + 1}": accuracy for k, accuracy in enumerate(row)}
        return values
    return {}


def needed(package: str, tracker: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        root = package.split(".")[0] if tracker != "tensorboard" else "tensorboard"
        raise FlashbackError(f"--track {tracker} needs the package {root}; install it with pip") from None


def tensorboard(config: RunConfig, folder: Path) -> Report:
    writer = needed("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def report(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return report


def wandb(config: RunConfig, folder: Path) -> Report:
    """Online or offline as WANDB_MODE says."""
    folder.mkdir(parents=True, exist_ok=True)
    run = needed("wandb", "wandb").init(project="flashback", name=folder.name, dir=str(folder), config=to_dict(config))
    return lambda values, step: run.log(values, step=step)


def mlflow(config: RunConfig, folder: Path) -> Report:
    """To the server that MLFLOW_TRACKING_URI names, or into the folder of the run."""
    client = needed("mlflow", "mlflow")
    if not client.is_tracking_uri_set():
        folder.mkdir(parents=True, exist_ok=True)
        client.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    client.set_experiment("flashback")
    client.start_run(run_name=folder.name)
    client.log_params({key: value for key, value in dotted(to_dict(config)).items() if value is not None})
    allowed = str.maketrans({"+": "p", ",": " "})
    return lambda values, step: client.log_metrics({k.translate(allowed): v for k, v in values.items()}, step=step)


TRACKERS: dict[str, Callable[[RunConfig, Path], Report]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
