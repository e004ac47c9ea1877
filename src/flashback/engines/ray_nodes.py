"""What runs on the nodes of a Ray cluster: the work on one run, and an actor to which run folders come back.

The actor outlives the driver, so a driver that is started again finds its runs. Ray itself places runs, and tries those
of a lost node again elsewhere; they continue from the last checkpoint that came back.
"""

import fcntl
import os
import platform
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from flashback.engines.folders import Changes, Files, write_run_files
from flashback.engines.following import STOPPED

PERIOD = 1.0  # seconds between looks at a run folder
RETRIES = 3  # of a run whose node or process was lost
FIRST_TASKS = "first-tasks"  # in the folder of a node
UNUSED = 24 * 3600.0  # seconds without use after which a folder of a node is removed
LOST = f"its node or process was lost {RETRIES + 1} times; was it out of memory?"


@dataclass
class RunUpdate:
    """What changed in a run: files, the names of all files, its node, the number of its attempt, and its end."""

    files: Files = field(default_factory=dict)
    names: list[str] | None = None
    node: str = ""
    attempt: int = 0
    ended: bool = False
    problem: str | None = None


@dataclass
class Entry:
    """A run as the collector knows it."""

    config: dict[str, Any]
    changes: Changes
    task: Any = None
    attempt: int = 0
    node: str = ""
    names: list[str] | None = None
    stopped: bool = False


class Collector:
    """Starts runs and keeps their latest files until the driver has them."""

    def __init__(self) -> None:
        self.held = ExitStack()
        self.root = self.new_root()
        self.entries: dict[str, Entry] = {}
        self.bundles: dict[str, Any] = {}
        self.train: Any = ray.remote(train)  # once, as it is sent to every worker

    def new_root(self) -> Path:
        root = Path(tempfile.mkdtemp(dir=node_folder(), prefix="collected-"))
        self.held.enter_context(in_use(root))
        return root

    def has_bundle(self, digest: str) -> bool:
        return digest in self.bundles

    def keep_bundle(self, digest: str, files: Files) -> None:
        """Put what every node needs into the object store, from which it travels once to a node."""
        self.bundles[digest] = ray.put(files)

    def submit(
        self, name: str, config: dict[str, Any], payload: bytes, digest: str, options: dict[str, Any], files: Files
    ) -> None:
        """Start a run from these files, unless the same run was started by an earlier driver.

        The payload is a pickled function and its job, which the actor itself has no use for.
        """
        earlier = self.entries.get(name)
        if earlier and earlier.config == config and not earlier.stopped:
            earlier.changes = Changes(self.folder(name))  # tell the new driver everything
            return
        self.forget([name])
        if not self.root.exists():
            self.root = self.new_root()
        write_run_files(self.folder(name), files)
        entry = self.entries[name] = Entry(config, Changes(self.folder(name), known=True))
        here, bundle = ray.get_runtime_context().current_actor, self.bundles[digest]
        task = self.train.options(max_retries=RETRIES, name=name, **options)
        entry.task = task.remote(here, name, payload, digest, [bundle])  # in a list it is fetched only if needed

    def folder(self, name: str) -> Path:
        return self.root / name.replace("/", "%")

    def start(self, name: str, node: str) -> tuple[int, Files] | str:
        """Give a run to a node, and ignore earlier attempts from now on; or return why it shall not start."""
        entry = self.entries.get(name)
        if entry is None or entry.stopped:
            return STOPPED
        if entry.attempt > RETRIES:  # Ray itself tries a run that is out of memory for ever
            return LOST
        entry.attempt, entry.node = entry.attempt + 1, node
        return entry.attempt, Changes(self.folder(name)).take()[0]

    def receive(self, name: str, attempt: int, files: Files, names: list[str]) -> bool:
        """Take what a node sends; returns whether the run shall continue."""
        entry = self.entries.get(name)
        if entry is None or entry.attempt != attempt:
            return False
        write_run_files(self.folder(name), files, names)
        entry.names = names
        return not entry.stopped

    def poll(self, names: list[str]) -> dict[str, RunUpdate]:
        """What changed in these runs since the last call."""
        tasks = {self.entries[name].task: name for name in names}
        ended = ray.wait(list(tasks), num_returns=len(tasks), timeout=0)[0] if tasks else []
        problems = {tasks[task]: outcome(task) for task in ended}
        result = {}
        for name in names:
            entry = self.entries[name]
            files, _ = entry.changes.take()
            result[name] = RunUpdate(
                files, entry.names, entry.node, entry.attempt, name in problems, problems.get(name)
            )
        return result

    def stop(self, names: list[str]) -> None:
        """Ask runs to save and end."""
        for name in names:
            self.entries[name].stopped = True

    def forget(self, names: list[str]) -> int:
        """Drop runs that the driver has; returns how many are left."""
        for name in names:
            if entry := self.entries.pop(name, None):
                ray.cancel(entry.task, force=True)
                shutil.rmtree(self.folder(name), ignore_errors=True)
        if not self.entries:
            shutil.rmtree(self.root, ignore_errors=True)
        return len(self.entries)


