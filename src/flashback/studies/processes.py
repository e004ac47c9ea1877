"""Run jobs in parallel processes; one that dies is named and the others go on."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
UNGUARDED = 86  # exit code of a process that starts further ones while it still reads the script
GUARD = (
    "several runs at a time start processes, and each reads the script anew; "
    'put the call under: if __name__ == "__main__":'
)
PATIENCE = 60.0  # seconds a process has to save its state


def run_in_processes(
    jobs: Mapping[str, Any], count: int, work: Work, watch: Callable[[str], Observer], sharing: bool = False
) -> dict[str, str | None]:
    """Run named jobs, `count` at a time; returns what went wrong with each, None for nothing.

    Every job has a new process, as CUDA needs it, so `work` is a function of a module and jobs can be pickled. If the
    processes are `sharing` a GPU by MPS, each gets a portion of it.
    """
    waiting, problems = list(jobs), dict[str, str | None](dict.fromkeys(jobs, DIED))
    running: dict[Any, tuple[str, BaseProcess, Observer]] = {}
    try:
        with handling(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
            while waiting or running:
                while waiting and len(running) < count:
                    name = waiting.pop(0)
                    observer = watch(name)
                    with environment({PORTION: portion(min(count, len(jobs)))} if sharing else {}):
                        pipe, process = start(work, jobs[name])
                    running[pipe] = name, process, observer
                for ready in wait(list(running)):
                    name, process, observer = running[ready]
                    kind, value = receive(ready)
                    if kind == "event":
                        observer(value)
                    elif kind == "warning":
                        warn_once(value)
                    elif kind == "end":
                        problems[name] = value
                    else:
                        process.join()
                        require(process.exitcode != UNGUARDED, GUARD)
                        del running[ready]
                        observer(end_of(problems[name]))
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        stop([process for _, process, _ in running.values()])
    return problems


def start(work: Work, job: Any) -> tuple[Connection, BaseProcess]:
    """Start a process that ignores Ctrl-C and a closed terminal: its parent reacts to them and stops it."""
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(work, job, child_end), daemon=True)
    with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGHUP):
        try:
            process.start()
        except RuntimeError:  # of a process that is still importing the script it was started by
            raise SystemExit(UNGUARDED) from None
    child_end.close()
    return parent_end, process


def serve(work: Work, job: Any, pipe: Connection) -> None:
    """Work on a job in a child process, and send events, warnings and the outcome to the parent."""

    def send(kind: str, value: Any) -> None:
        try:
            pipe.send((kind, value))
        except OSError:  # the parent is gone: save the state and end, as it would have asked
            signal.raise_signal(signal.SIGTERM)

    warnings.showwarning = lambda message, *_: send("warning", str(message))
    try:
        send("end", work(job, lambda event: send("event", dict(event))))
    except Interrupted:
        with suppress(OSError):
            pipe.send(("end", STOPPED))


def receive(pipe: Any) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = pipe.recv()
    except (EOFError, OSError):
        return "gone", None
    return message


def end_of(problem: str | None) -> Event:
    """The last event of a run."""
    return {"event": "end", "problem": problem}


def stop(processes: Iterable[BaseProcess]) -> None:
    """Ask all to save their state and end; those that do not in time are ended."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(PATIENCE)
        process.kill()


@contextmanager
def handling(handler: Any, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals inside; one that is ignored (nohup) stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
