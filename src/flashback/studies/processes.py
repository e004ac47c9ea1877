"""Run jobs in parallel processes; one that dies is named and the others go on."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from flashback.errors import Interrupted, require, warn_once
from flashback.studies.packing import environment, portion
from flashback.training.environment import PORTION
from flashback.training.trainer import Event, Observer

Work = Callable[[Any, Observer], str | None]  # runs one job, reports its events, returns what went wrong
DIED = "its process ended without an error message; was it out of memory?"
STOPPED = "its process was stopped from outside"
UNGUARDED = 86  # how a process ends that started further ones while it was still reading the script
GUARD = (
    "several runs at a time start processes, and each reads the script anew; "
    'put the call under: if __name__ == "__main__":'
)
PATIENCE = 60.0  # seconds a process has to save its state


@dataclass(frozen=True)
class Worker:
    """A process and the pipe to it."""

    pipe: Connection
    process: BaseProcess


def run_in_processes(
    jobs: Mapping[str, Any],
    count: int,
    work: Work,
    watch: Callable[[str], Observer],
    sharing: bool = False,
    reuse: bool = False,
) -> dict[str, str | None]:
    """Run named jobs, `count` at a time; returns what went wrong with each, None for nothing.

    `work` is a function of a module and jobs can be pickled, because every process starts afresh, as CUDA needs it. If
    they are `sharing` a GPU by MPS, each gets a portion of it. With `reuse`, a process takes one job after another: to
    start one and to import torch takes seconds.
    """
    waiting, crew = list(jobs), Crew(work, reuse, dict.fromkeys(jobs, DIED))
    try:
        with interrupted_by_signals():
            while waiting or crew.running:
                while waiting and len(crew.running) < count:
                    name = waiting.pop(0)
                    with environment({PORTION: portion(min(count, len(jobs)))} if sharing else {}):
                        crew.begin(name, jobs[name], watch(name))
                for ready in wait(list(crew.running)):
                    crew.hear(*crew.running[ready])
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        crew.stop()
    return crew.problems


class Crew:
    """The processes that work on a job, and those that wait for one."""

    def __init__(self, work: Work, reuse: bool, problems: dict[str, str | None]) -> None:
        self.work, self.reuse, self.problems = work, reuse, problems
        self.running: dict[Any, tuple[str, Worker, Observer]] = {}
        self.idle: list[Worker] = []

    def begin(self, name: str, job: Any, observer: Observer) -> None:
        worker = self.idle_worker(job) or start(self.work, job, self.reuse)
        self.running[worker.pipe] = name, worker, observer

    def idle_worker(self, job: Any) -> Worker | None:
        """Give the job to a process that waits for one; None if there is none."""
        while self.idle:
            worker = self.idle.pop()
            with suppress(OSError):  # somebody may have killed it meanwhile
                worker.pipe.send(job)
                return worker
        return None

    def hear(self, name: str, worker: Worker, observer: Observer) -> None:
        kind, value = receive(worker.pipe)
        if kind == "event":
            observer(value)
        elif kind == "warning":
            warn_once(value)
        elif kind == "interrupted":  # it alone; a signal for all reaches this process too
            self.problems[name] = STOPPED
        elif kind == "end":
            self.problems[name] = value
        else:
            worker.process.join()
            require(worker.process.exitcode != UNGUARDED, GUARD)
        if kind == "gone" or (kind == "end" and self.reuse):
            self.idle += [worker] if kind == "end" else []
            del self.running[worker.pipe]
            observer(end_of(self.problems[name]))

    def stop(self) -> None:
        for worker in self.idle:
            worker.pipe.close()  # it has nothing to save, and ends
        stop([worker.process for _, worker, _ in self.running.values()])
        for worker in self.idle:
            worker.process.join(PATIENCE)


def start(work: Work, job: Any, reuse: bool) -> Worker:
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    process = context.Process(target=serve, args=(work, job, child_end, reuse), daemon=True)
    with ignoring_interrupts():
        try:
            process.start()
        except RuntimeError:  # of a process that is still importing the script it was started by
            raise SystemExit(UNGUARDED) from None
    child_end.close()
    return Worker(parent_end, process)


def end_of(problem: str | None) -> Event:
    """The last event of a run."""
    return {"event": "end", "problem": problem}


def serve(work: Work, job: Any, pipe: Connection, reuse: bool) -> None:
    """What a process does: work on its job, send events and the outcome to the parent, then wait for further jobs."""

    def tell(kind: str, value: Any = None) -> None:
        try:
            pipe.send((kind, value))
        except OSError:  # the parent is gone: save the state and end, as it would have asked
            signal.raise_signal(signal.SIGTERM)

    warnings.showwarning = lambda message, *_: tell("warning", str(message))
    try:
        for given in itertools.chain([job], further_jobs(pipe) if reuse else ()):
            tell("end", work(given, lambda event: tell("event", dict(event))))
    except Interrupted:
        with suppress(OSError):
            pipe.send(("interrupted", None))


def further_jobs(pipe: Connection) -> Iterator[Any]:
    with suppress(EOFError, OSError):
        while True:
            yield pipe.recv()


def receive(pipe: Any) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = pipe.recv()
    except (EOFError, OSError):
        return "gone", None
    return message


def stop(processes: Iterable[BaseProcess]) -> None:
    """Ask all to save their state and end; those that do not in time are ended."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        process.kill()


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """A process started in here does not react to Ctrl-C or a closed terminal: its parent does, and stops it."""
    with handling(signal.SIGINT, signal.SIG_IGN), handling(signal.SIGHUP, signal.SIG_IGN):
        yield


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal stop the parent as Ctrl-C does; a signal that is ignored (nohup) stays so."""
    with ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:
                stack.enter_context(handling(number, signal.default_int_handler))
        yield


@contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, previous)
