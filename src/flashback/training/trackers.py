"""Experiment trackers: TensorBoard, Weights & Biases, MLflow; each is imported only when it is used.

A resumed run continues in the same run of its tracker. Events up to the checkpoint are reported again, so nothing
is lost; each tracker makes sure that nothing appears twice.
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
from flashback.files import LARGEST_CONFIG, read_file, refuse_special
from flashback.records import RunFolder, dotted
from flashback.records.folder import TRACKERS
from flashback.training.trainer import Event, Observer


@dataclass(frozen=True)
class Tracker:
    """One run in a tracker: report values at a step and a time, close it, and the id to continue it by."""

    report: Callable[[dict[str, float], int, float], None]
    close: Callable[[], None]
    identity: str | None = None


@contextmanager
def tracking(names: Sequence[str], config: RunConfig, folder: Path, resumed: bool = False) -> Iterator[list[Observer]]:
    """Observers that report losses and accuracies to trackers, which are closed at the end.

    A resumed run continues in the same run of each tracker; a new one starts a new run.
    """
    if not resumed:
        (folder / TRACKERS).unlink(missing_ok=True)
    identities = read_identities(folder)
    with ExitStack() as opened:
        observers: list[Observer] = []
        for name in names:
            check_tracker(name)
            refuse_special(folder / STORES[name])
            tracker = OPENERS[name](config, folder, identities.get(name))
            opened.callback(tracker.close)
            if tracker.identity is not None:
                identities[name] = tracker.identity
                RunFolder(folder).write(TRACKERS, json.dumps(identities) + "\n")
            observers.append(reporter(tracker))
        yield observers


def read_identities(folder: Path) -> dict[str, str]:
    """The ids by which trackers know the run of a folder."""
    with suppress(OSError, ValueError, RecursionError):
        document = json.loads(read_file(folder / TRACKERS, LARGEST_CONFIG))
        if isinstance(document, dict):
            return {name: key for name, key in document.items() if isinstance(key, str) and IDENTITY.fullmatch(key)}
    return {}


def reporter(tracker: Tracker) -> Observer:
    def observe(event: Event) -> None:
        values = tracked_values(event)
        if values:
            tracker.report(values, event["steps"], event.get("time", time.time()))

    return observe


def tracked_values(event: Event) -> dict[str, float]:
    """Losses and rate of an epoch event, accuracies of an evaluation event."""
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
    """Earlier events are purged and reported again."""
    writer = needed(PACKAGES["tensorboard"], "tensorboard").SummaryWriter(str(folder / "tensorboard"), purge_step=0)

    def report(values: dict[str, float], step: int, when: float) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, walltime=when)
        writer.flush()

    return Tracker(report, writer.close)


def wandb(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """Online or offline as WANDB_MODE says.

    Its step is the number of the event, because an epoch and an evaluation may share a training step.
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
    """To the server of MLFLOW_TRACKING_URI, or into the folder of the run."""
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
            client.set_tracking_uri("")  # the next run of this process uses another folder

    return Tracker(report, close, identity)


def mlflow_run(client: Any, known: str | None, name: str) -> Any:
    """Continue the known run, or start a new one if the server does not have it."""
    if known is not None:
        with suppress(client.MlflowException):
            return client.start_run(run_id=known)
    return client.start_run(run_name=name)


IDENTITY = re.compile(r"[\w.-]{1,128}")
PACKAGES = {"tensorboard": "torch.utils.tensorboard"}  # where its name differs from the tracker's
STORES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow.db"}  # in the folder of the run
OPENERS: dict[str, Callable[[RunConfig, Path, str | None], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