def outcome(task: Any) -> str | None:
    try:
        problem: str | None = ray.get(task)
        return problem
    except ray.exceptions.RayTaskError as error:  # such as a node without the package
        return f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())}"
    except ray.exceptions.RayError:
        return LOST


def train(collector: Any, name: str, payload: bytes, digest: str, bundle: list[Any]) -> str | None:
    """Work on a run on this node, and send its folder to the collector as it is written."""
    started = ask(collector.start, name, platform.node())
    if isinstance(started, str):
        return started
    attempt, files = started
    work, job = ray.cloudpickle.loads(payload)
    here = node_folder()
    with tempfile.TemporaryDirectory(dir=here, prefix="run-") as scratch, in_use(Path(scratch)):
        folder = Path(scratch) / "run"
        write_run_files(folder, files)
        sender = Sender(folder, lambda *changed: ask(collector.receive, name, attempt, *changed))
        try:
            with in_use(unpack(here / digest, bundle)) as files_here:
                problem: str | None = work(job.at(folder, files_here, here / FIRST_TASKS), lambda event: None)
        except KeyboardInterrupt:
            problem = STOPPED
        finally:
            sender.finish()
    return problem and problem.replace(str(folder), str(job.folder))


def ask(method: Any, *arguments: Any) -> Any:
    """Call a method of the collector, again if it was out of reach; a method that is called twice must do no harm."""
    while True:
        try:
            return ray.get(method.remote(*arguments))
        except ray.exceptions.ActorUnavailableError:
            time.sleep(PERIOD)


class Sender(threading.Thread):
    """Sends what changes in a folder every second; stops the run if nobody wants it any more."""

    def __init__(self, folder: Path, send: Callable[[Files, list[str]], bool]) -> None:
        super().__init__(daemon=True)
        self.changes, self.deliver, self.over = Changes(folder, known=True), send, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(PERIOD):
            if not self.send():
                os.kill(os.getpid(), signal.SIGTERM)  # the run saves and ends
                return

    def send(self) -> bool:
        try:
            return self.deliver(*self.changes.take())
        except ray.exceptions.RayError:  # the collector is gone
            return False

    def finish(self) -> None:
        self.over.set()
        self.join()
        self.send()


def node_folder() -> Path:
    """A folder of this user for data and runs on this node; what nobody has used for a day is removed."""
    folder = Path(tempfile.gettempdir()) / f"flashback-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    (folder / FIRST_TASKS).mkdir(exist_ok=True)
    for old in [*folder.iterdir(), *(folder / FIRST_TASKS).iterdir()]:
        with suppress(OSError):
            if old.name != FIRST_TASKS and time.time() - old.stat().st_mtime > UNUSED:
                remove_unused(old)
    return folder


@contextmanager
def in_use(folder: Path) -> Iterator[Path]:
    """Keep a folder from being removed inside this context, until the process ends at the latest."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.utime(folder)
        yield folder
    finally:
        os.close(descriptor)


def remove_unused(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder.rename(folder.with_name(f"{folder.name}-old")))
    finally:
        os.close(descriptor)


def unpack(target: Path, bundle: list[Any]) -> Path:
    """The files of a bundle in a folder of this node, fetched by the first run that needs them."""
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as part:
            write_run_files(Path(part) / "files", ray.get(bundle[0]))
            (Path(part) / "files" / "data").mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # another run was faster
                (Path(part) / "files").rename(target)
    return target
