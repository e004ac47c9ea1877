"""Jobs in parallel processes: one that dies is named, and the others go on."""

from __future__ import annotations

import os
from typing import Any

import pytest
from process_work import tell_portion, tell_process

from flashback.studies import processes
from flashback.studies.processes import DIED, run_in_processes
from flashback.training.environment import PORTION
from flashback.training.trainer import Observer


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that start at once; those of a slow test import everything anew, as they do for users."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(processes, "START", "fork")


def processes_of(jobs: dict[str, str], count: int = 2, reuse: bool = False) -> tuple[dict[str, int], dict[str, Any]]:
    """In which process each job ran, and what went wrong with it."""
    seen: dict[str, int] = {}

    def watch(name: str) -> Observer:
        return lambda event: seen.update({name: event["pid"]}) if event["event"] == "process" else None

    return seen, run_in_processes(jobs, count, tell_process, watch, reuse=reuse)


@pytest.mark.parametrize("start", ["forked", pytest.param("anew", marks=pytest.mark.slow)])
def test_a_process_that_dies_is_named_and_the_others_go_on(start: str) -> None:
    seen, problems = processes_of({"a": "works", "b": "dies", "c": "works"})
    assert problems == {"a": None, "b": DIED, "c": None}
    assert len(set(seen.values())) == 3
    for pid in seen.values():
        with pytest.raises(ProcessLookupError):  # none is left behind
            os.kill(pid, 0)


def test_a_process_is_used_again_until_it_dies() -> None:
    """Each job after the first saves the seconds that importing torch takes."""
    seen, problems = processes_of({"a": "works", "b": "works", "c": "dies", "d": "works"}, count=1, reuse=True)
    assert problems == {"a": None, "b": None, "c": DIED, "d": None}
    assert seen["a"] == seen["b"] == seen["c"] != seen["d"]


def test_the_parent_repeats_a_warning_of_processes_once() -> None:
    with pytest.warns(UserWarning, match="a word of a process") as warned:
        processes_of({str(k): "warns" for k in range(3)})
    assert len(warned) == 1


def test_processes_have_the_environment_of_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they get their portion of a GPU."""
    monkeypatch.setenv(PORTION, "66.7")
    seen: list[Any] = []
    assert run_in_processes({"one": None}, 1, tell_portion, lambda name: seen.append) == {"one": None}
    assert seen[0] == {"event": "portion", "portion": "66.7"}
