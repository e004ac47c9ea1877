"""Train the runs of a study as the jobs of a Slurm array, through submitit."""

import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashback.engines.following import Follower
from flashback.errors import FlashbackError, Interrupted, import_extra, require
from flashback.files import LARGEST_RECORD, make_folder, read_file, refuse_special, write_atomically
from flashback.records import is_finished
from flashback.studies.jobs import Job, Problems, attempt_on_node, check_jobs, device_type, run_packed, runs_on_a_gpu
from flashback.studies.processes import handling
from flashback.training.environment import source_digest
from flashback.training.trainer import Observer

FOLDER = ".slurm"  # in that of the study: one folder per driver, with the files of submitit and the jobs of its runs
JOBS = "jobs.json"
LOOK = 1.0  # seconds between looks at the runs
ASK = 5.0  # seconds between questions to Slurm
PATIENCE = 20.0  # seconds in which the result of a job has to appear once it has left the queue
MINUTES = 240  # the time limit of a job; a run that needs longer is requeued
TIMEOUTS = 1000  # how often
LOST = "Slurm ended its job before the run was finished; look at it with sacct, or in {folder}"
NOT_SHARED = "a Slurm job has left nothing in {folder}; --out has to be on a disk that all nodes share"
GPU_OPTIONS = ("gpus", "gpus_per_node", "gpus_per_socket", "gpus_per_task", "gres")


@dataclass(frozen=True)
class Slurm:
    """Trains runs as the jobs of a Slurm array. The folder of the study has to be on a disk that all nodes share.

    Args:
        options: Of sbatch, such as {"partition": "gpu", "time": 240}; the time is in minutes, and True stands for an
            option without a value.
        jobs: How many jobs run at a time at most.
        cpus: Cores of a run.
        gpus: GPUs of a run; runs that take a fraction of one share a job, packed as on one machine.
        memory: Gigabytes of a run.
        cluster: "slurm", or "local" to try it without Slurm.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int | None = None
    cpus: float = 1
    gpus: float = 0
    memory: float | None = None
    cluster: str = "slurm"

    def __post_init__(self) -> None:
        check_jobs(self.jobs)

    def max_parallel(self, jobs: Sequence[Job]) -> int:
        return min(len(jobs), self.jobs or len(jobs))

    def device(self, device: str | torch.device) -> str:
        name = device_type(device)
        has_gpus = self.gpus > 0 or any(option in self.given_options() for option in GPU_OPTIONS)
        return name if name != "auto" else "cuda" if has_gpus else "cpu"

    def __call__(self, jobs: Sequence[Job], watch: Callable[[str], Observer], out: Path) -> Problems:
        if not jobs:
            return {}
        refuse_special(out / FOLDER, below=out)
        make_folder(out / FOLDER)
        job_folder = Path(tempfile.mkdtemp(dir=(out / FOLDER).resolve()))
        try:
            return SlurmDriver(self, job_folder, watch).run(jobs)
        finally:
            for folder in (job_folder, job_folder.parent):
                with suppress(OSError):  # it holds jobs
                    folder.rmdir()

    def given_options(self) -> dict[str, Any]:
        """The options of sbatch as submitit spells them, with whole numbers as numbers."""
        values = {name: int(v) if str(v).isdigit() else v for name, v in self.options.items()}
        values = {name: True if value == "true" else value for name, value in values.items()}
        return {name.replace("-", "_"): value for name, value in values.items()}

    def runs_of_a_job(self) -> int:
        return runs_on_a_gpu(self.gpus)

    def executor(self, folder: Path) -> Any:
        submitit = import_extra("submitit", "slurm", "runs on Slurm (--on slurm) need the package submitit")
        if self.cluster == "local":
            executor = submitit.LocalExecutor(folder, max_num_timeout=TIMEOUTS)
            executor.update_parameters(timeout_min=MINUTES)
            return executor
        require(shutil.which("sbatch") is not None, "sbatch is missing; start --on slurm where jobs can be submitted")
        executor, together = submitit.SlurmExecutor(folder, max_num_timeout=TIMEOUTS), self.runs_of_a_job()
        known = set(executor._valid_parameters())
        parameters = {"job_name": "flashback", "time": MINUTES, "cpus_per_task": math.ceil(self.cpus * together)}
        parameters |= {} if self.jobs is None else {"array_parallelism": self.jobs}
        parameters |= {} if self.memory is None else {"mem": f"{math.ceil(self.memory * together)}GB"}
        parameters |= {"gpus_per_node": math.ceil(self.gpus)} if self.gpus else {}
        parameters |= self.given_options()
        parameters["time"] = minutes(parameters["time"])
        more = {name: parameters.pop(name) for name in list(parameters) if name not in known}
        executor.update_parameters(**parameters, additional_parameters={"requeue": True, **more})
        return executor


def minutes(limit: Any) -> int:
    """Slurm's ways to write a time limit: minutes, MM:SS, HH:MM:SS, and D-HH before any of them."""
    days, dash, rest = str(limit).rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        if dash:
            hours, mins, seconds = (*parts, 0, 0)[:3]
        else:
            hours, mins, seconds = {1: (0, *parts, 0), 2: (0, *parts), 3: tuple(parts)}[len(parts)]
        return max(1, 24 * 60 * int(days or 0) + 60 * hours + mins + math.ceil(seconds / 60))
    except (ValueError, KeyError):
        raise FlashbackError(f"a time limit (--slurm time=) is minutes or H:MM:SS, not {limit}") from None


