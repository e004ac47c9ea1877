"""Run many jobs in parallel; one failure never affects the others."""

from __future__ import annotations

import json
import os
import shutil
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks.load import fetch_data, missing_data
from flashback.errors import FlashbackError, Interrupted, require
from flashback.files import refuse_special, write_atomically
from flashback.hosts.external import HostFiles, find_hosts, in_one_line
from flashback.recipes import config_from_dict
from flashback.records import RunFolder
from flashback.studies.packing import jobs_at_a_time, sharing_gpu
from flashback.studies.processes import DIED, STOPPED, end_of, run_in_processes
from flashback.training.building import LACK_OF_MEMORY
from flashback.training.environment import PORTION, select_device
from flashback.training.finished import finished_run
from flashback.training.first_task_cache import SHARED, first_task_settings
from flashback.training.running import run
from flashback.training.trackers import check_tracker
from flashback.training.trainer import Observer

FAILURE = "failure.txt"  # of the last attempt, if a bug ended it
DETAILS = " (see "


@dataclass(frozen=True)
class RunContext:
    """What all runs of a study share: where the data are, the device, host files and trackers."""

    data: str | Path | None
    device: str
    host_file: HostFiles
    track: tuple[str, ...] = ()  # trackers, of which every run has its own

    @classmethod
    def of(
        cls,
        data: str | Path | None,
        device: str | torch.device,
        host_file: HostFiles,
        jobs: int | None,
        track: Sequence[str] = (),
    ) -> RunContext:
        require(jobs is None or jobs >= 1, f"jobs (--jobs) is at least 1, not {jobs}")
        for name in track:
            check_tracker(name)
        return cls(data, select_device(device).type, host_file, tuple(track))


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

    @property
    def name(self) -> str:
        return self.title or f"{self.arm}, seed {self.seed}"

    @property
    def first_task_key(self) -> str:
        """Equal for runs with the same first task."""
        return json.dumps(first_task_settings(self.config), sort_keys=True)


def is_finished(job: Job, checksum: str | None = None) -> bool:
    """Whether the folder of a job holds its finished run; a run of anything else there is an error."""
    return finished_run(job.folder, job.config, checksum, job.context.data) is not None


def benchmarks_of(jobs: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(job.config["benchmark"]["name"] for job in jobs))


def lacking_data(jobs: Sequence[Job]) -> list[str]:
    """A sentence for every dataset of these jobs that is missing."""
    sentences = (missing_data(name, jobs[0].context.data) for name in benchmarks_of(jobs))
    return list(dict.fromkeys(sentence for sentence in sentences if sentence is not None))


def ensure_data(jobs: Sequence[Job]) -> None:
    """Find or fetch the data of every benchmark before anything is trained."""
    for name in benchmarks_of(jobs):
        fetch_data(name, jobs[0].context.data)


def group_failures(failures: Mapping[str, str]) -> dict[str, str]:
    """Merge equal problems under the name of the first run and the number of the others."""
    alike: dict[str, list[str]] = {}
    for name, problem in failures.items():
        alike.setdefault(problem.partition(DETAILS)[0], []).append(name)  # every run has details of its own
    return {
        first + (f" and {len(others)} more" if others else ""): failures[first] for first, *others in alike.values()
    }


def run_jobs(jobs: Sequence[Job], count: int | None, watch: Callable[[str], Observer], out: Path) -> dict[str, str]:
    """Run all jobs, `count` at a time; returns what went wrong by the name of the run.

    Runs that differ in flashback alone share their first task through a folder in `out`, removed at the end. A run
    whose process was killed goes on from its last checkpoint; one that ran out of memory beside others starts again
    alone.
    """
    if not jobs:
        return {}
    count = jobs_at_a_time(count, len(jobs), jobs[0].context.device)
    for job in jobs:
        refuse_special(job.folder, below=out)
    jobs = share_first_tasks(jobs, out / SHARED)
    if count == 1:
        problems = {job.name: attempt_here(job, watch(job.name)) for job in jobs}
    else:
        problems = run_packed(spread(jobs, count), count, watch)
        problems |= run_packed([job for job in jobs if was_killed(problems[job.name])], count, watch)
        problems |= run_packed([job for job in jobs if problems[job.name] == LACK_OF_MEMORY], 1, watch)
    shutil.rmtree(out / SHARED, ignore_errors=True)
    return {name: problem for name, problem in problems.items() if problem is not None}


def share_first_tasks(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """Name the folder in jobs whose first task another job has too; for others, writing the state is wasted."""
    counts = Counter(job.first_task_key for job in jobs)
    return [replace(job, first_tasks=folder if counts[job.first_task_key] > 1 else None) for job in jobs]


def spread(jobs: Sequence[Job], count: int) -> list[Job]:
    """Keep the order, but put other jobs between those that share a first task, so that one finds it done."""
    waiting, order = list(jobs), list[Job]()
    while waiting:
        beside = {job.first_task_key for job in order[len(order) - count + 1 :]} if count > 1 else set()
        following = next((job for job in waiting if job.first_task_key not in beside), waiting[0])
        waiting.remove(following)
        order.append(following)
    return order


def gets_another_chance(problem: str) -> bool:
    return was_killed(problem) or problem == LACK_OF_MEMORY


def was_killed(problem: str | None) -> bool:
    """Whether a process was killed, or lost the GPU through what another process did."""
    return problem is not None and (problem in (DIED, STOPPED) or "CUDA error" in problem)


def run_packed(jobs: Sequence[Job], count: int, watch: Callable[[str], Observer]) -> dict[str, str | None]:
    if not jobs:
        return {}
    with sharing_gpu(jobs[0].context.device) as sharing:
        return run_in_processes({job.name: job for job in jobs}, count, attempt_in_process, watch, sharing)


def attempt(job: Job, observer: Observer) -> str | None:
    """Make one run and return what went wrong; a bug leaves its traceback in the folder."""
    try:
        config, context = config_from_dict(job.config), job.context
        run(
            config,
            out=job.folder,
            data=context.data,
            device=context.device,
            observers=[observer],
            track=context.track,
            first_tasks=job.first_tasks,
        )
        (job.folder / FAILURE).unlink(missing_ok=True)
    except Interrupted:
        raise
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


def attempt_here(job: Job, observer: Observer) -> str | None:
    problem = attempt(job, observer)
    observer(end_of(problem))
    return problem


def attempt_in_process(job: Job, observer: Observer) -> str | None:
    find_hosts(job.context.host_file)
    keep_portion(job.folder)
    return attempt(job, observer)


def keep_portion(folder: Path) -> None:
    """A resumed run gets the portion of the GPU it began with, so that its results do not change."""
    with suppress(FlashbackError):  # a broken record is for the run to report
        before = RunFolder(folder).read_run().get("must_match")
        if isinstance(before, dict) and "portion" in before:
            os.environ[PORTION] = str(before["portion"])
