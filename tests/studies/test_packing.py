"""How many runs share a GPU: by memory and measured gain, here on a made device whose speed is known."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from flashback.training import jobs as jobs_module
from flashback.training.packing import FixedPace, MeasuredPace, sharing_gpu

GIB = 1 << 30


class MadeGpu:
    """Runs epochs of runs side by side in made time.

    `together(n)` is the speed of n runs in all; `starting` the seconds until the first epoch of a run has ended.
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

    def go(self, pace: MeasuredPace, runs: int, costs: Any = lambda k: 1.0, epochs: int = 400) -> None:
        """Start runs as the pace allows, until all have ended. An epoch is 100 steps."""
        waiting = [f"run {k}" for k in range(runs)]
        while waiting or self.running:
            while waiting and len(self.running) < pace.limit:
                name = waiting.pop(0)
                self.running[name] = {"cost": costs(int(name.split()[1])), "left": self.starting, "epoch": 0}
            self.most_seen = max(self.most_seen, len(self.running))
            name = min(self.running, key=lambda name: self.running[name]["left"] / self.speed(name))
            passed = self.running[name]["left"] / self.speed(name)
            speeds = {other: self.speed(other) for other in self.running}
            self.now += passed
            for other, state in self.running.items():
                state["left"] -= passed * speeds[other]
            self.end_epoch(name, pace, epochs)

    def speed(self, name: str) -> float:
        """A run that starts needs the device little and hinders nobody; those that train share it."""
        training = sum(state["epoch"] > 0 for state in self.running.values())
        return self.together(training) / training if self.running[name]["epoch"] else 1.0

    def end_epoch(self, name: str, pace: MeasuredPace, epochs: int) -> None:
        state = self.running[name]
        state["epoch"] += 1
        task = state["epoch"] // 50
        state["left"] = state["cost"] * (2 if task else 1)  # later tasks cost more: only what is alike is compared
        event = {"event": "epoch", "stage": "learn", "task": task, "steps": 100 * state["epoch"], "epoch": 0}
        pace.note(name, event)
        if state["epoch"] == epochs:
            del self.running[name]
            pace.ended(name)


def pace_for(gpu: MadeGpu, most: int = 16) -> MeasuredPace:
    return MeasuredPace(most, gpu.free, gpu.clock)


def saturating(limit: float) -> Any:
    """n runs are as fast as n, up to a limit."""
    return lambda n: min(float(n), limit)


def test_runs_are_doubled_while_that_pays() -> None:
    gpu = MadeGpu(saturating(100.0))
    pace = pace_for(gpu)
    gpu.go(pace, 40)
    assert gpu.most_seen == 16 == pace.limit  # as many as the cores that drive them


def test_a_device_that_one_run_fills_gets_no_third() -> None:
    gpu = MadeGpu(saturating(1.0))
    pace = pace_for(gpu)
    gpu.go(pace, 12)
    assert gpu.most_seen == 2  # two had to be tried
    assert pace.settled


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
    pace = FixedPace(3)
    pace.note("a", {"event": "epoch"})
    pace.ended("a")
    assert pace.limit == 3


# ---------------------------------------------------------------- MPS


@pytest.fixture
def made_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (8 * GIB, 8 * GIB))


def made_control(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    """A program that notes what it is asked."""
    log = folder / "asked"
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f'#!/bin/sh\necho "$@ $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}\nexit {code}\n')
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
    assert [line.split() for line in log.read_text().splitlines()] == [["-d", folder], ["quit", folder]]


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
    place = jobs_module.Place(None, device, 1, None)
    planned = [jobs_module.Job("host", seed, {}, tmp_path / str(seed), place) for seed in range(runs)]
    monkeypatch.setattr(jobs_module, "attempt", lambda job, observer: ways.append("alone"))
    monkeypatch.setattr(
        jobs_module, "run_packed", lambda jobs, count, watch: {j.name: ways.append("packed") for j in jobs}
    )
    assert jobs_module.carry_out(planned, count, lambda name: lambda event: None) == {}
    assert ways == ["packed" if packed else "alone"] * runs
