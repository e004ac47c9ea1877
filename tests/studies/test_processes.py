"""Jobs in parallel processes: one that dies is named, and the others go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
from process_work import tell_portion, tell_process

from flashback.studies.processes import DIED, run_in_processes
from flashback.training.environment import PORTION
from flashback.training.trainer import Observer


def processes_of(jobs: dict[str, str], reuse: bool, kill_idle: bool = False) -> tuple[dict[str, int], dict[str, Any]]:
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

    problems = run_in_processes(jobs, 2, tell_process, watch, reuse=reuse)
    return seen, problems


def test_one_process_dies_and_the_other_takes_the_remaining_jobs() -> None:
    seen, problems = processes_of({"a": "works", "b": "dies", "c": "works", "d": "works"}, reuse=True)
    assert problems == {"a": None, "b": DIED, "c": None, "d": None}
    assert seen["b"] not in (seen["a"], seen["c"], seen["d"])
    for pid in seen.values():
        with pytest.raises(ProcessLookupError):  # none is left behind
            os.kill(pid, 0)


@pytest.mark.slow
@pytest.mark.parametrize(("reuse", "processes"), [(True, 2), (False, 5)])
def test_a_process_takes_one_job_or_many(reuse: bool, processes: int) -> None:
    seen, problems = processes_of({str(k): "works" for k in range(5)}, reuse)
    assert problems == dict.fromkeys("01234")
    assert len(set(seen.values())) == processes


@pytest.mark.slow
def test_a_process_that_dies_between_two_runs_is_replaced() -> None:
    seen, problems = processes_of({str(k): "works" for k in range(3)}, reuse=True, kill_idle=True)
    assert problems == dict.fromkeys("012")
    assert len(set(seen.values())) == 3


@pytest.mark.slow
def test_the_parent_repeats_a_warning_of_processes_once() -> None:
    with pytest.warns(UserWarning, match="a word of a process") as said:
        processes_of({str(k): "warns" for k in range(3)}, reuse=True)
    assert len(said) == 1


# ---------------------------------------------------------------- portions of a GPU


def portions_seen(jobs: int, count: int, sharing: bool = True) -> list[str | None]:
    seen: dict[str, str | None] = {}

    def watch(name: str) -> Observer:
        return lambda event: seen.update({name: event["portion"]}) if event["event"] == "portion" else None

    problems = run_in_processes({str(k): None for k in range(jobs)}, count, tell_portion, watch, sharing=sharing)
    assert set(problems.values()) == {None}
    return list(seen.values())


@pytest.mark.slow
@pytest.mark.parametrize(("jobs", "count", "each"), [(4, 4, "50"), (3, 8, "66.7"), (1, 8, "100")])
def test_processes_get_portions_of_the_device(
    monkeypatch: pytest.MonkeyPatch, jobs: int, count: int, each: str
) -> None:
    monkeypatch.delenv(PORTION, raising=False)
    assert portions_seen(jobs, count) == [each] * jobs
    assert PORTION not in os.environ


@pytest.mark.slow
def test_processes_that_share_nothing_get_no_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORTION, raising=False)
    assert portions_seen(2, 2, sharing=False) == [None, None]
