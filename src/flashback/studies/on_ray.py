"""Train the runs of a study on a Ray cluster, or on a Ray that is started on this machine."""

import hashlib
import os
import resource
import signal
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from flashback.engines.folders import Changes, Files, files_below, write_run_files
from flashback.engines.following import Follower
from flashback.errors import FlashbackError, Interrupted, import_extra, require, warn_once
from flashback.files import LARGEST_CONFIG, make_folder, read_file, refuse_special, sha256, write_atomically
from flashback.records import FolderInUseError, RunFolder, is_finished
from flashback.studies.jobs import ELSEWHERE, Job, Problems, attempt_on_node, check_jobs, device_type, needed_files
from flashback.studies.processes import PATIENCE, handling
from flashback.training.environment import source_digest
from flashback.training.trainer import Observer

PORT = 10001  # of a Ray client
MOST_PLACED = 200  # runs that Ray has at a time
LARGEST = 8 << 30  # bytes of data that travel; more have to be on every node already
NAMESPACE = "flashback"
MARK = ".ray"  # in the folder of a study: by which name a driver that is started again finds its runs
LOOK = 0.2  # seconds between questions to the collector
UNREACHABLE = 300.0  # seconds to wait for the actor that collects runs
RESTARTS = 3  # of the actor that collects runs


@dataclass(frozen=True)
class Ray:
    """Trains runs on Ray. No folder has to be shared: data travel to the nodes, and run folders come back.

    Args:
        address: Of a cluster, such as "ray://head" or "head:6379"; by default RAY_ADDRESS, else a Ray of this machine.
        jobs: How many runs train at a time at most; by default as many as fit.
        cpus: Cores of a run.
        gpus: GPUs of a run, or the fraction of one; by default one if the cluster has any.
        memory: Gigabytes of a run that Ray sets aside; by default nothing is.
    """

    address: str | None = None
    jobs: int | None = None
    cpus: float = 1
    gpus: float | None = None
    memory: float | None = None

    def __post_init__(self) -> None:
        check_jobs(self.jobs)

    def max_parallel(self, jobs: Sequence[Job]) -> int:
        return min(len(jobs), self.jobs or MOST_PLACED)

    def device(self, device: str | torch.device) -> str:
        name = device_type(device)
        if name != "auto":
            return name
        has_gpus = connect(self.address).cluster_resources().get("GPU", 0) > 0
        return "cuda" if self.gpus or (self.gpus is None and has_gpus) else "cpu"

    def __call__(self, jobs: Sequence[Job], watch: Callable[[str], Observer], out: Path) -> Problems:
        if not jobs:
            return {}
        gpus = (1 if jobs[0].context.device == "cuda" else 0) if self.gpus is None else self.gpus
        options = {"num_cpus": self.cpus, "num_gpus": gpus}
        if self.memory is not None:
            options["memory"] = int(self.memory * 2**30)
        ray = connect(self.address)
        total = ray.cluster_resources()
        for name, needed in (("CPU", self.cpus), ("GPU", gpus), ("memory", options.get("memory", 0))):
            if needed > total.get(name, 0):
                warn_once(f"a run needs {needed:g} of {name}, and the Ray cluster has {total.get(name, 0):g}; it waits")
        work = partial(attempt_on_node, source_digest(), os.environ.get("OMP_NUM_THREADS"), gpus)
        return Driver(ray, out, work, options, watch).run(jobs, self.jobs or MOST_PLACED, bundle_of(jobs))


def connect(address: str | None) -> Any:
    """Ray, connected to a cluster or started on this machine."""
    ray = import_extra("ray", "ray", "runs on Ray (--on ray) need the package ray")
    if not ray.is_initialized():
        if address and address.startswith("ray://") and ":" not in address.removeprefix("ray://"):
            address = f"{address}:{PORT}"
        local = {} if address or os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
        check_port(address or os.environ.get("RAY_ADDRESS", ""))
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", **local)
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise no_ray(address or os.environ.get("RAY_ADDRESS") or "this machine", problem) from None
    return ray


