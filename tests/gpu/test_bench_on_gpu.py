"""On a GPU the bench knows memory and captured steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashback import bench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.fixture(autouse=True)
def small_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ON_GPU", replace(bench.ON_GPU, per_class=64, seconds=0.1))


def test_steps_of_every_mode() -> None:
    figures = bench.bench(["icarl"], batches=[32], flashback=False, device="cuda").figures
    assert [figure.mode for figure in figures] == ["eager", "captured", "fast"]
    assert all(f.peak_bytes > 0 and f.images_per_second > 0 and not f.problem for f in figures)


def test_a_figure_leaves_no_memory_to_the_next() -> None:
    def peak(mode: str) -> int:
        choice = {"batches": [32], "modes": [mode], "flashback": False}
        (figure,) = bench.bench(["lwf-mc"], device="cuda", **choice).figures  # type: ignore[arg-type]
        return figure.peak_bytes

    alone = peak("eager")
    peak("captured")
    assert peak("eager") == pytest.approx(alone, rel=0.02)
