"""Several runs at a time, each in a process of its own: one that dies is named, and the others go on."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from flashback.errors import FlashbackError
from flashback.studies.packing import Pace, environment, portion
from flashback.training.checkpoints import Interrupted
from flashback.training.surroundings import PORTION
from flashback.training.trainer import Event, Observer

Work = Callable[[Any, Observer], str | None]  # runs one job, reports its events, returns what went wrong
DIED = "its process ended without a word; was it out of memory?"
STOPPED = "its process was stopped from outside"
PATIENCE = 60.0  # seconds a process has to save its state


def run_in_processes(
    jobs: Mapping[str, Any], pace: Pace, work: Work, watch: Callable[[str], Observer], sharing: bool = False
) -> dict[str, str | None]:
    """Run named jobs, as many at a time as `pace` says; returns what went wrong with each, None for nothing.

    `work` is a function of a module and jobs can be pickled, because every process starts afresh, as CUDA needs it.
    Where they are `sharing` a GPU by MPS, each gets a portion of it.
    """
    waiting = list(jobs)
    problems: dict[str, str | None] = dict.fromkeys(jobs, DIED)
    running: dict[Any, tuple[str, BaseProcess, Observer]] = {}
    try:
        with interrupted_by_signals():
            while waiting or running:
                while waiting and len(running) < pace.limit:
                    name = waiting.pop(0)
                    with environment({PORTION: portion(min(pace.limit, len(jobs)))} if sharing else {}):
                        pipe, process = start(work, jobs[name])
                    running[pipe] = name, process, watch(name)
                    pace.started(name)
                for ready in wait(list(running)):
                    name, process, observer = running[ready]
                    kind, value = receive(ready)
                    if kind == "event":
                        pace.note(name, value)
                        observer(value)
                    elif kind == "end":
                        problems[name] = value
                    elif kind == "interrupted":  # it alone; a signal for all reaches this process too
                        problems[name] = STOPPED
                    else:
                        process.join()
                        pace.ended(name)
                        observer(end_of(problems[name]))
                        del running[ready]
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        stop([process for _, process, _ in running.values()])
    return problems


def start(work: Work, job: Any) -> tuple[Connection, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(work, job, sender), daemon=True)
    with ignoring_interrupts():
        try:
            process.start()
        except RuntimeError:  # of a process that is still importing the script it was started by
            raise FlashbackError(
                "several runs at a time start processes, and each reads the script anew; "
                'put the call under: if __name__ == "__main__":'
            ) from None
    sender.close()
    return receiver, process


def end_of(problem: str | None) -> Event:
    """What an observer of a run hears last."""
    return {"event": "end", "problem": problem}


def serve(work: Work, job: Any, pipe: Connection) -> None:
    """What a process does: the work, telling the parent of its events and of its end."""

    def tell(kind: str, value: Any = None) -> None:
        try:
            pipe.send((kind, value))
        except OSError:  # the parent is gone: save the state and end, as it would have asked
            signal.raise_signal(signal.SIGTERM)

    try:
        tell("end", work(job, lambda event: tell("event", dict(event))))
    except Interrupted:
        with suppress(OSError):
            pipe.send(("interrupted", None))


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
    """SIGTERM and a closed terminal stop the parent as Ctrl-C does; killed, it would leave its processes alone.

    A signal that is ignored (nohup) stays so.
    """
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
