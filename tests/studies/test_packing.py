"""How many runs share a GPU, and how they share it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from flashback.studies import jobs as jobs_module
from flashback.studies import packing
from flashback.studies.packing import jobs_at_a_time, portion, sharing_gpu
from flashback.training.environment import PORTION, rounding_of

GIB = 1 << 30


@pytest.mark.parametrize(
    ("jobs", "runs", "device", "cores", "free", "count"),
    [
        (None, 20, "cpu", 16, 0, 1),
        (3, 20, "cpu", 2, 0, 3),
        (3, 2, "cpu", 2, 0, 2),
        (None, 20, "cuda", 16, 139 * GIB, 8),
        (None, 6, "cuda", 16, 139 * GIB, 6),
        (None, 20, "cuda", 4, 139 * GIB, 4),
        (None, 20, "cuda", 16, 15 * GIB, 3),
        (None, 20, "cuda", 16, 1 * GIB, 1),
        (12, 20, "cuda", 4, 15 * GIB, 12),
    ],
)
def test_cores_and_memory_bound_the_runs_at_a_time(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, runs: int, device: str, cores: int, free: int, count: int
) -> None:
    monkeypatch.setattr(packing, "usable_cores", lambda: cores)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 140 * GIB))
    assert jobs_at_a_time(jobs, runs, device) == count


@pytest.mark.parametrize(("runs", "each"), [(1, "100"), (2, "100"), (3, "66.7"), (4, "50"), (8, "25")])
def test_portions_add_up_to_two_devices(monkeypatch: pytest.MonkeyPatch, runs: int, each: str) -> None:
    monkeypatch.delenv(PORTION, raising=False)
    assert portion(runs) == each
    monkeypatch.setenv(PORTION, "30")
    assert portion(runs) == "30"


def test_a_run_that_goes_on_has_the_portion_it_began_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(PORTION, "100")
    for content, share in [
        (None, "100"),
        ('{"must_match": {"portion": "25"}}', "25"),
        ('{"must_match": {"threads": 1}}', "25"),
        ("no json", "25"),
    ]:
        if content is not None:
            (tmp_path / "run.json").write_text(content)
        jobs_module.keep_portion(tmp_path)
        assert os.environ[PORTION] == share


def test_the_record_names_the_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTION, "25")
    assert rounding_of(torch.device("cuda"))["portion"] == "25"
    monkeypatch.delenv(PORTION)
    assert rounding_of(torch.device("cuda"))["portion"] == "100"
    assert "portion" not in rounding_of(torch.device("cpu"))


# ---------------------------------------------------------------- MPS


@pytest.fixture
def made_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_MPS_PIPE_DIRECTORY", PORTION):
        monkeypatch.delenv(name, raising=False)
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
    with sharing_gpu("cuda", 4):
        assert os.environ[PORTION] == "50"
        folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir()
    assert not {"CUDA_MPS_PIPE_DIRECTORY", PORTION} & os.environ.keys()
    commands = [line.split() for line in log.read_text().splitlines()]
    assert commands == [["get_server_list"], ["-d", folder], ["quit", folder]]


def test_an_mps_that_runs_already_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch, running=0)
    with sharing_gpu("cuda", 4):
        assert os.environ[PORTION] == "50"
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert log.read_text().split() == ["get_server_list"]


def test_variables_of_the_user_are_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    made_control(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "mine")
    with sharing_gpu("cuda", 4):
        assert os.environ["CUDA_MPS_LOG_DIRECTORY"] != "mine"
    assert os.environ["CUDA_MPS_LOG_DIRECTORY"] == "mine"


def test_mps_is_stopped_when_the_runs_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch)
    with pytest.raises(KeyboardInterrupt), sharing_gpu("cuda", 4):
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
    with sharing_gpu("cuda", 4):
        assert PORTION not in os.environ
        assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_mps_of_the_user_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made_cuda: None) -> None:
    log = made_control(tmp_path, monkeypatch)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "mine")
    with sharing_gpu("cuda", 4):
        assert os.environ[PORTION] == "50"
    assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == "mine"
    assert not log.exists()


def test_a_cpu_shares_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = made_control(tmp_path, monkeypatch)
    monkeypatch.delenv(PORTION, raising=False)
    with sharing_gpu("cpu", 4):
        assert PORTION not in os.environ
    assert not log.exists()
