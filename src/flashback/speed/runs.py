"""Whole runs, each in a process of its own: alone, with a cold and a warm cache of compiled code, or at a time."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Any

import numpy as np

from flashback.config import build
from flashback.errors import FlashbackError
from flashback.hosts.outside import find_hosts
from flashback.speed.figures import Packed, PackedCase, Run, RunCase, TaskCost, reason
from flashback.speed.setup import Setup
from flashback.studies.packing import FixedConcurrency, portion, sharing_gpu
from flashback.studies.processes import run_in_processes
from flashback.training.environment import WHOLE
from flashback.training.trainer import Event, Observer, Trainer

START = 300.0  # seconds in which all of several runs must be ready to start
NEVER_STARTED = "another of these runs was not ready to start"
Progress = list[tuple[float, int]]  # the images trained on so far, at moments of the monotonic clock


@dataclass(frozen=True)
class Job:
    """A whole run on its way to another process."""

    setup: Setup
    case: RunCase
    cache: str | None = None  # the folder of compiled code; None: the machine's own
    start: Barrier | None = None  # where runs wait for each other


@dataclass(frozen=True)
class Account:
    """What a process tells of its run."""

    run: Run
    progress: Progress


# ---------------------------------------------------------------- in the process of the run


def serve(job: Job, observer: Observer) -> str | None:
    """Do a run and tell of it; returns what went wrong."""
    find_hosts(job.setup.host_file)
    if job.cache is not None:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = job.cache
    try:
        account = whole_run(job)
    except BrokenBarrierError:
        return NEVER_STARTED
    except Exception as problem:
        if job.start is not None:
            job.start.abort()
        return reason(problem)
    observer({"event": "account", "run": asdict(account.run), "progress": account.progress})
    return None


def whole_run(job: Job) -> Account:
    setup, case = job.setup, job.case
    settings = {"training.batch_size": case.batch_size}
    lengths = {"tasks": case.tasks, "epochs": case.epochs}
    trainer = setup.trainer(case.host, case.flashback, case.mode, settings=settings, **lengths)
    watch = Watch(trainer, setup)
    trainer.observers = (watch,)
    if job.start is not None:
        job.start.wait(START)
    watch.progress.append((time.monotonic(), 0))
    trainer.run()
    watch.progress.append((time.monotonic(), watch.images()))
    history = trainer.history
    run = Run(
        **vars(case),
        images=watch.images(),
        seconds=round(history.seconds, 3),
        images_per_second=round(watch.images() / history.seconds, 1),
        training_seconds=round(history.training_seconds, 3),
        preparation_seconds=round(sum(watch.preparation.values()), 3),
        share_outside_steps=round(1 - history.training_seconds / history.seconds, 4),
        peak_bytes=max(task.peak_bytes for task in watch.tasks),
        knowledge_bytes=history.bytes,
        per_task=watch.tasks,
    )
    return Account(run, watch.progress)


class Watch:
    """Observes a run: what each task costs, and how far it is at the end of every epoch."""

    def __init__(self, trainer: Trainer, setup: Setup) -> None:
        self.trainer, self.setup = trainer, setup
        self.tasks: list[TaskCost] = []
        self.preparation: dict[tuple[int, str], float] = {}  # seconds, by task and stage
        self.progress: Progress = []
        self.before = self.spent()

    def __call__(self, event: Event) -> None:
        if event["event"] == "task":
            self.setup.forget_peak()
            self.before = self.spent()
        elif event["event"] == "epoch":
            assert self.trainer.step is not None
            self.preparation[event["task"], event["stage"]] = self.trainer.step.preparation_seconds
            self.progress.append((time.monotonic(), self.images()))
        elif event["event"] == "evaluation":
            now = self.spent()
            seconds, training, images, compilations = (now[k] - self.before[k] for k in range(4))
            peak = self.setup.peak_bytes()
            self.tasks.append(TaskCost(round(seconds, 3), round(training, 3), int(images), peak, int(compilations)))

    def spent(self) -> tuple[float, float, int, int]:
        """So far: seconds, those in training steps, images, compilations."""
        from torch._dynamo.utils import counters  # takes a while to import, and the command line imports this file

        compilations = counters["stats"]["unique_graphs"]
        return time.monotonic(), self.trainer.history.training_seconds, self.images(), compilations

    def images(self) -> int:
        return sum(entry["images"] for entry in self.trainer.history.budget)


# ---------------------------------------------------------------- in the process that measures


def measure_run(setup: Setup, case: RunCase) -> list[Run]:
    """One run with the machine's own cache. For a cold one two runs: with a new cache, and once more with the same."""
    if case.cache == "own":
        return [measure_alone(Job(setup, case))]
    with tempfile.TemporaryDirectory(prefix="flashback-cache-") as cache:
        cases = [replace(case, cache=state) for state in ("cold", "warm")]
        return [measure_alone(Job(setup, case, cache)) for case in cases]


def measure_alone(job: Job) -> Run:
    return carry_out([job])[0].run


def measure_packed(setup: Setup, case: PackedCase) -> Packed:
    """Several runs that start at the same moment, once all of them are ready to.

    Counted are the images of all over the time until the slowest has ended, captures, compilations, task ends and
    evaluations included; and the images of all over the time in which every one of them was training.
    """
    start = multiprocessing.get_context("spawn").Barrier(case.count)
    alone = RunCase(*(getattr(case, name) for name in RunCase.__dataclass_fields__))
    with sharing_gpu(setup.device) as shared:
        accounts = carry_out([Job(setup, alone, start=start)] * case.count, shared)
    progress = [account.progress for account in accounts]
    images = sum(account.run.images for account in accounts)
    seconds = max(own[-1][0] for own in progress) - min(own[0][0] for own in progress)
    return Packed(
        **vars(case),
        mps=shared,
        images=images,
        seconds=round(seconds, 3),
        images_per_second=round(images / seconds, 1),
        together_per_second=rate_together(progress),
        portion=portion(case.count) if shared else WHOLE,
    )


def rate_together(progress: Sequence[Progress]) -> float | None:
    """Images per second of all from the end of the last first epoch to the end of the first last one.

    The first epoch holds compilations and captures. Progress between the ends of epochs is taken as even.
    """
    begin, end = max(own[1][0] for own in progress), min(own[-2][0] for own in progress)
    if end <= begin:
        return None
    images = 0.0
    for own in progress:
        moments, counts = np.array(own).T
        images += float(np.diff(np.interp([begin, end], moments, counts))[0])
    return round(images / (end - begin), 1)


def carry_out(jobs: Sequence[Job], sharing: bool = False) -> list[Account]:
    """All jobs at a time, each in a process of its own."""
    jobs[0].setup.free()
    accounts: dict[str, Account] = {}

    def watch(name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "account":
                accounts[name] = account_of(event)

        return observe

    named = {str(k): job for k, job in enumerate(jobs)}
    problems = run_in_processes(named, FixedConcurrency(len(jobs)), serve, watch, sharing)
    # Of runs that wait for each other, one that fails makes the others fail: their own words say the least.
    found = [problem for problem in problems.values() if problem is not None]
    if found:
        raise FlashbackError(min(found, key=lambda problem: problem == NEVER_STARTED))
    return [accounts[name] for name in named]


def account_of(event: Any) -> Account:
    return Account(build(Run, event["run"]), [(moment, images) for moment, images in event["progress"]])
