"""Run many jobs in parallel; one failure never affects the others."""

import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import torch

from flashback.benchmarks.load import fetch_data
from flashback.benchmarks.specs import BENCHMARKS, PACKAGE
from flashback.benchmarks.tasks import data_folder
from flashback.engines.following import STOPPED
from flashback.errors import FlashbackError, require, warn_once
from flashback.files import make_folder, refuse_special, remove_cache, write_atomically
from flashback.hosts.external import HostFiles, find_hosts, in_one_line, with_imports
from flashback.recipes import config_from_dict
from flashback.records import FolderInUseError, RunFolder, is_begun, is_held
from flashback.studies.packing import jobs_at_a_time, mps_is_on, portion, sharing_gpu
from flashback.studies.processes import DIED, run_in_processes
from flashback.training.building import LACK_OF_MEMORY
from flashback.training.environment import PORTION, select_device, source_digest
from flashback.training.first_task_cache import SHARED, first_task_settings
from flashback.training.running import finished_run, run, user_data_checksum
from flashback.training.trackers import import_tracker
from flashback.training.trainer import Observer

FAILURE = "failure.txt"  # of the last attempt, if a bug ended it
DETAILS = " (see "
ELSEWHERE = "running elsewhere"  # another process is training the run
POLL = 1.0  # seconds between looks at runs of other processes
Problems = dict[str, str | None]  # what went wrong with each run, by its name; None for nothing


@dataclass(frozen=True)
class RunContext:
    """What all runs of a study share: where the data are, the device, host files and trackers."""

    data: str | Path | None
    device: str
    host_file: HostFiles
    track: tuple[str, ...] = ()  # trackers, of which every run has its own
    checksums: dict[str, str | None] = field(default_factory=dict, compare=False)  # of the data, by benchmark

    def checksum(self, config: Mapping[str, Any]) -> str | None:
        """The checksum of the user's own data, read once."""
        name = config["benchmark"]["name"]
        if name not in self.checksums:
            self.checksums[name] = user_data_checksum(config, self.data)
        return self.checksums[name]

    @classmethod
    def of(
        cls,
        data: str | Path | None,
        device: str | torch.device,
        host_file: HostFiles,
        track: Sequence[str] = (),
        executor: "Executor | None" = None,
    ) -> Self:
        """Register the hosts of files, and refuse a device or a tracker that is not there."""
        find_hosts(host_file)
        for name in track:
            import_tracker(name)
        return cls(data, (executor or Local()).device(device), host_file, tuple(track))


@dataclass(frozen=True)
class Job:
    """One run among many. Its configuration is a plain mapping, so that it can be sent to other processes."""

    arm: str
    seed: int
    config: dict[str, Any]
    folder: Path
    context: RunContext
    title: str = ""
    first_tasks: Path | None = None  # folder through which it shares its first task with others
    host_names: tuple[str, ...] = ()  # of the host files among `needed_files`, once it is packed

    @property
    def name(self) -> str:
        return self.title or f"{self.arm}, seed {self.seed}"

    def at(self, folder: Path, files: Path, first_tasks: Path) -> "Job":
        """A job that has been packed, on another machine; `needed_files` are in `files` there."""
        context = replace(self.context, data=files / "data", host_file=[files / name for name in self.host_names])
        return replace(self, folder=folder, context=context, first_tasks=self.first_tasks and first_tasks)

    def packed(self) -> "Job":
        """The job as it travels to another machine."""
        return replace(self, host_names=tuple(host_files(self.context)[0]))

    @property
    def first_task_key(self) -> str:
        return json.dumps(first_task_settings(self.config), sort_keys=True)


class Executor(Protocol):
    """Runs jobs somewhere: in this process, in others, or on other machines."""

    def max_parallel(self, jobs: Sequence[Job]) -> int:
        """How many of these jobs may train at a time."""

    def device(self, device: str | torch.device) -> str:
        """The type of the device that the user asked for; refuses one that is not there."""

    def __call__(self, jobs: Sequence[Job], watch: Callable[[str], Observer], out: Path) -> Problems:
        """Run jobs whose folders are below `out`, each watched by its observer; returns what went wrong with each."""