class SlurmTask:
    """The work of a Slurm job. On the signal before the time limit it saves its runs and is queued again."""

    def __init__(self, jobs: Sequence[Job], source: str) -> None:
        self.jobs, self.source = list(jobs), source

    def __call__(self) -> Problems:
        requeue, signals = signal.getsignal(signal.SIGUSR2), list[Any]()  # the handler of submitit

        def save(*arguments: Any) -> None:
            signals.append(arguments)
            signal.raise_signal(signal.SIGTERM)

        signal.signal(signal.SIGTERM, signal.default_int_handler)  # while a run trains, it saves first
        signal.signal(signal.SIGUSR2, save)
        try:
            return self.train()
        except KeyboardInterrupt:
            if signals and callable(requeue):
                requeue(*signals[0])
            raise SystemExit(1) from None  # Slurm has preempted the job and requeues it, or somebody has cancelled it

    def train(self) -> Problems:
        attempt = partial(attempt_on_node, self.source, os.environ.get("OMP_NUM_THREADS"), 1)
        if len(self.jobs) == 1 or self.source != source_digest():
            return {job.name: attempt(job, lambda event: None) for job in self.jobs}
        return run_packed(len(self.jobs), self.jobs, lambda name: lambda event: None)

    def checkpoint(self) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


@dataclass
class SubmittedJob:
    """A Slurm job with its runs."""

    job: Any
    followers: dict[str, Follower]
    observers: dict[str, Observer]
    runs: dict[str, Job]
    node: str = ""
    left_queue: float | None = None  # when


