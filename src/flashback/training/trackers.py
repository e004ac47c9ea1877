"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. None is needed; each is imported only when asked for.

A run that is resumed goes on in the same run of a tracker. It is told all that happened up to the checkpoint, and then
what happens, so whatever was lost comes again; that nothing is shown twice is up to each tracker.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from flashback.config import RunConfig, to_dict
from flashback.errors import import_extra, unknown
from flashback.files import LARGEST_CONFIG, read_file
from flashback.records import RunFolder, dotted
from flashback.records.folder import TRACKERS
from flashback.training.trainer import Event, Observer


@dataclass(frozen=True)
class Tracker:
    """One run in a tracker: values by name at a step and a time, its end, and the name by which it is found again."""

    report: Callable[[dict[str, float], int, float], None]
    close: Callable[[], None]
    identity: str | None = None


@contextmanager
def tracking(names: Sequence[str], config: RunConfig, folder: Path, resumed: bool = False) -> Iterator[list[Observer]]:
    """Observers that hand every loss term and accuracy to trackers, which are closed at the end of the run.

    One that is resumed goes on in the same run of each tracker, one that begins from nothing has a new one.
    """
    if not resumed:
        (folder / TRACKERS).unlink(missing_ok=True)
    known = read_identities(folder)
    with ExitStack() as opened:
        observers: list[Observer] = []
        for name in names:
            check_tracker(name)
            tracker = OPENERS[name](config, folder, known.get(name))
            opened.callback(tracker.close)
            if tracker.identity is not None:
                known[name] = tracker.identity
                RunFolder(folder).write(TRACKERS, json.dumps(known) + "\n")
            observers.append(handing_to(tracker))
        yield observers


def read_identities(folder: Path) -> dict[str, str]:
    """By which names trackers know the run of a folder; without them it is a new one."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_file(folder / TRACKERS, LARGEST_CONFIG))
        if isinstance(found, dict):
            return {name: own for name, own in found.items() if isinstance(own, str) and IDENTITY.fullmatch(own)}
    return {}


def handing_to(tracker: Tracker) -> Observer:
    def observe(event: Event) -> None:
        values = tracked_values(event)
        if values:
            tracker.report(values, event["steps"], event.get("time", time.time()))

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
    if name not in OPENERS:
        raise unknown("tracker", name, OPENERS)
    needed(PACKAGES.get(name, name), name)


def needed(package: str, tracker: str) -> Any:
    return import_extra(package, tracker, f"the tracker {tracker} needs the package {tracker}")


def tensorboard(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """Whatever was written into the folder before is told again, or does not count."""
    writer = needed(PACKAGES["tensorboard"], "tensorboard").SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def report(values: dict[str, float], step: int, when: float) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, walltime=when)
        writer.flush()

    return Tracker(report, writer.close)


def wandb(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """Online or offline as WANDB_MODE says.

    Its own steps, which must never fall or repeat, are the numbers of the events: an epoch and an evaluation may come
    at the same step of the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    run = needed("wandb", "wandb").init(
        project="flashback", name=folder.name, dir=str(folder), config=to_dict(config), id=known, resume="allow"
    )
    run.define_metric("*", step_metric="steps")
    events, first_missing = count(), run.starting_step

    def report(values: dict[str, float], step: int, when: float) -> None:
        event = next(events)
        if event >= first_missing:
            run.log({**values, "steps": step}, step=event)

    return Tracker(report, lambda: run.finish(), run.id)


def mlflow(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """To the server that MLFLOW_TRACKING_URI names, or into the folder of the run."""
    client = needed("mlflow", "mlflow")
    own_store = not client.is_tracking_uri_set()
    if own_store:
        folder.mkdir(parents=True, exist_ok=True)
        client.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    client.set_experiment("flashback")
    run = mlflow_run(client, known, folder.name)
    identity: str = run.info.run_id
    if identity != known:
        client.log_params({key: value for key, value in dotted(to_dict(config)).items() if value is not None})
    history = client.MlflowClient().get_metric_history
    there = {name: {metric.step for metric in history(identity, name)} for name in run.data.metrics}
    allowed = str.maketrans({"+": "p", ",": " "})

    def report(values: dict[str, float], step: int, when: float) -> None:
        named = {name.translate(allowed): value for name, value in values.items()}
        missing = {name: value for name, value in named.items() if step not in there.get(name, ())}
        if missing:
            client.log_metrics(missing, step=step, timestamp=int(1000 * when))

    def close() -> None:
        client.end_run()
        if own_store:
            client.set_tracking_uri("")  # the next run of this process has a folder of its own

    return Tracker(report, close, identity)


def mlflow_run(client: Any, known: str | None, name: str) -> Any:
    """The run of that identity; a new one where the server has none, or has it no more."""
    if known is not None:
        with suppress(client.MlflowException):
            return client.start_run(run_id=known)
    return client.start_run(run_name=name)


IDENTITY = re.compile(r"[\w.-]{1,128}")
PACKAGES = {"tensorboard": "torch.utils.tensorboard"}  # where it has another name than the tracker
OPENERS: dict[str, Callable[[RunConfig, Path, str | None], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