def check_jobs(jobs: int | None) -> None:
    require(jobs is None or jobs >= 1, f"jobs (--jobs) is at least 1, not {jobs}")


def device_type(device: str | torch.device) -> str:
    """The name of a device without its number: auto, cpu or cuda; this machine need not have it."""
    name = str(device).partition(":")[0]
    require(name in ("auto", "cpu", "cuda"), f"device (--device) must be auto, cpu or cuda, not '{device}'")
    return name


@dataclass(frozen=True)
class Local:
    """Runs jobs on this machine: in this process, or several at a time in processes of their own.

    Args:
        jobs: How many run at a time; by default one on a CPU, on a GPU as many as cores and memory allow.
    """

    jobs: int | None = None

    def __post_init__(self) -> None:
        check_jobs(self.jobs)

    def max_parallel(self, jobs: Sequence[Job]) -> int:
        return jobs_at_a_time(self.jobs, len(jobs), jobs[0].context.device)

    def device(self, device: str | torch.device) -> str:
        return select_device(device).type

    def __call__(self, jobs: Sequence[Job], watch: Callable[[str], Observer], out: Path) -> Problems:
        """A run whose process was killed is tried once more; one that lacked memory beside others, again alone."""
        if not jobs or (count := self.max_parallel(jobs)) == 1:
            return run_here(jobs, watch)
        problems = run_packed(count, jobs, watch)
        problems |= run_packed(count, [job for job in jobs if was_killed(problems[job.name])], watch)
        return problems | run_packed(1, [job for job in jobs if problems[job.name] == LACK_OF_MEMORY], watch)


def host_files(context: RunContext) -> tuple[list[str], dict[str, Path]]:
    """The names of host files on other machines, and all files they need by their names there."""
    files = [context.host_file] if isinstance(context.host_file, str | Path) else context.host_file or []
    paths = [Path(path).expanduser().resolve() for path in files]
    needed = sorted(set().union(*map(with_imports, paths)))
    base = os.path.commonpath([path.parent for path in needed]) if needed else ""
    names = {path: f"hosts/{path.relative_to(base).as_posix()}" for path in needed}
    return [names[path] for path in paths], {name: path for path, name in names.items()}


def needed_files(jobs: Sequence[Job]) -> dict[str, Path]:
    """What jobs need on another machine that has the package: data and host files, by their names there."""
    files = host_files(jobs[0].context)[1]
    folder = data_folder(jobs[0].context.data)
    for name in {job.config["benchmark"]["name"] for job in jobs}:
        path = fetch_data(name, jobs[0].context.data)
        if name not in BENCHMARKS or PACKAGE not in path.parents:
            below = path.relative_to(folder).as_posix() if folder in path.parents and name in BENCHMARKS else path.name
            same = files.setdefault(f"data/{below}", path) == path
            require(same, f"two data sets are named {path.name}; other machines need different names")
    return files


def is_finished(job: Job, checksum: str | None = None) -> bool:
    if not is_begun(job.folder):  # the data need not be read
        return False
    checksum = checksum or job.context.checksum(job.config)
    return finished_run(job.folder, job.config, checksum, job.context.data) is not None


def group_failures(failures: Mapping[str, str]) -> dict[str, str]:
    """Merge equal problems under the name of the first run and the number of the others."""
    groups: dict[str, list[str]] = {}
    for name, problem in failures.items():
        groups.setdefault(problem.partition(DETAILS)[0], []).append(name)  # every run has details of its own
    return {f"{name} and {len(others)} more" if others else name: failures[name] for name, *others in groups.values()}


def run_jobs(jobs: Sequence[Job], executor: Executor, watch: Callable[[str], Observer], out: Path) -> dict[str, str]:
    """Run all jobs; returns what went wrong by the name of the run.

    Runs that differ in flashback alone share their first task through a folder in `out`, removed at the end.
    """
    if jobs:
        jobs = share_first_tasks(jobs, out / SHARED, executor.max_parallel(jobs))
    failures = run_all(jobs, executor, watch, out)
    remove_cache(out / SHARED)  # also of a process that was killed after its last run
    return failures


