"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. None is needed; each is imported only when asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashback.config import RunConfig, to_dict
from flashback.errors import import_extra, unknown
from flashback.records import dotted
from flashback.training.trainer import Event, Observer


@dataclass(frozen=True)
class Tracker:
    """One run in a tracker: values by name at a step, and its end."""

    report: Callable[[dict[str, float], int], None]
    close: Callable[[], None]


@contextmanager
def tracking(names: Sequence[str], config: RunConfig, folder: Path) -> Iterator[list[Observer]]:
    """Observers that hand every loss term and accuracy to trackers, which are closed at the end of the run."""
    with ExitStack() as opened:
        observers: list[Observer] = []
        for name in names:
            check_tracker(name)
            tracker = TRACKERS[name](config, folder)
            opened.callback(tracker.close)
            observers.append(handing_to(tracker))
        yield observers


def handing_to(tracker: Tracker) -> Observer:
    def observe(event: Event) -> None:
        values = tracked_values(event)
        if values:
            tracker.report(values, event["steps"])

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


def check_tracker(name: str) -> None:
    """Refuse a tracker that does not exist or is not installed."""
    if name not in TRACKERS:
        raise unknown("tracker", name, TRACKERS)
    needed(PACKAGES.get(name, name), name)


def needed(package: str, tracker: str) -> Any:
    return import_extra(package, tracker, f"the tracker {tracker} needs the package {tracker}")


def tensorboard(config: RunConfig, folder: Path) -> Tracker:
    writer = needed(PACKAGES["tensorboard"], "tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def report(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Tracker(report, writer.close)


def wandb(config: RunConfig, folder: Path) -> Tracker:
    """Online or offline as WANDB_MODE says."""
    folder.mkdir(parents=True, exist_ok=True)
    run = needed("wandb", "wandb").init(project="flashback", name=folder.name, dir=str(folder), config=to_dict(config))
    return Tracker(lambda values, step: run.log(values, step=step), lambda: run.finish())


def mlflow(config: RunConfig, folder: Path) -> Tracker:
    """To the server that MLFLOW_TRACKING_URI names, or into the folder of the run."""
    client = needed("mlflow", "mlflow")
    own_store = not client.is_tracking_uri_set()
    if own_store:
        folder.mkdir(parents=True, exist_ok=True)
        client.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    client.set_experiment("flashback")
    client.start_run(run_name=folder.name)
    client.log_params({key: value for key, value in dotted(to_dict(config)).items() if value is not None})
    allowed = str.maketrans({"+": "p", ",": " "})

    def report(values: dict[str, float], step: int) -> None:
        client.log_metrics({name.translate(allowed): value for name, value in values.items()}, step=step)

    def close() -> None:
        client.end_run()
        if own_store:
            client.set_tracking_uri("")  # the next run of this process has a folder of its own

    return Tracker(report, close)


PACKAGES = {"tensorboard": "torch.utils.tensorboard"}  # where it has another name than the tracker
TRACKERS: dict[str, Callable[[RunConfig, Path], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
