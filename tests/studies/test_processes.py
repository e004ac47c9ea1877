"""Jobs in parallel processes: one that dies is named, and the others go on."""

from __future__ import annotations

import os
from typing import Any

import pytest
from process_work import tell_portion, tell_process

from flashback.studies.processes import DIED, run_in_processes
from flashback.training.environment import PORTION
from flashback.training.trainer import Observer


def processes_of(jobs: dict[str, str]) -> tuple[dict[str, int], dict[str, Any]]:
    """In which process each job ran, and what went wrong with it."""
    seen: dict[str, int] = {}

    def watch(name: str) -> Observer:
        return lambda event: seen.update({name: event["pid"]}) if event["event"] == "process" else None

    return seen, run_in_processes(jobs, 2, tell_process, watch)


def test_a_process_that_dies_is_named_and_the_others_go_on() -> None:
    seen, problems = processes_of({"a": "works", "b": "dies", "c": "works"})
    assert problems == {"a": None, "b": DIED, "c": None}
    assert len(set(seen.values())) == 3
    for pid in seen.values():
        with pytest.raises(ProcessLookupError):  # none is left behind
            os.kill(pid, 0)


@pytest.mark.slow
def test_the_parent_repeats_a_warning_of_processes_once() -> None:
    with pytest.warns(UserWarning, match="a word of a process") as warned:
        processes_of({str(k): "warns" for k in range(3)})
    assert len(warned) == 1


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
