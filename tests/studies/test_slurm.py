"""Runs as jobs of Slurm: a real one where it can be started, and submitit's stand-in."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from slurm_server import reason_not_to_start, slurm
from test_ray import SLOW_HOST, check_equal, made_sweep

from flashback.errors import FlashbackError
from flashback.hosts.external import find_hosts
from flashback.studies import on_slurm
from flashback.studies.executors import find_executor
from flashback.studies.jobs import Job, RunContext, is_finished
from flashback.studies.on_slurm import FOLDER, JOBS, Slurm, SlurmDriver, SlurmTask, minutes
from flashback.studies.sweeps import Outcome, parse_sweep, plan, run_sweep
from flashback.training import Interrupted
from flashback.training.environment import source_digest
from flashback.training.trainer import Event, Observer

QUICK: dict[str, Any] = {"training.epochs": 1, "training.batch_size": 100, "benchmark.tasks": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a real Slurm."""
    pytest.importorskip("submitit")
    if reason := reason_not_to_start():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("slurm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        with slurm(folder):
            yield folder


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_slurm, "LOOK", 0.1)
    monkeypatch.setattr(on_slurm, "ASK", 0.5)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


@pytest.mark.slow
def test_a_preempted_job_changes_no_result(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep, disturbed, nodes = made_sweep(tmp_path, 4), list[str](), set[str]()
    monkeypatch.setenv("SECONDS_PER_STEP", "0.05")

    def watch(outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "placed":
                nodes.add(event["node"])
            if event["event"] == "epoch" and not disturbed:  # all four cores are taken: one job has to give way
                disturbed.append(name)
                subprocess.run(["sbatch", "--partition=high", "--output=/dev/null", "--wrap=sleep 1"], check=True)

        return observe

    options = {"partition": "low", "time": "0:30:00"}
    outcome = run_sweep(sweep, tmp_path / "slurm", on=Slurm(options), device="cpu", host_file=SLOW_HOST, watch=watch)
    assert (outcome.finished, outcome.failures) == (4, {})
    assert "preempted" in (server / "slurmctld.log").read_text()
    assert len(nodes) == 1
    assert not (tmp_path / "slurm" / FOLDER).exists()
    monkeypatch.delenv("SECONDS_PER_STEP")
    run_sweep(sweep, tmp_path / "local", device="cpu", host_file=SLOW_HOST)
    check_equal(tmp_path / "local", tmp_path / "slurm", 4)


def test_the_signal_of_slurm_saves_first_and_requeues_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a run trains, and also before it has begun."""
    context = RunContext(None, "cpu", None)
    sweep = parse_sweep(f"{{hosts: [finetune], arms: [host], settings: {QUICK}}}", "made")
    (job,) = plan(sweep, tmp_path, context)
    requeued: list[bool] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    after_task: list[str] = []

    def attempt_interrupted(*arguments: Any) -> None:
        def observe(event: Event) -> None:
            if event["event"] == "evaluation" and not after_task:
                after_task.append("signalled")
                signal.raise_signal(signal.SIGUSR2)

        real(*arguments[:-1], observe)

    real = on_slurm.attempt_on_node
    try:
        for attempt in (attempt_interrupted, lambda *_: signal.raise_signal(signal.SIGUSR2)):
            signal.signal(signal.SIGUSR2, lambda *_: requeued.append(any((job.folder / "checkpoint").glob("*.json"))))
            monkeypatch.setattr(on_slurm, "attempt_on_node", attempt)
            with pytest.raises(SystemExit):
                SlurmTask([job], source_digest())()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert requeued == [True, True]
    assert not is_finished(job)
    monkeypatch.setattr(on_slurm, "attempt_on_node", real)
    assert SlurmTask([job], source_digest())() == {job.name: None}
    assert is_finished(job)


@pytest.mark.slow
def test_a_driver_that_is_started_again_finds_its_jobs(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = made_sweep(tmp_path, 2)
    monkeypatch.setenv("SECONDS_PER_STEP", "0.05")

    def watch(outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "epoch":
                raise KeyboardInterrupt

        return observe

    with pytest.raises(Interrupted, match="stay in the queue"):
        run_sweep(sweep, tmp_path / "slurm", on=Slurm(), device="cpu", host_file=SLOW_HOST, watch=watch)
    (record,) = (tmp_path / "slurm" / FOLDER).glob(f"*/{JOBS}")
    first = json.loads(record.read_text())
    seen: list[Any] = []
    follow = SlurmDriver.follow
    monkeypatch.setattr(
        SlurmDriver, "follow", lambda self, job, runs: (seen.append(job.job_id), follow(self, job, runs))
    )
    outcome = run_sweep(sweep, tmp_path / "slurm", on=Slurm(), device="cpu", host_file=SLOW_HOST)
    assert (outcome.finished, sorted(seen)) == (2, sorted(first.values()))


def test_a_run_is_saved_and_requeued_on_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before the time limit of a job, with submitit's local jobs."""
    pytest.importorskip("submitit")
    sweep, signalled = made_sweep(tmp_path, 1), list[str]()
    monkeypatch.setenv("SECONDS_PER_STEP", "0.05")
    jobs: list[Any] = []
    follow = SlurmDriver.follow
    monkeypatch.setattr(SlurmDriver, "follow", lambda self, job, runs: (jobs.append(job), follow(self, job, runs)))

    def watch(outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "epoch" and not signalled:
                signalled.append(name)
                tasks = subprocess.run(["pgrep", "-P", jobs[0].job_id], capture_output=True, text=True).stdout.split()
                subprocess.run(["kill", "-USR2", *tasks], check=True)

        return observe

    run_slurm = {"on": Slurm(cluster="local"), "device": "cpu", "host_file": SLOW_HOST}
    monkeypatch.setattr(on_slurm.shutil, "rmtree", lambda *_, **__: None)  # keep what submitit has logged
    outcome = run_sweep(sweep, tmp_path / "slurm", watch=watch, **run_slurm)
    assert (outcome.finished, outcome.failures) == (1, {})
    (log,) = (tmp_path / "slurm" / FOLDER).glob("*/*_log.out")
    assert "Requeued job" in log.read_text()
    monkeypatch.delenv("SECONDS_PER_STEP")
    run_sweep(sweep, tmp_path / "local", device="cpu", host_file=SLOW_HOST)
    check_equal(tmp_path / "local", tmp_path / "slurm", 1)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_packed_runs_are_saved_though_slurm_signals_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    sweep = made_sweep(tmp_path, 2)
    settings = {**sweep.parts[0].settings, "training.epochs": 1000, "checkpoint.epochs": 0}
    sweep = replace(sweep, parts=(replace(sweep.parts[0], settings=settings),))
    find_hosts(SLOW_HOST)
    jobs = plan(sweep, tmp_path, RunContext(None, "cpu", SLOW_HOST))
    (tmp_path / "job").write_bytes(pickle.dumps(SlurmTask(jobs, source_digest())))
    monkeypatch.setenv("SECONDS_PER_STEP", "0.2")
    command = [sys.executable, "-c", f"import pickle; pickle.load(open({str(tmp_path / 'job')!r}, 'rb'))()"]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not all("epoch" in read_text(job.folder / "log.jsonl") for job in jobs):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        os.killpg(process.pid, number)
        assert process.wait(60) == 1
    assert [len(list((job.folder / "checkpoint").glob("*.json"))) for job in jobs] == [1, 1]


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_folder_that_is_not_shared_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that has left the queue without a trace; the others are cancelled."""
    pytest.importorskip("submitit")
    from submitit.core.utils import JobPaths

    cancelled: list[str] = []

    class Vanished:
        def __init__(self, identity: str) -> None:
            self.job_id, self.paths = identity, JobPaths(tmp_path, identity, 0)

        def cancel(self, check: bool) -> None:
            cancelled.append(self.job_id)

    monkeypatch.setattr(on_slurm, "PATIENCE", 0.0)
    queue = SlurmDriver(Slurm(), tmp_path, lambda name: lambda event: None)
    job = Job("host", 0, {}, tmp_path / "run", RunContext(None, "cpu", None), "one")
    queue.follow(Vanished("7"), [job])
    queue.follow(Vanished("8"), [job])
    monkeypatch.setattr(queue, "in_queue", lambda: {"8": "node1"})
    with pytest.raises(FlashbackError, match="disk that all nodes share"):
        queue.wait()
    assert "8" in cancelled


def test_jobs_that_slurm_refuses_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")

    def refuse(*_: Any) -> None:
        raise RuntimeError("invalid partition")

    monkeypatch.setattr(SlurmDriver, "submit", refuse)
    job = Job("host", 0, {}, tmp_path / "run", RunContext(None, "cpu", None), "one")
    with pytest.raises(FlashbackError, match=r"Slurm does not take the jobs \(invalid partition\); see --slurm"):
        Slurm(cluster="local")([job], lambda name: lambda event: None, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("queue", "kept"), [({}, False), ({"7_1": ""}, True), (None, True)])
def test_what_is_kept_of_jobs_goes_when_they_have_left_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: dict[str, str] | None, kept: bool
) -> None:
    """Also that of a driver which was stopped, of whose jobs some ended unwatched."""
    folder = tmp_path / "of-another-driver"
    folder.mkdir()
    (folder / JOBS).write_text(json.dumps({"one": "7_0", "two": "7_1"}))
    driver = SlurmDriver(Slurm(), tmp_path / "mine", lambda name: lambda event: None)
    driver.problems = {"one": None}
    monkeypatch.setattr(driver, "in_queue", lambda: queue)
    driver.tidy({folder})
    assert folder.exists() == kept


@pytest.mark.parametrize(
    ("limit", "expected"), [("240", 240), (30, 30), ("10:30", 11), ("4:00:00", 240), ("1-2", 1560), ("1-0:30:00", 1470)]
)
def test_time_limits_are_read_as_slurm_reads_them(limit: Any, expected: int) -> None:
    assert minutes(limit) == expected


def test_options_for_another_place_are_refused() -> None:
    with pytest.raises(FlashbackError, match="--slurm is for --on slurm"):
        find_executor("local", None, slurm={"partition": "gpu"})
    with pytest.raises(FlashbackError, match="a time limit"):
        minutes("soon")


def test_runs_that_take_a_part_of_a_gpu_share_a_job() -> None:
    assert [Slurm(gpus=gpus).runs_of_a_job() for gpus in (0, 0.25, 0.5, 0.6, 1, 2)] == [1, 4, 2, 1, 1, 1]
    assert Slurm(gpus=0.5).device("auto") == "cuda"
    assert all(Slurm({o: "1"}).device("auto") == "cuda" for o in ("gres", "gpus", "gpus-per-node", "gpus_per_task"))
    assert Slurm({"gpus-per-node": "2", "exclusive": "true"}).given_options() == {"gpus_per_node": 2, "exclusive": True}
    assert Slurm().device("auto") == "cpu"


def test_without_submitit_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(FlashbackError, match=r"install it with pip install 'flashback-cl\[slurm\]'"):
        find_executor("slurm", None)