def run_all(jobs: Sequence[Job], executor: Executor, watch: Callable[[str], Observer], out: Path) -> dict[str, str]:
    """Run all jobs; a run that another process is training is left to it, and waited for at the end."""
    if not jobs:
        return {}
    make_folder(out)
    for job in jobs:
        refuse_special(job.folder, below=out)
    problems = executor(jobs, watch, out)
    while elsewhere := [job for job in jobs if problems[job.name] == ELSEWHERE]:
        free = [job for job in elsewhere if not is_held(job.folder)]  # finished, or its process has died
        problems |= executor(free, watch, out)
        if not free:
            warn_once(f"another process is training in {elsewhere[0].folder}; waiting for it")
            time.sleep(POLL)
    return {name: problem for name, problem in problems.items() if problem is not None}


def share_first_tasks(jobs: Sequence[Job], folder: Path, count: int) -> list[Job]:
    """Name the folder in jobs with a first task in common; of several at a time, one trains it first."""
    counts, places = Counter[str](), list[int]()
    for job in jobs:
        places.append(counts[job.first_task_key] if count > 1 else 0)
        counts[job.first_task_key] += 1
    order = sorted(range(len(jobs)), key=places.__getitem__)
    return [replace(jobs[k], first_tasks=folder if counts[jobs[k].first_task_key] > 1 else None) for k in order]


def was_killed(problem: str | None) -> bool:
    """Whether a process was killed, or lost the GPU through what another process did."""
    return problem is not None and (problem in (DIED, STOPPED) or "CUDA error" in problem)


def run_here(jobs: Sequence[Job], watch: Callable[[str], Observer]) -> Problems:
    problems: Problems = {}
    for job in jobs:
        observer = watch(job.name)
        problems[job.name] = attempt(job, observer)
        observer({"event": "end", "problem": problems[job.name]})
    return problems


def run_packed(count: int, jobs: Sequence[Job], watch: Callable[[str], Observer]) -> Problems:
    if not jobs:
        return {}
    by_name, device = {job.name: job for job in jobs}, jobs[0].context.device
    with sharing_gpu(device, min(count, len(jobs))):
        return run_in_processes(by_name, count, attempt_in_process, watch, reuse=device != "cuda")


def attempt(job: Job, observer: Observer) -> str | None:
    try:
        config, context = config_from_dict(job.config), job.context
        train = partial(run, data=context.data, device=context.device, track=context.track)
        train(config, out=job.folder, observers=[observer], first_tasks=job.first_tasks)
        with suppress(OSError):  # the run is finished all the same
            (job.folder / FAILURE).unlink(missing_ok=True)
    except FolderInUseError:
        return ELSEWHERE
    except FlashbackError as error:
        return str(error)
    except Exception as problem:
        message, details = in_one_line(problem), traceback.format_exc()
        with suppress(OSError):  # a full disk may be the problem
            job.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(job.folder / FAILURE, details)
            message += f"{DETAILS}{job.folder / FAILURE})"
        return message
    return None


def attempt_in_process(job: Job, observer: Observer) -> str | None:
    try:
        find_hosts(job.context.host_file)
    except FlashbackError as error:  # a host file may be broken on one machine alone
        return str(error)
    keep_portion(job.folder)
    return attempt(job, observer)


def attempt_on_node(source: str, threads: str | None, gpus: float, job: Job, observer: Observer) -> str | None:
    """Attempt a job on another machine as it would be attempted on that of the driver."""
    if source_digest() != source:
        return "its node has another version of flashback than the driver; install the same on all"
    os.environ.pop("OMP_NUM_THREADS", None)  # set by Ray; results depend on the number of threads
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = threads
        torch.set_num_threads(int(threads))
    if 0 < gpus < 1 and mps_is_on():
        os.environ[PORTION] = portion(runs_on_a_gpu(gpus))
    return attempt_in_process(job, observer)


def runs_on_a_gpu(gpus: float) -> int:
    """How many runs that take this part of a GPU each share one."""
    return int(1 / gpus + 1e-9) if 0 < gpus < 1 else 1


def keep_portion(folder: Path) -> None:
    """A resumed run gets the portion of the GPU it began with, so that its results do not change."""
    with suppress(FlashbackError):  # a broken record is for the run to report
        before = RunFolder(folder).read_run().get("must_match")
        if isinstance(before, dict) and "portion" in before:
            os.environ[PORTION] = str(before["portion"])
