"""How jobs are run: alone or packed, again if their process was killed, in an order that shares first tasks."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashback.studies import jobs as jobs_module


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (80 << 30, 80 << 30))


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
    context = jobs_module.RunContext(None, device, None)
    planned = [
        jobs_module.Job("host", seed, {"host": {"name": "icarl"}}, tmp_path / str(seed), context)
        for seed in range(runs)
    ]
    monkeypatch.setattr(jobs_module, "attempt", lambda job, observer: ways.append("alone"))
    monkeypatch.setattr(
        jobs_module, "run_packed", lambda count, jobs, watch: {j.name: ways.append("packed") for j in jobs}
    )
    assert jobs_module.run_jobs(planned, jobs_module.Local(count), lambda name: lambda event: None, tmp_path) == {}
    assert ways == ["packed" if packed else "alone"] * runs


def made_jobs(folder: Path, *names: str) -> list[jobs_module.Job]:
    context = jobs_module.RunContext(None, "cuda", None)
    config = {"host": {"name": "icarl"}}
    return [jobs_module.Job("host", 0, config, folder / name, context, name) for name in names]


def test_a_run_that_found_too_little_memory_beside_others_runs_again_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    requests: list[tuple[list[str], int]] = []
    problems = {
        "hungry": jobs_module.LACK_OF_MEMORY,
        "killed": jobs_module.DIED,
        "hit": "AcceleratorError: CUDA error: an illegal memory access",
        "wrong": "the loss is not finite any more",
        "fine": None,
    }

    def run_packed(count: int, jobs: Any, watch: Any) -> dict[str, str | None]:
        requests.append(([job.name for job in jobs], count))
        return {job.name: problems[job.name] if len(requests) == 1 else None for job in jobs}

    monkeypatch.setattr(jobs_module, "run_packed", run_packed)
    left = jobs_module.run_jobs(
        made_jobs(tmp_path, *problems), jobs_module.Local(4), lambda name: lambda event: None, tmp_path
    )
    assert requests[1:] == [(["killed", "hit"], 4), (["hungry"], 1)]
    assert left == {"wrong": problems["wrong"]}


@pytest.mark.parametrize("packed", [False, True])
def test_a_run_that_another_process_trains_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, packed: bool
) -> None:
    """The other runs go on meanwhile; the run is looked at again when its folder is free."""
    waiting_left, attempts = {"a": 3, "c": 1}, list[str]()

    def attempt(job: jobs_module.Job, observer: Any = None) -> str | None:
        attempts.append(job.name)
        return jobs_module.ELSEWHERE if job.name in waiting_left else None

    def is_held(folder: Path) -> bool:
        waiting_left[folder.name] -= 1
        if waiting_left[folder.name] == 0:
            del waiting_left[folder.name]
        return folder.name in waiting_left

    monkeypatch.setattr(jobs_module, "attempt", attempt)
    monkeypatch.setattr(jobs_module, "run_packed", lambda count, jobs, watch: {job.name: attempt(job) for job in jobs})
    monkeypatch.setattr(jobs_module, "is_held", is_held)
    monkeypatch.setattr(jobs_module, "POLL", 0.0)
    jobs = made_jobs(tmp_path, "a", "b", "c")
    executor = jobs_module.Local(2 if packed else 1)
    with pytest.warns(UserWarning, match=f"another process is training in {tmp_path / 'a'}; waiting for it"):
        assert jobs_module.run_jobs(jobs, executor, lambda name: lambda event: None, tmp_path) == {}
    assert attempts == ["a", "b", "c", "c", "a"]


def test_what_a_failure_left_goes_with_the_next_success(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (job,) = made_jobs(tmp_path, "one")
    monkeypatch.setattr(jobs_module, "config_from_dict", lambda config: None)
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: 1 / 0)
    assert "ZeroDivisionError" in (jobs_module.attempt(job, lambda event: None) or "")
    assert (job.folder / "failure.txt").exists()
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: None)
    assert jobs_module.attempt(job, lambda event: None) is None
    assert not (job.folder / "failure.txt").exists()


def test_a_finished_run_is_no_failure_if_its_folder_cannot_be_tidied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    (job,) = made_jobs(tmp_path, "one")
    monkeypatch.setattr(jobs_module, "config_from_dict", lambda config: None)
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: None)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert jobs_module.attempt(job, lambda event: None) is None


def test_a_failure_that_cannot_be_noted_is_still_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (job,) = made_jobs(tmp_path, "one")
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    job.folder.touch()  # no folder can be made there
    monkeypatch.setattr(jobs_module, "config_from_dict", lambda config: None)
    monkeypatch.setattr(jobs_module, "run", lambda *_, **__: 1 / 0)
    assert jobs_module.attempt(job, lambda event: None) == "ZeroDivisionError: division by zero"


# ---------------------------------------------------------------- first tasks


def jobs_alike(*keys: int) -> list[jobs_module.Job]:
    context = jobs_module.RunContext(None, "cpu", None)
    return [
        jobs_module.Job(
            "host", index, {"host": {"name": key}, "flashback": {"alpha": index}}, Path(str(index)), context
        )
        for index, key in enumerate(keys)
    ]


def test_a_run_without_another_like_it_leaves_nothing() -> None:
    shared = jobs_module.share_first_tasks(jobs_alike(1, 2, 1, 3), Path("shared"), 1)
    assert [job.first_tasks for job in shared] == [Path("shared"), None, Path("shared"), None]


@pytest.mark.parametrize(
    ("keys", "count", "expected"),
    [
        ((1, 1, 2, 2, 3, 3), 1, [1, 1, 2, 2, 3, 3]),
        ((1, 1, 2, 2, 3, 3), 2, [1, 2, 3, 1, 2, 3]),
        ((1, 1, 1), 2, [1, 1, 1]),
    ],
)
def test_runs_that_share_do_not_begin_at_once_where_others_can(
    keys: tuple[int, ...], count: int, expected: list[int]
) -> None:
    ordered = jobs_module.share_first_tasks(jobs_alike(*keys), Path("shared"), count)
    assert [job.config["host"]["name"] for job in ordered] == expected


@given(st.lists(st.integers(0, 4), max_size=12), st.integers(1, 5))
def test_ordering_loses_no_run(keys: list[int], count: int) -> None:
    jobs = jobs_alike(*keys)
    ordered = jobs_module.share_first_tasks(jobs, Path("shared"), count)
    assert sorted(job.seed for job in ordered) == [job.seed for job in jobs]
