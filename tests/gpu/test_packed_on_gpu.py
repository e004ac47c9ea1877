"""Runs that share a GPU, each on its portion of it, do not change each other's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flashback.config import to_dict
from flashback.recipes import configure
from flashback.studies.jobs import Job, RunContext, run_packed
from flashback.training.environment import PORTION

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_equal_runs_beside_others_end_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTION, "25")
    settings = {"benchmark.tasks": 2, "training.epochs": 2, "host.net": "resnet18"}
    place = RunContext.of(None, "cuda", None)

    def job(name: str, seed: int) -> Job:
        config = configure("icarl", "split-fashion-mini", settings={**settings, "seed": seed})
        return Job("host", seed, to_dict(config), tmp_path / name, place, name)

    jobs = [job("first", 1), job("other", 2), job("second", 1)]
    assert set(run_packed(3, jobs, lambda name: lambda event: None).values()) == {None}
    first, other, second = ((job.folder / "results.json").read_text() for job in jobs)
    assert first == second != other
    assert json.loads((jobs[0].folder / "run.json").read_text())["must_match"]["portion"] == "25"