def check_port(address: str) -> None:
    """Refuse an address at which nothing listens; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        except (OSError, OverflowError) as problem:
            raise no_ray(address, problem) from None


def no_ray(address: str, problem: Exception) -> FlashbackError:
    reason = " ".join(str(problem).split())
    if "Traceback" in reason:  # of a process of the cluster
        reason = str(problem).strip().splitlines()[-1]
    if "client connection timeout" in reason:  # a cluster that asks for a token says nothing else
        reason += "; if the cluster asks for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
    return FlashbackError(f"there is no Ray to run on at {address} ({reason})")


def bundle_of(jobs: Sequence[Job]) -> tuple[str, Files]:
    """What every node needs beside the package, with its digest; large data are left out."""
    files, size = Files(), 0
    for name, path in files_below(needed_files(jobs)):
        size += path.stat().st_size
        require(
            size <= LARGEST,
            f"the data have more than {LARGEST >> 30} GiB, too much to travel to every node; use --on slurm, or "
            "--shard, with a folder that all machines share",
        )
        files[name] = path.read_bytes()
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16], files


@dataclass
class PlacedRun:
    """A run that Ray has; its folder is locked here, as if it were trained here."""

    job: Job
    folder: RunFolder
    lock: ExitStack
    observer: Observer
    follower: Follower
    attempt: int = 0


class Driver:
    """Submits runs to Ray and writes what comes back into their folders."""

    def __init__(
        self, ray: Any, out: Path, work: Any, options: dict[str, Any], watch: Callable[[str], Observer]
    ) -> None:
        self.ray, self.work, self.options, self.watch = ray, work, options, watch
        self.mark = out / MARK
        self.name = "runs-" + name_on_cluster(self.mark)
        self.placed: dict[str, PlacedRun] = {}
        self.problems: Problems = {}
        self.restarts = 0

    def run(self, jobs: Sequence[Job], limit: int, bundle: tuple[str, Files]) -> Problems:
        waiting = list(jobs)
        self.bundle = bundle
        self.collector = self.find_collector()
        allow_open_files(2 * limit)
        try:
            with handling(signal.default_int_handler, signal.SIGTERM, signal.SIGHUP):
                while waiting or self.placed:
                    room = limit - len(self.placed)
                    self.place(waiting[:room])
                    del waiting[:room]
                    self.collect()
                    time.sleep(LOOK)
        except KeyboardInterrupt:
            self.stop()
            raise Interrupted from None
        finally:
            with suppress(self.ray.exceptions.RayError):
                if self.ray.get(self.collector.forget.remote(list(self.placed))) == 0:
                    self.ray.kill(self.collector)
                    self.mark.unlink(missing_ok=True)
            for placed in self.placed.values():
                placed.lock.close()
        return self.problems

    def find_collector(self) -> Any:
        """The actor of an earlier driver of this folder, or a new one on the node of this driver."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from flashback.engines.ray_nodes import Collector

        here = self.ray.get_runtime_context().get_node_id()
        options = {"name": self.name, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        nearby = NodeAffinitySchedulingStrategy(here, soft=False)  # Ray ignores a soft one if an actor needs no CPU
        digest, files = self.bundle
        deadline = time.monotonic() + UNREACHABLE
        while True:
            actor = self.ray.remote(Collector).options(num_cpus=0, scheduling_strategy=nearby, **options).remote()
            try:
                if not self.ray.get(actor.has_bundle.remote(digest)):
                    self.ray.get(actor.keep_bundle.remote(digest, files))
                return actor
            except self.ray.exceptions.ActorUnavailableError:  # Ray needs up to a minute to notice that a node is lost
                require(
                    time.monotonic() < deadline,
                    "the Ray actor that collects the runs cannot be reached; look at the state of the cluster",
                )
                time.sleep(LOOK)
            except self.ray.exceptions.RayActorError:  # lost, or ended just now by another driver of this folder
                self.count_restart()
                time.sleep(LOOK)

    def reconnect(self, error: Exception) -> None:
        """Find the collector again or start another, and submit all runs; it ignores those it already has."""
        if not isinstance(error, self.ray.exceptions.ActorUnavailableError):
            self.count_restart()
            warnings.warn("the node that collects the runs was lost; they continue elsewhere", stacklevel=2)
        self.collector = self.find_collector()
        for placed in self.placed.values():
            placed.attempt = 0  # it may be on another node
        self.submit([placed.job for placed in self.placed.values()])

    def count_restart(self) -> None:
        self.restarts += 1
        require(self.restarts <= RESTARTS, "the Ray cluster loses its nodes again and again; look at its state")

    def place(self, jobs: Sequence[Job]) -> None:
        accepted = []
        for job in jobs:
            observer, folder, lock = self.watch(job.name), RunFolder(job.folder), ExitStack()
            try:
                make_folder(job.folder)
                lock.enter_context(folder.lock())
            except FolderInUseError:  # by another driver, or it has finished meanwhile
                problem = None if is_finished(job.folder) else ELSEWHERE
                self.end(job.name, observer, problem)
                continue
            except FlashbackError as error:
                self.end(job.name, observer, str(error))
                continue
            self.placed[job.name] = PlacedRun(job, folder, lock, observer, Follower(job.folder, observer))
            observer({"event": "queued"})
            accepted.append(job)
        self.submit(accepted)

    def submit(self, jobs: Sequence[Job]) -> None:
        try:
            self.ray.get([self.send(job) for job in jobs])
        except self.ray.exceptions.RayActorError as error:
            self.reconnect(error)

    def send(self, job: Job) -> Any:
        files, _ = Changes(job.folder).take()
        payload = self.ray.cloudpickle.dumps((self.work, job.packed()))
        return self.collector.submit.remote(job.name, job.config, payload, self.bundle[0], self.options, files)

    def collect(self) -> None:
        try:
            updates = self.ray.get(self.collector.poll.remote(list(self.placed)))
        except self.ray.exceptions.RayActorError as error:
            self.reconnect(error)
            return
        for name, update in updates.items():
            placed = self.placed[name]
            if update.attempt != placed.attempt:
                placed.attempt = update.attempt
                placed.folder.name_holder(update.node)
                placed.observer({"event": "placed", "node": update.node, "attempt": update.attempt})
            write_run_files(placed.job.folder, update.files, update.names, lasting=True)
            placed.follower.report()
            if update.ended:
                placed.lock.close()
                del self.placed[name]
                self.collector.forget.remote([name])
                self.end(name, placed.observer, update.problem)

    def end(self, name: str, observer: Observer, problem: str | None) -> None:
        self.problems[name] = problem
        observer({"event": "end", "problem": problem})

    def stop(self) -> None:
        """Ask the runs to save, and wait a minute at most for those that have begun."""
        with suppress(self.ray.exceptions.RayError):
            self.ray.get(self.collector.stop.remote(list(self.placed)))
            deadline = time.monotonic() + PATIENCE
            while any(placed.attempt for placed in self.placed.values()) and time.monotonic() < deadline:
                self.collect()
                time.sleep(LOOK)


def name_on_cluster(mark: Path) -> str:
    """A name for the folder of a study, from a file in it and its path: other machines may have the same path."""
    make_folder(mark.parent)
    refuse_special(mark)
    if not mark.exists():
        write_atomically(mark, uuid4().hex)
    return sha256(read_file(mark, LARGEST_CONFIG) + str(mark.resolve()).encode())[:16]


def allow_open_files(count: int) -> None:
    """Every run that is placed has a lock, which is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or soft + count <= hard):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft + count, hard))
