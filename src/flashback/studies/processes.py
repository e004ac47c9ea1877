"""Run jobs in parallel processes; one that dies is named and the others continue."""

import multiprocessing
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from flashback.engines.following import STOPPED
from flashback.errors import Interrupted, require, warn_once
from flashback.training.trainer import Observer

Work = Callable[[Any, Observer], str | None]  # runs one job, reports its events, returns what went wrong
DIED = "its process ended without an error message; was it out of memory?"
UNGUARDED = 86  # exit code of a process that starts further ones while it still reads the script
GUARD = (
    "several runs at a time start processes, and each reads the script again; "
    'put the call under: if __name__ == "__main__":'
)
START = "spawn"  # CUDA needs new processes, and threads of torch do not survive a fork
PATIENCE = 60.0  # seconds a process has to save its state


def run_in_processes(
    jobs: Mapping[str, Any], count: int, work: Work, watch: Callable[[str], Observer], reuse: bool = False
) -> dict[str, str | None]:
    """Run named jobs, `count` at a time; returns what went wrong with each, None for nothing.

    `work` is a function of a module, and jobs can be pickled. With `reuse`, a process takes one job after another and
    imports torch once; without it every job has a new process, as CUDA needs it.
    """
    waiting, problems = list(jobs), dict[str, str | None]()
    running: dict[Any, tuple[str, BaseProcess, Observer]] = {}

    def give_next(pipe: Any, process: BaseProcess) -> None:
        name = waiting.pop(0)
        running[pipe] = name, process, watch(name)
        send(pipe, (work, jobs[name]))

    try:
        with handling(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
            while waiting or running:
                while waiting and len(running) < count:
                    give_next(*start())
                for ready in wait(list(running)):
                    name, process, observer = running[ready]
                    kind, value = receive(ready)
                    if kind == "event":
                        observer(value)
                    elif kind == "warning":
                        warn_once(value)
                    elif kind == "end":
                        problems[name] = value
                        observer({"event": "end", "problem": value})
                        if reuse and waiting and value != STOPPED:
                            give_next(ready, process)
                        else:
                            send(ready, None)
                    else:
                        process.join()
                        require(process.exitcode != UNGUARDED, GUARD)
                        del running[ready]
                        if name not in problems:
                            problems[name] = DIED
                            observer({"event": "end", "problem": DIED})
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        stop([process for _, process, _ in running.values()])
    return problems


def start() -> tuple[Connection, BaseProcess]:
    """Start a process that ignores Ctrl-C and a closed terminal: its parent reacts to them and stops it."""
    context: Any = multiprocessing.get_context(START)
    parent_end, child_end = context.Pipe()
    process = context.Process(target=serve, args=(child_end,), daemon=True)
    with handling(signal.SIG_IGN, signal.SIGINT, signal.SIGHUP):
        try:
            process.start()
        except RuntimeError:  # of a process that is still importing the script it was started by
            raise SystemExit(UNGUARDED) from None
    child_end.close()
    return parent_end, process


def serve(pipe: Connection) -> None:
    """Work on jobs in a child process until None comes, and send events, warnings and outcomes to the parent."""

    def report(kind: str, value: Any) -> None:
        try:
            pipe.send((kind, value))
        except OSError:  # the parent is gone: save the state and end, as it would have asked
            signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm sends it to all processes of a job, for the parent to act on
    warnings.showwarning = lambda message, *_: report("warning", str(message))
    try:
        for work, job in iter(pipe.recv, None):
            report("end", work(job, lambda event: report("event", dict(event))))
    except Interrupted:
        send(pipe, ("end", STOPPED))
    except EOFError:  # the parent is gone
        return


def send(pipe: Any, message: Any) -> None:
    with suppress(OSError):  # the process at the other end has died, which receiving from it shows
        pipe.send(message)


def receive(pipe: Any) -> Any:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return "gone", None


def stop(processes: Iterable[BaseProcess]) -> None:
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
