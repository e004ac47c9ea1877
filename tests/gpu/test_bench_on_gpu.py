"""On a GPU the bench knows memory, captures and compilations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashback.speed import Choice, bench, setup

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "ON_GPU", replace(setup.ON_GPU, per_class=64, seconds=0.1))


def test_steps_of_every_mode_and_a_whole_run() -> None:
    choice = Choice(hosts=("icarl",), batches=(32,), sections=("steps", "runs"), flashback=False, epochs=2)
    found = bench(choice, device="cuda")
    assert found.failures == {}
    assert [speed.mode for speed in found.speeds] == ["eager", "captured", "fast"]
    assert all(speed.peak_bytes > 0 and speed.images_per_second > 0 for speed in found.speeds)
    (run,) = found.runs
    assert 0 < run.preparation_seconds < run.seconds
    assert all(task.peak_bytes > 0 for task in run.per_task)
    assert [task.compilations for task in run.per_task] == [0, 0, 0]  # too short to win a compilation back


def test_a_figure_leaves_no_memory_to_the_next() -> None:
    choice = Choice(hosts=("lwf-mc",), batches=(32,), modes=("eager",), sections=("steps",), flashback=False)
    (alone,) = bench(choice, device="cuda").speeds
    bench(replace(choice, modes=("captured",)), device="cuda")
    (after,) = bench(choice, device="cuda").speeds
    assert after.peak_bytes == pytest.approx(alone.peak_bytes, rel=0.02)


def test_runs_at_a_time_on_one_gpu() -> None:
    choice = Choice(sections=("packed",), packed=(2,), tasks=2, epochs=2, flashback=False)
    found = bench(choice, device="cuda")
    assert found.failures == {}
    assert found.packed[0].images_per_second > 0
