"""How many runs share a GPU: by memory and measured gain, here on a made device whose speed is known."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from packing_work import tell_epochs, tell_portion, tell_process

from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.studies import jobs as jobs_module
from flashback.studies.packing import FixedConcurrency, MeasuredConcurrency, sharing_gpu
from flashback.studies.processes import DIED, run_in_processes
from flashback.training.environment import PORTION, share_of
from flashback.training.trainer import Observer

GIB = 1 << 30


class MadeGpu:
    """Runs epochs of runs side by side in made time.

    `joint_forward(n)` is the speed of n runs in all; `starting` the seconds until the first epoch of a run has ended.
    """

    def __init__(self, together: Any, memory: int = 140 * GIB, each: int = 2 * GIB, starting: float = 20.0) -> None:
        self.together, self.memory, self.each, self.starting = together, memory, each, starting
        self.now = 0.0
        self.running: dict[str, dict[str, Any]] = {}
        self.most_seen = 0

    def free(self) -> int:
        return self.memory - self.each * len(self.running)

    def clock(self) -> float:
        return self.now

    def go(self, pace: MeasuredConcurrency, runs: int, costs: Any = lambda k: 1.0, epochs: int = 400) -> None:
        """Start runs as the pace allows, until all have ended. An epoch is 100 steps."""
        waiting = [f"run {k}" for k in range(runs)]
        while waiting or self.running:
            while waiting and len(self.running) < pace.limit:
                name = waiting.pop(0)
                cost = costs(int(name.split()[1]))
                self.running[name] = {"cost": cost, "left": self.starting, "epoch": -1}
                pace.started(name)
            self.most_seen = max(self.most_seen, len(self.running))
            speeds = {name: self.speed(name) for name in self.running}
            name = min(self.running, key=lambda name: self.running[name]["left"] / speeds[name])
            passed = self.running[name]["left"] / speeds[name]
            self.now += passed
            for other, state in self.running.items():
                state["left"] -= passed * speeds[other]
            self.go_further(name, pace, epochs)

    def speed(self, name: str) -> float:
        """Loading and compiling needs no device; all that train share it, in their first epoch as later."""
        training = sum(state["epoch"] >= 0 for state in self.running.values())
        return self.joint_forward(training) / training if self.running[name]["epoch"] >= 0 else 1.0

    def go_further(self, name: str, pace: MeasuredConcurrency, epochs: int) -> None:
        state = self.running[name]
        state["epoch"] += 1
        task = state["epoch"] // 50
        state["left"] = state["cost"] * (2 if task else 1)  # later tasks cost more: only what is alike is compared
        if state["epoch"] > 0:
            steps = 100 * state["epoch"]
            pace.note(name, {"event": "epoch", "stage": "learn", "task": task, "steps": steps, "epoch": 0})
        if state["epoch"] == epochs:
            del self.running[name]
            pace.ended(name)


def pace_for(gpu: MadeGpu, most: int = 16) -> MeasuredConcurrency:
    return MeasuredConcurrency(most, gpu.free, gpu.clock)


def saturating(limit: float) -> Any:
    """n runs are as fast as n, up to a limit."""
    return lambda n: min(float(n), limit)


def test_runs_are_doubled_while_that_pays() -> None:
    gpu = MadeGpu(saturating(100.0))
    pace = pace_for(gpu)
    gpu.go(pace, 40)
    assert gpu.most_seen == 16 == pace.limit  # as many as the cores that drive them


@pytest.mark.parametrize("cost", [0.1, 1.0, 5.0, 20.0, 300.0])
def test_a_device_that_one_run_fills_gets_few(cost: float) -> None:
    gpu = MadeGpu(saturating(1.0))
    pace = pace_for(gpu)
    gpu.go(pace, 12, costs=lambda k: cost)
    assert gpu.most_seen <= 4  # two had to be tried, and four where the first had moved on meanwhile
    assert pace.settled


def test_runs_too_short_to_be_measured_are_doubled_by_number() -> None:
    gpu = MadeGpu(saturating(100.0), starting=20.0)
    gpu.go(pace_for(gpu), 60, costs=lambda k: 0.01, epochs=100)
    assert gpu.most_seen == 16


def test_memory_that_others_take_leaves_no_room() -> None:
    free = [40 * GIB]
    pace = MeasuredConcurrency(16, lambda: free[0], lambda: 0.0)
    pace.started("a")
    free[0] = 30 * GIB
    assert pace.room() == 2  # 10 each, and a quarter more
    free[0] = 60 * GIB  # somebody else gave some back: nothing is known about the run, but that it is not empty
    assert pace.room() == 48


def test_doubling_stops_where_the_gain_stops() -> None:
    gpu = MadeGpu(saturating(3.0))
    gpu.go(pace := pace_for(gpu), 30)
    assert gpu.most_seen == 8  # from 1 to 2 doubles, from 2 to 4 gives half as much again, from 4 to 8 nothing
    assert pace.settled


def test_runs_that_hinder_each_other_go_back() -> None:
    gpu = MadeGpu(lambda n: {1: 1.0, 2: 1.8}.get(n, 1.2))
    gpu.go(pace := pace_for(gpu), 30)
    assert pace.limit == 2


def test_where_nothing_can_be_compared_the_next_doubling_tells() -> None:
    """The second run trains only after the first one has left its first task, the only thing it did alone."""
    gpu = MadeGpu(saturating(2.0), starting=45.0)
    gpu.go(pace := pace_for(gpu), 12, costs=lambda k: 0.9)
    assert gpu.most_seen == 4
    assert pace.settled


def test_runs_alike_are_compared_with_each_other() -> None:
    """Here too the first run has left its first task, but the second does there what the first one did alone."""
    gpu = MadeGpu(saturating(1.0), starting=45.0)
    alike = {f"run {k}": "seeds of one method" for k in range(12)}
    pace = MeasuredConcurrency(16, gpu.free, gpu.clock, alike)
    gpu.go(pace, 12, costs=lambda k: 0.9)
    assert gpu.most_seen == 2
    assert pace.settled


def test_jobs_are_alike_that_differ_in_the_seed_alone(tmp_path: Path) -> None:
    def key(arm: str, seed: int, epochs: int = 6) -> str:
        config = {"seed": seed, "training": {"epochs": epochs}, "flashback": {"enabled": arm == "flashback"}}
        return jobs_module.Job(arm, seed, config, tmp_path, jobs_module.RunContext(None, "cuda", None)).cost_key

    assert key("host", 1) == key("host", 2)
    assert len({key("host", 1), key("flashback", 1), key("host", 1, epochs=7)}) == 3


def test_runs_of_different_cost_are_compared_with_themselves() -> None:
    gpu = MadeGpu(saturating(1.0))
    gpu.go(pace := pace_for(gpu), 12, costs=lambda k: 1.0 if k % 2 else 5.0)
    assert gpu.most_seen == 2
    assert pace.settled


def test_memory_bounds_the_number() -> None:
    gpu = MadeGpu(saturating(100.0), memory=10 * GIB, each=2 * GIB)
    gpu.go(pace_for(gpu), 20)
    assert gpu.most_seen == 4  # two use 4 GiB, and 6 free hold two more with room to grow


def test_a_given_number_stays() -> None:
    pace = FixedConcurrency(3)
    pace.note("a", {"event": "epoch"})
    pace.ended("a")
    assert pace.limit == 3


def test_processes_become_more_as_soon_as_the_pace_allows_it() -> None:
    """By a clock that goes on a second with every epoch, while the first run still has some to tell."""
    pace = MeasuredConcurrency(4, lambda: 64 * GIB, itertools.count().__next__)
    counts: list[int] = []

    def watch(name: str) -> Observer:
        return lambda event: counts.append(len(pace.running)) if event["event"] == "epoch" else None

    problems = run_in_processes({"first": 10, "second": 1}, pace, tell_epochs, watch)
    assert problems == dict.fromkeys(problems)
    assert counts[0] == 1
    assert max(counts) == 2


def processes_of(jobs: dict[str, str], lasting: bool, kill_idle: bool = False) -> tuple[dict[str, int], dict[str, Any]]:
    """In which process each job ran, and what went wrong with it."""
    seen: dict[str, int] = {}

    def watch(name: str) -> Observer:
        def see(event: Any) -> None:
            if event["event"] == "process":
                seen[name] = event["pid"]
            elif kill_idle:
                os.kill(seen[name], signal.SIGKILL)
                while any(process.pid == seen[name] for process in multiprocessing.active_children()):
                    time.sleep(0.01)

        return see

    problems = run_in_processes(jobs, FixedConcurrency(2), tell_process, watch, lasting=lasting)
    return seen, problems


@pytest.mark.parametrize(("lasting", "processes"), [(True, 2), (False, 5)])
def test_lasting_processes_take_one_run_after_another(lasting: bool, processes: int) -> None:
    seen, problems = processes_of({str(k): "works" for k in range(5)}, lasting)
    assert problems == dict.fromkeys("01234")
    assert len(set(seen.values())) == processes
    for pid in seen.values():
        with pytest.raises(ProcessLookupError):  # none is left behind
            os.kill(pid, 0)


def test_a_lasting_process_that_dies_leaves_the_other_runs_alone() -> None:
    seen, problems = processes_of({"a": "works", "b": "dies", "c": "works", "d": "works"}, lasting=True)
    assert problems == {"a": None, "b": DIED, "c": None, "d": None}
    assert seen["b"] not in (seen["a"], seen["c"], seen["d"])


def test_a_process_that_dies_between_two_runs_is_replaced() -> None:
    seen, problems = processes_of({str(k): "works" for k in range(3)}, lasting=True, kill_idle=True)
    assert problems == dict.fromkeys("012")
    assert len(set(seen.values())) == 3


def test_what_processes_warn_of_is_said_once_by_their_parent() -> None:
    with pytest.warns(UserWarning, match="a word of a process") as said:
        processes_of({str(k): "warns" for k in range(3)}, lasting=True)
    assert len(said) == 1


# ---------------------------------------------------------------- portions of the device


def portions_seen(jobs: int, pace: FixedConcurrency, sharing: bool = True) -> list[str | None]:
    seen: dict[str, str | None] = {}

    def watch(name: str) -> Observer:
        return lambda event: seen.update({name: event["portion"]}) if event["event"] == "portion" else None

    problems = run_in_processes({str(k): None for k in range(jobs)}, pace, tell_portion, watch, sharing=sharing)
    assert set(problems.values()) == {None}
    return list(seen.values())


@pytest.mark.parametrize(("jobs", "limit", "each"), [(4, 4, "50"), (3, 8, "66.7"), (2, 2, "100"), (1, 8, "100")])
def test_runs_at_a_time_get_portions_of_the_device(
    monkeypatch: pytest.MonkeyPatch, jobs: int, limit: int, each: str
) -> None:
    monkeypatch.delenv(PORTION, raising=False)
    assert portions_seen(jobs, FixedConcurrency(limit)) == [each] * jobs
    assert PORTION not in os.environ


def test_runs_that_share_nothing_get_no_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORTION, raising=False)
    assert portions_seen(2, FixedConcurrency(2), sharing=False) == [None, None]


def test_a_portion_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTION, "30")
    assert portions_seen(2, FixedConcurrency(8)) == ["30", "30"]


def test_a_run_that_goes_on_has_the_portion_it_began_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PORTION, "100")
    for content, kept in [
        (None, "100"),
        ('{"must_match": {"portion": "25"}}', "25"),
        ('{"must_match": {"threads": 1}}', "25"),
        ("no json", "25"),
    ]:
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        jobs_module.keep_portion(tmp_path)
        assert os.environ[PORTION] == kept


def test_the_record_names_the_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTION, "25")
    assert share_of(torch.device("cuda")) == {"portion": "25"}
    monkeypatch.delenv(PORTION)
    assert share_of(torch.device("cuda")) == {"portion": "100"}
    assert "portion" not in share_of(torch.device("cpu"))


# ---------------------------------------------------------------- MPS


@pytest.fixture
def made_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (8 * GIB, 8 * GIB))


def made_control(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0, running: int = 1) -> Path:
    """A program that notes what it is asked; `running` is its answer to whether MPS runs already, 0 for yes."""
    log = folder / "asked"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(
        f'#!/bin/sh\nwords=$(cat)\necho "$@ $words $CUDA_MPS_PIPE_DIRECTORY" >> {log}\n'
        f'test "$words" = get_server_list && exit {running}\nexit {code}\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return log


def test_mps_is_started_for_the_runs_and_stopped_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None
) -> None:
    log = made_control(tmp_path, monkeypatch)
    with sharing_gpu("cuda") as shared:
        assert shared
        folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    asked = [line.split() for line in log.read_text().splitlines()]
    assert asked == [["get_server_list"], ["-d", folder], ["quit", folder]]


def test_an_mps_that_runs_already_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch, running=0)
    with sharing_gpu("cuda") as shared:
        assert shared
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert log.read_text().split() == ["get_server_list"]


def test_variables_of_the_user_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    made_control(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "own")
    with sharing_gpu("cuda"):
        assert os.environ["CUDA_MPS_LOG_DIRECTORY"] != "own"
    assert os.environ["CUDA_MPS_LOG_DIRECTORY"] == "own"


def test_mps_is_stopped_when_the_runs_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt), sharing_gpu("cuda"):
        raise KeyboardInterrupt
    assert "quit" in log.read_text()


@pytest.mark.parametrize("there", [True, False])
def test_without_mps_runs_still_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None, there: bool
) -> None:
    if there:
        made_control(tmp_path, monkeypatch, code=1)
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    with sharing_gpu("cuda") as shared:
        assert not shared
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_mps_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "own")
    with sharing_gpu("cuda") as shared:
        assert shared
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "own"
    assert not log.exists()


def test_a_cpu_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made_control(tmp_path, monkeypatch)
    with sharing_gpu("cpu") as shared:
        assert not shared
    assert not log.exists()


# ---------------------------------------------------------------- which way jobs are run


@pytest.mark.parametrize(
    ("count", "device", "runs", "packed"),
    [
        (None, "cpu", 3, False),
        (None, "cuda", 3, True),
        (None, "cuda", 1, False),
        (1, "cuda", 3, False),
        (2, "cpu", 3, True),
    ],
)
def test_several_runs_on_a_gpu_are_packed_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int | None, device: str, runs: int, packed: bool
) -> None:
    ways = []
    place = jobs_module.RunContext(None, device, None)
    planned = [
        jobs_module.Job("host", seed, {"host": {"name": "icarl"}}, tmp_path / str(seed), place) for seed in range(runs)
    ]
    monkeypatch.setattr(jobs_module, "attempt", lambda job, observer: ways.append("alone"))
    monkeypatch.setattr(
        jobs_module, "run_packed", lambda jobs, count, watch: {j.name: ways.append("packed") for j in jobs}
    )
    assert jobs_module.carry_out(planned, count, lambda name: lambda event: None, tmp_path) == {}
    assert ways == ["packed" if packed else "alone"] * runs


def made_jobs(folder: Path, *names: str) -> list[jobs_module.Job]:
    place = jobs_module.RunContext(None, "cuda", None)
    config = {"host": {"name": "icarl"}}
    return [jobs_module.Job("host", 0, config, folder / name, place, name) for name in names]


def test_a_run_that_found_too_little_memory_beside_others_runs_again_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[list[str], int | None]] = []
    problems = {
        "hungry": jobs_module.LACK_OF_MEMORY,
        "killed": jobs_module.DIED,
        "hit": "AcceleratorError: CUDA error: an illegal memory access",
        "wrong": "the loss is not finite any more",
        "fine": None,
    }

    def run_packed(jobs: Any, count: int | None, watch: Any) -> dict[str, str | None]:
        asked.append(([job.name for job in jobs], count))
        return {job.name: problems[job.name] if len(asked) == 1 else None for job in jobs}

    monkeypatch.setattr(jobs_module, "run_packed", run_packed)
    left = jobs_module.carry_out(made_jobs(tmp_path, *problems), None, lambda name: lambda event: None, tmp_path)
    assert asked[1:] == [(["killed", "hit"], None), (["hungry"], 1)]
    assert left == {"wrong": problems["wrong"]}


def test_what_a_failure_left_goes_with_the_next_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (job,) = made_jobs(tmp_path, "one")
    monkeypatch.setattr(jobs_module, "config_from_dict", lambda config: None)
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in (jobs_module.attempt(job, lambda event: None) or "")
    assert (job.folder / "failure.txt").exists()
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: None)
    assert jobs_module.attempt(job, lambda event: None) is None
    assert not (job.folder / "failure.txt").exists()


def test_a_host_of_a_notebook_is_not_sent_to_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [replace(job, config={"host": {"name": "mine"}}) for job in made_jobs(tmp_path, "one", "two")]
    monkeypatch.setitem(HOSTS._entries, "mine", type("Mine", (HOSTS["icarl"],), {"__module__": "__main__"}))
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    jobs_module.check_reachable(jobs)  # a script is read again by every process
    monkeypatch.delattr(sys.modules["__main__"], "__file__")
    with pytest.raises(FlashbackError, match=r"^mine is made in this session alone, .* \(host_file\), or run one at"):
        jobs_module.carry_out(jobs, 2, lambda name: lambda event: None, tmp_path)


def test_a_failure_that_cannot_be_noted_is_still_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (job,) = made_jobs(tmp_path, "one")
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    job.folder.touch()  # no folder can be made there
    monkeypatch.setattr(jobs_module, "config_from_dict", lambda config: None)
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: 1 / 0)
    assert jobs_module.attempt(job, lambda event: None) == "ZeroDivisionError: division by zero"