class SlurmDriver:
    """Submits jobs, follows the runs on the shared disk, and asks Slurm which jobs are left."""

    def __init__(self, slurm: Slurm, folder: Path, watch: Callable[[str], Observer]) -> None:
        self.slurm, self.folder, self.watch = slurm, folder, watch
        self.followed: list[SubmittedJob] = []
        self.problems: Problems = {}

    def run(self, jobs: Sequence[Job]) -> Problems:
        queued, together = self.queued_by_other_drivers(), self.slurm.runs_of_a_job()
        new = [job for job in jobs if job.name not in queued]
        chunks = [new[k : k + together] for k in range(0, len(new), together)]
        try:
            executor = self.slurm.executor(self.folder)
            tasks = [SlurmTask(chunk, source_digest()) for chunk in chunks]
            slurm_jobs = self.submit(executor, tasks) if tasks else []
        except FlashbackError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        except (RuntimeError, subprocess.SubprocessError, OSError, TypeError, ValueError) as problem:
            reason = " ".join(str(getattr(problem, "stderr", None) or problem).split())
            shutil.rmtree(self.folder, ignore_errors=True)
            raise FlashbackError(f"Slurm does not take the jobs ({reason}); see --slurm") from None
        for job, chunk in zip(slurm_jobs, chunks, strict=True):
            self.follow(job, chunk)
        if slurm_jobs:
            self.write_job_ids()
        for folder, identity in set(queued.values()):
            runs = [job for job in jobs if queued.get(job.name) == (folder, identity)]
            if runs:
                self.follow(executor.job_class(folder, identity), runs)
        followed = list(self.followed)
        try:
            with handling(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
                self.wait()
        except KeyboardInterrupt:
            ids = " ".join(sorted({submitted.job.job_id.partition("_")[0] for submitted in self.followed}))
            raise Interrupted(
                f"the jobs stay in the queue; the same command continues them, `scancel {ids}` ends them"
            ) from None
        if not any(self.problems.values()):
            self.tidy({self.folder, *(submitted.job.paths.folder for submitted in followed)})
        return self.problems

    def tidy(self, folders: Collection[Path]) -> None:
        """Remove what submitit has written for jobs that have ended, watched by this driver or by nobody."""
        left = None if self.slurm.cluster == "local" else self.in_queue()
        for folder in folders:
            job_ids = self.read_job_ids(folder)
            has_ended = left is not None and left.keys().isdisjoint(job_ids.values())
            if job_ids.keys() <= self.problems.keys() or has_ended:
                shutil.rmtree(folder, ignore_errors=True)

    @staticmethod
    def submit(executor: Any, tasks: Sequence[SlurmTask]) -> list[Any]:
        with executor.batch():
            return [executor.submit(task) for task in tasks]

    def follow(self, job: Any, runs: Sequence[Job]) -> None:
        observers = {run.name: self.watch(run.name) for run in runs}
        followers = {run.name: Follower(run.folder, observers[run.name]) for run in runs}
        for observer in observers.values():
            observer({"event": "queued"})
        self.followed.append(SubmittedJob(job, followers, observers, {run.name: run for run in runs}))

    def write_job_ids(self) -> None:
        ids = {name: submitted.job.job_id for submitted in self.followed for name in submitted.runs}
        write_atomically(self.folder / JOBS, json.dumps(ids, indent=1) + "\n")

    def queued_by_other_drivers(self) -> dict[str, tuple[Path, str]]:
        """The folder and the job of every run, by its name, that is still in the queue."""
        left, queued = self.in_queue() or {}, dict[str, tuple[Path, str]]()
        for folder in sorted(self.folder.parent.iterdir()):
            queued |= {name: (folder, job) for name, job in self.read_job_ids(folder).items() if job in left}
        return queued

    @staticmethod
    def read_job_ids(folder: Path) -> dict[str, str]:
        """The job of every run that a driver has submitted from this folder."""
        with suppress(OSError, ValueError, AttributeError, RecursionError):
            entries = json.loads(read_file(folder / JOBS, LARGEST_RECORD)).items()
            return {str(name): str(job) for name, job in entries}
        return {}

    def in_queue(self) -> dict[str, str] | None:
        """The nodes of the jobs of this user that have not ended, by the job; None if Slurm does not answer."""
        if self.slurm.cluster == "local":
            return {submitted.job.job_id: "" for submitted in self.followed if not submitted.job.done()}
        command = ["squeue", "--noheader", "--array", "--me", "--format", "%A %F_%K %N"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        jobs: dict[str, str] = {}
        for line in answer.splitlines():
            alone, of_array, *node = line.split()
            jobs |= dict.fromkeys((alone, of_array), node[0] if node else "")
        return jobs

    def wait(self) -> None:
        last_look = -math.inf
        while self.followed:
            if time.monotonic() - last_look >= ASK:
                last_look, left = time.monotonic(), self.in_queue()
            for submitted in list(self.followed):
                if left is not None:
                    self.place(submitted, left.get(submitted.job.job_id))
                self.report(submitted)
            time.sleep(LOOK)

    def place(self, submitted: SubmittedJob, node: str | None) -> None:
        if node is None:
            submitted.left_queue = submitted.left_queue or time.monotonic()
            return
        submitted.left_queue = None
        if node and node != submitted.node:
            submitted.node = node
            for observer in submitted.observers.values():
                observer({"event": "placed", "node": node})

    def report(self, submitted: SubmittedJob) -> None:
        for follower in submitted.followers.values():
            follower.report()
        if (problems := self.outcome(submitted)) is None:
            return
        self.followed.remove(submitted)
        for name, observer in submitted.observers.items():
            self.problems[name] = problems.get(name, LOST.format(folder=self.folder))
            observer({"event": "end", "problem": self.problems[name]})

    def outcome(self, submitted: SubmittedJob) -> Problems | None:
        """What went wrong with the runs of a job that has ended; None while it is queued or running."""
        from submitit.core.utils import pickle_load

        paths = submitted.job.paths
        if paths.result_pickle.exists():
            with suppress(EOFError):
                kind, value = pickle_load(paths.result_pickle)
                return value if kind == "success" else dict.fromkeys(submitted.runs, value.strip().splitlines()[-1])
        if submitted.left_queue is None or time.monotonic() - submitted.left_queue < PATIENCE:
            return None
        if all(is_finished(run.folder) for run in submitted.runs.values()):  # another driver may have tidied up
            return dict.fromkeys(submitted.runs)
        if not paths.stdout.exists() and not paths.stderr.exists() and paths.folder == self.folder:
            for other in self.followed:
                other.job.cancel(check=False)
            raise FlashbackError(NOT_SHARED.format(folder=self.folder))
        message = LOST.format(folder=paths.folder)
        return {name: None if is_finished(run.folder) else message for name, run in submitted.runs.items()}
