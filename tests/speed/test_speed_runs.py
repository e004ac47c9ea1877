"""Whole runs: what they count adds up, alone and at a time; a cache of compiled code is new where it should be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import BrokenBarrierError
from typing import Any

import pytest
import torch

from flashback.errors import FlashbackError
from flashback.speed import Choice, bench, runs, setup
from flashback.speed.figures import PackedCase, RunCase
from flashback.speed.runs import Account, Job, measure_packed, measure_run, rate_together, whole_run
from flashback.speed.setup import Setup, made_benchmark

SIZE = replace(setup.ON_CPU, per_class=50, seconds=0.01)
HERE = Setup(SIZE, torch.device("cpu"), "fp32")
ROUNDED = partial(pytest.approx, rel=0.01, abs=2e-3)  # seconds are told to a millisecond, rates to a tenth
CASE = RunCase("icarl", True, "eager", 16, tasks=3, epochs=3, cache="own")


def images_of(case: RunCase) -> int:
    """Of every task, and with it those of earlier ones that fit into the memory."""
    memory = setup.EXEMPLARS * SIZE.classes * case.tasks
    own = [SIZE.images + min(memory, SIZE.images * task) for task in range(case.tasks)]
    return case.epochs * sum(own)


@pytest.mark.parametrize("flashback", [False, True])
def test_what_a_whole_run_counts_adds_up(flashback: bool) -> None:
    case = replace(CASE, flashback=flashback)
    run = whole_run(Job(HERE, case)).run
    assert run.label == case.label
    assert run.images == images_of(case) == sum(task.images for task in run.per_task)
    assert len(run.per_task) == case.tasks
    assert 0 < run.training_seconds < run.seconds
    assert sum(task.seconds for task in run.per_task) <= run.seconds + 0.01
    assert sum(task.training_seconds for task in run.per_task) == pytest.approx(run.training_seconds, abs=0.01)
    assert all(task.training_seconds <= task.seconds for task in run.per_task)
    assert run.images / run.images_per_second == ROUNDED(run.seconds)
    assert (1 - run.share_outside_steps) * run.seconds == ROUNDED(run.training_seconds)
    assert run.preparation_seconds == 0  # nothing is captured on a CPU
    assert run.knowledge_bytes.keys() == ({"stable", "plastic"} if flashback else {"stable"})


def test_progress_rises_from_the_start_to_the_end() -> None:
    account = whole_run(Job(HERE, replace(CASE, flashback=False)))
    moments, counts = zip(*account.progress, strict=True)
    assert len(moments) == CASE.tasks * CASE.epochs + 2
    assert list(moments) == sorted(moments)
    assert (counts[0], counts[-1]) == (0, account.run.images)
    assert list(counts) == sorted(counts)


def test_the_made_tasks_have_the_size_asked_for() -> None:
    made = made_benchmark(SIZE, 4)
    assert [len(task.train) for task in made.tasks] == [SIZE.images] * 4
    assert list(made.sizes) == [SIZE.classes] * 4


def test_runs_at_a_time_in_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "ON_CPU", SIZE)
    choice = Choice(sections=("packed",), packed=(2,), batches=(16,), tasks=2, epochs=3, flashback=False)
    (packed,) = bench(choice, device="cpu", out=tmp_path).packed
    assert (packed.count, packed.mps) == (2, False)
    assert packed.images == 2 * images_of(replace(CASE, tasks=2))
    assert packed.images / packed.images_per_second == ROUNDED(packed.seconds)
    assert packed.together_per_second is None or packed.together_per_second > 0
    monkeypatch.setattr(runs, "carry_out", lambda jobs: pytest.fail("it is there already"))
    assert bench(choice, device="cpu", out=tmp_path).packed == [packed]


def test_together_counts_only_while_all_train() -> None:
    early = [(0.0, 0), (2.0, 10), (6.0, 50), (7.0, 50)]
    late = [(0.0, 0), (4.0, 10), (8.0, 90), (9.0, 90)]
    # From 4 to 6 s: 20 of the first run's images, 40 of the second's.
    assert rate_together([early, late]) == pytest.approx((20 + 40) / 2)
    after = [(10.0, 0), (11.0, 5), (12.0, 10), (12.5, 10)]
    assert rate_together([early, after]) is None


# ---------------------------------------------------------------- without processes


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Jobs are done here one after the other, and kept."""
    done: list[Job] = []

    def here(jobs: Sequence[Job]) -> list[Account]:
        done.extend(jobs)
        assert all(job.cache is None or os.listdir(job.cache) == ["left"] * (job.case.cache == "warm") for job in jobs)
        for job in jobs:
            if job.cache is not None:
                (Path(job.cache) / "left").touch()
        return [whole_run(replace(job, start=None)) for job in jobs]

    monkeypatch.setattr(runs, "carry_out", here)
    return done


def test_a_cold_run_has_a_new_cache_and_the_warm_one_after_it_the_same(jobs: list[Job]) -> None:
    case = replace(CASE, tasks=1, epochs=2, flashback=False, cache="cold")
    found = measure_run(HERE, case)
    assert [run.cache for run in found] == ["cold", "warm"]
    assert jobs[0].cache == jobs[1].cache is not None
    assert not Path(jobs[0].cache).exists()
    jobs.clear()
    assert [run.cache for run in measure_run(HERE, replace(case, cache="own"))] == ["own"]
    assert jobs[0].cache is None


def test_cold_runs_are_measured_again_unless_both_are_there(
    tmp_path: Path, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "ON_CPU", SIZE)
    choice = Choice(sections=("runs",), tasks=1, epochs=2, flashback=False)
    for cold, count in ((False, 1), (True, 3), (True, 3), (False, 3)):
        found = bench(replace(choice, cold=cold), device="cpu", out=tmp_path)
        assert len(found.runs) == len(jobs) == count
    assert [run.cache for run in found.runs] == ["own", "cold", "warm"]


def test_runs_of_another_length_stand_beside_each_other(jobs: list[Job], tmp_path: Path) -> None:
    for epochs in (2, 3, 2):
        choice = Choice(sections=("runs",), batches=(16,), tasks=1, epochs=epochs, flashback=False)
        found = bench(choice, device="cpu", out=tmp_path)
    assert [run.epochs for run in found.runs] == [2, 3]


class TestFailures:
    def test_the_reason_of_a_run_that_fails_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end_with({"0": "out of memory"}, monkeypatch)
        with pytest.raises(FlashbackError, match="out of memory"):
            measure_run(HERE, CASE)

    def test_not_that_of_those_who_waited_for_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end_with({"0": runs.NEVER_STARTED, "1": "out of memory"}, monkeypatch)
        with pytest.raises(FlashbackError, match="out of memory"):
            measure_packed(HERE, PackedCase(**vars(CASE), count=2))

    def test_one_that_fails_frees_those_who_wait(self) -> None:
        class Start:
            aborted = False

            def abort(self) -> None:
                self.aborted = True

        start: Any = Start()
        job = Job(HERE, replace(CASE, host="nobody"), start=start)
        assert runs.serve(job, lambda event: pytest.fail("there is nothing to tell")) is not None
        assert start.aborted

    def test_one_that_waited_in_vain_says_so(self) -> None:
        class Start:
            def wait(self, seconds: float) -> None:
                raise BrokenBarrierError

        start: Any = Start()
        job = Job(HERE, replace(CASE, tasks=1), start=start)
        assert runs.serve(job, lambda event: pytest.fail("there is nothing to tell")) == runs.NEVER_STARTED

    def end_with(self, problems: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runs, "run_in_processes", lambda *_: problems)
