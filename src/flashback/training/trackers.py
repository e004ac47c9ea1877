"""Experiment trackers: TensorBoard, Weights & Biases, MLflow. A resumed run continues and reports nothing twice."""

import json
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from flashback.config import RunConfig, to_dict
from flashback.errors import FlashbackError, import_extra, unknown
from flashback.files import LARGEST_CONFIG, read_file, refuse_special
from flashback.hosts.external import in_one_line
from flashback.records import TRACKERS, RunFolder, dotted
from flashback.training.trainer import Event, Observer

IDENTITY = re.compile(r"[\w.-]{1,128}")


@dataclass(frozen=True)
class Tracker:
    """One run in a tracker: report values at a step and a time, close it, and the id to continue it by."""

    report: Callable[[dict[str, float], int, float], None]
    close: Callable[[], None]
    identity: str | None = None


@contextmanager
def tracking(
    names: Sequence[str],
    config: RunConfig,
    folder: Path,
    resumed: bool = False,
    on_failure: Callable[[], None] = lambda: None,
) -> Iterator[list[Observer]]:
    """Observers that report to trackers; one that fails during the run is switched off after a call of `on_failure`."""
    if not resumed:
        (folder / TRACKERS).unlink(missing_ok=True)
    identities = read_identities(folder)
    with ExitStack() as opened:
        opened.callback(setattr, threading, "excepthook", threading.excepthook)
        if names:
            threading.excepthook = lambda failure: None  # a tracker whose thread failed raises at its next call
        reporters = []
        for name in names:
            refuse_special(folder / STORES.get(name, name))
            try:
                tracker = OPENERS[name](config, folder, identities.get(name))
            except Exception as error:  # of another library
                raise FlashbackError(
                    f"the tracker {name} cannot start ({in_one_line(error)}); set it up, or run without it"
                ) from error
            reporters.append(Reporter(name, tracker, on_failure))
            opened.callback(reporters[-1].close)
            if tracker.identity is not None:
                identities[name] = tracker.identity
                RunFolder(folder).write(TRACKERS, json.dumps(identities) + "\n")
        yield [*reporters]


def read_identities(folder: Path) -> dict[str, str]:
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        ids = json.loads(read_file(folder / TRACKERS, LARGEST_CONFIG)).items()
        return {name: known for name, known in ids if isinstance(known, str) and IDENTITY.fullmatch(known)}
    return {}


class Reporter:
    """An observer that reports to a tracker until the tracker fails; the run continues without it."""

    def __init__(self, name: str, tracker: Tracker, on_failure: Callable[[], None]) -> None:
        self.name, self.tracker, self.on_failure = name, tracker, on_failure
        self.failed = False

    def __call__(self, event: Event) -> None:
        def report() -> None:
            if values := tracked_values(event):
                self.tracker.report(values, event["steps"], event.get("time", time.time()))

        if not self.failed:
            self.attempt(report)

    def close(self) -> None:
        self.attempt(self.tracker.close)

    def attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # of another library
            if not self.failed:
                self.failed = True
                self.on_failure()
                reason = f"the tracker {self.name} failed ({in_one_line(error)})"
                warnings.warn(f"{reason} and is switched off; the run continues", stacklevel=2)


def tracked_values(event: Event) -> dict[str, float]:
    if event["event"] == "epoch":
        losses = {f"loss/{name}": value for name, value in event["losses"].items()}
        return {**losses, "rate": event["lr"]}
    values: dict[str, float] = {}
    if event["event"] == "evaluation":
        for classifier, settings in event["accuracy"].items():
            for setting, row in settings.items():
                values[f"{setting}/{classifier}/average accuracy"] = sum(row) / len(row)
                values |= {f"{setting}/{classifier}/task {k + 1}": accuracy for k, accuracy in enumerate(row)}
    return values


def import_tracker(name: str) -> Any:
    if name not in OPENERS:
        raise unknown("tracker", name, OPENERS)
    return import_extra(PACKAGES.get(name, name), name, f"the tracker {name} needs the package {name}")


def tensorboard(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """Earlier events are purged and reported again.

    TensorBoard reads files in the order of their names. A name begins with the second at which its file was made, and
    the rest of the names of one second has no useful order.
    """
    package, store = import_tracker("tensorboard"), folder / "tensorboard"
    while any(store.glob(f"events.out.tfevents.{int(time.time())}.*")):
        time.sleep(0.05)
    writer = package.SummaryWriter(str(store), purge_step=0)

    def report(values: dict[str, float], step: int, when: float) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step, walltime=when)
        writer.flush()

    return Tracker(report, writer.close)


def wandb(config: RunConfig, folder: Path, known: str | None) -> Tracker:
    """Online or offline as WANDB_MODE says. Its step is the number of the event; events may share a training step."""
    folder.mkdir(parents=True, exist_ok=True)
    run = import_tracker("wandb").init(
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
    client, run = import_tracker("mlflow"), None
    is_local = not client.is_tracking_uri_set()
    if is_local:
        folder.mkdir(parents=True, exist_ok=True)
        client.set_tracking_uri(f"sqlite:///{(folder / 'mlflow.db').resolve()}")
    client.set_experiment("flashback")
    if known is not None:
        with suppress(client.MlflowException):  # the server does not have it
            run = client.start_run(run_id=known)
    run = run or client.start_run(run_name=folder.name)
    identity: str = run.info.run_id
    if identity != known:
        client.log_params({key: value for key, value in dotted(to_dict(config)).items() if value is not None})
    history = client.MlflowClient().get_metric_history
    steps = {name: {metric.step for metric in history(identity, name)} for name in run.data.metrics}
    allowed = str.maketrans({"+": "p", ",": " "})

    def report(values: dict[str, float], step: int, when: float) -> None:
        metrics = {name.translate(allowed): value for name, value in values.items()}
        missing = {name: value for name, value in metrics.items() if step not in steps.get(name, ())}
        if missing:
            client.log_metrics(missing, step=step, timestamp=int(1000 * when))

    def close() -> None:
        client.end_run()
        if is_local:
            client.set_tracking_uri("")  # the next run of this process uses another folder

    return Tracker(report, close, identity)


OPENERS: dict[str, Callable[[RunConfig, Path, str | None], Tracker]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
PACKAGES = {"tensorboard": "torch.utils.tensorboard"}  # where its name differs from the tracker's
STORES = {"mlflow": "mlflow.db"}  # in the folder of the run, where its name differs from the tracker's
