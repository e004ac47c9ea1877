"""Runs among many: what one needs, whether it is done, and doing several at a time without one spoiling the others."""

from __future__ import annotations

import json
import os
import shutil
import sys
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
from flashback.hosts import HOSTS
from flashback.hosts.external import HostFiles, find_hosts, in_one_line
from flashback.recipes import config_from_dict
from flashback.records import RunFolder
from flashback.studies.packing import FixedConcurrency, MeasuredConcurrency, sharing_gpu
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
SOME = 4  # runs at a time, before it is measured how many pay


@dataclass(frozen=True)
class RunContext:
    """Where runs find what they need."""

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
    """One run among many. The configuration is a plain mapping: it travels to other processes as it is."""

    arm: str
    seed: int
    config: dict[str, Any]
    folder: Path
    place: RunContext
    title: str = ""
    first_tasks: Path | None = None  # where it shares its first task with others, if it does

    @property
    def name(self) -> str:
        return self.title or f"{self.arm}, seed {self.seed}"

    @property
    def cost_key(self) -> str:
        """The same for runs that differ in the seed alone: their steps cost the same."""
        return json.dumps({**self.config, "seed": None}, sort_keys=True)

    @property
    def first_task_key(self) -> str:
        """The same for runs whose first tasks are the same."""
        return json.dumps(first_task_settings(self.config), sort_keys=True)


def is_finished(job: Job, checksum: str | None = None) -> bool:
    """Whether the folder of a job holds its finished run; a run of anything else there is an error."""
    return finished_run(job.folder, job.config, checksum, job.place.data) is not None


def benchmarks_of(jobs: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(job.config["benchmark"]["name"] for job in jobs))


def lacking_data(jobs: Sequence[Job]) -> list[str]:
    """What to do about the data of these jobs that are not at hand, a sentence for every dataset."""
    said = (missing_data(name, jobs[0].place.data) for name in benchmarks_of(jobs))
    return list(dict.fromkeys(sentence for sentence in said if sentence is not None))


def ensure_data(jobs: Sequence[Job]) -> None:
    """Find or fetch the data of every benchmark once: what cannot be had is refused before anything is trained."""
    for name in benchmarks_of(jobs):
        fetch_data(name, jobs[0].place.data)


def group_failures(failures: Mapping[str, str]) -> dict[str, str]:
    """Equal problems as one, under the name of the first run and the number of the others."""
    alike: dict[str, list[str]] = {}
    for name, problem in failures.items():
        alike.setdefault(problem.partition(DETAILS)[0], []).append(name)  # every run has details of its own
    return {
        first + (f" and {len(others)} more" if others else ""): failures[first] for first, *others in alike.values()
    }


def carry_out(jobs: Sequence[Job], count: int | None, watch: Callable[[str], Observer], out: Path) -> dict[str, str]:
    """Run all jobs, `count` at a time; returns what went wrong by the name of the run.

    Those that differ in flashback alone share their first task by a folder in `out`, which is there meanwhile.
    A run whose process was killed gets a second chance: it goes on from its last checkpoint. So does one that found
    too little memory beside others, alone.
    """
    jobs = sharing_first_tasks(jobs, out / SHARED)
    one_by_one = len(jobs) < 2 or count == 1 or (count is None and jobs[0].place.device != "cuda")
    if one_by_one:
        problems = {job.name: attempt_here(job, watch(job.name)) for job in jobs}
    else:
        check_reachable(jobs)
        problems = run_packed(spaced(jobs, count or SOME), count, watch)
        problems |= run_packed([job for job in jobs if was_killed(problems[job.name])], count, watch)
        problems |= run_packed([job for job in jobs if problems[job.name] == LACK_OF_MEMORY], 1, watch)
    shutil.rmtree(out / SHARED, ignore_errors=True)
    return {name: problem for name, problem in problems.items() if problem is not None}


def check_reachable(jobs: Sequence[Job]) -> None:
    """Processes read the script that starts them anew, but no notebook."""
    if hasattr(sys.modules["__main__"], "__file__"):
        return
    for name in sorted({job.config["host"]["name"] for job in jobs}):
        require(
            name not in HOSTS or HOSTS[name].__module__ != "__main__",
            f"{name} is made in this session alone, and runs at a time are processes of their own; put it into a file "
            "and name that (host_file), or run one at a time (jobs=1)",
        )


def sharing_first_tasks(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """A state takes room and time to write; only where another run wants it is it left."""
    wanted = Counter(job.first_task_key for job in jobs)
    return [replace(job, first_tasks=folder if wanted[job.first_task_key] > 1 else None) for job in jobs]


def spaced(jobs: Sequence[Job], count: int) -> list[Job]:
    """In their order, but those that share a first task not at once where others can go between them."""
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
    """By the system, by somebody, or by what another process did to the GPU they shared."""
    return problem is not None and (problem in (DIED, STOPPED) or "CUDA error" in problem)


def run_packed(jobs: Sequence[Job], count: int | None, watch: Callable[[str], Observer]) -> dict[str, str | None]:
    """Several runs at a time, each in a process; on a GPU in one of its own, which leaves nothing behind there."""
    if not jobs:
        return {}
    with sharing_gpu(jobs[0].place.device) as sharing:
        pace = (
            FixedConcurrency(count)
            if count is not None
            else MeasuredConcurrency.of_gpu({job.name: job.cost_key for job in jobs})
        )
        lasting = jobs[0].place.device != "cuda"
        return run_in_processes({job.name: job for job in jobs}, pace, attempt_alone, watch, sharing, lasting)


def attempt(job: Job, observer: Observer) -> str | None:
    """One run. A failure is returned and does not stop the others; a bug leaves its traceback in the folder."""
    try:
        config, place = config_from_dict(job.config), job.place
        run(
            config,
            out=job.folder,
            data=place.data,
            device=place.device,
            observers=[observer],
            track=place.track,
            first_tasks=job.first_tasks,
        )
        (job.folder / FAILURE).unlink(missing_ok=True)
    except Interrupted:
        raise
    except FlashbackError as error:
        return str(error)
    except Exception as problem:
        said, details = in_one_line(problem), traceback.format_exc()
        with suppress(OSError):  # a full disk may be what is wrong
            job.folder.mkdir(parents=True, exist_ok=True)
            (job.folder / FAILURE).write_text(details, encoding="utf-8")
            said += f"{DETAILS}{job.folder / FAILURE})"
        return said
    return None


def attempt_here(job: Job, observer: Observer) -> str | None:
    problem = attempt(job, observer)
    observer(end_of(problem))
    return problem


def attempt_alone(job: Job, observer: Observer) -> str | None:
    """`attempt` in a process that has just started."""
    find_hosts(job.place.host_file)
    keep_portion(job.folder)
    return attempt(job, observer)


def keep_portion(folder: Path) -> None:
    """A run that goes on gets the part of the GPU it began with, so that it ends as it would have."""
    with suppress(FlashbackError):  # a broken record is for the run to report
        before = RunFolder(folder).read_run().get("must_match")
        if isinstance(before, dict) and "portion" in before:
            os.environ[PORTION] = str(before["portion"])
