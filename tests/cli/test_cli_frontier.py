"""The commands that set forms of flashback against the host alone: frontier and tune --forms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flashback.errors import FlashbackError
from flashback.results.frontier import read_frontier
from flashback.studies import jobs

Command = Callable[..., tuple[int, str, str]]


def test_a_frontier_is_traced_and_drawn(flashback: Command, tiny: list[str]) -> None:
    options = ("--weights", "0.5,2", "--seeds", "1", "--form", "training.average=0.5", "--out", "out", *tiny)
    code, out, _ = flashback("frontier", "lwf-mc", *options)
    assert code == 0
    assert Path("out/frontier.png").read_bytes().startswith(b"\x89PNG")
    assert Path("out/frontier.pdf").exists()
    (one,) = read_frontier(Path("out")).advantages("task_incremental")
    assert f"task-incremental: {one.sentence}" in out.replace("\n", " ")
    assert "training.average 0.5" in out
    assert "Records: out; see them with: flashback report out" in out
    code, out, _ = flashback("report", "out")
    assert code == 0
    assert "Stability against plasticity of lwf-mc on tiny" in Path("out/report.html").read_text()


def test_a_form_whose_runs_fail_is_named(flashback: Command, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer rests on the others, and the exit code says so."""
    train = jobs.run

    def fail(config: Any, **options: Any) -> Any:
        if config.flashback.enabled:
            raise FlashbackError("the disk is full")
        return train(config, **options)

    monkeypatch.setattr(jobs, "run", fail)
    options = ("--forms", "--form", "flashback.alpha=0.5", "--budget", "4", "--out", "tuned")
    code, out, err = flashback("tune", "lwf-mc", *options, *tiny[:-2], "--set", "training.epochs=2")
    assert (code, err.splitlines()[-1]) == (
        1,
        "failed: flashback.alpha 0.5, 2 epochs, seed 0 and 1 more: the disk is full",
    )
    assert (
        "Take the host alone, as its recipe has it (flashback.alpha 0.5 gains too little: not all runs finished" in out
    )


@pytest.mark.slow
def test_a_form_is_chosen_and_its_recipe_compared(flashback: Command, tiny: list[str]) -> None:
    options = ("--forms", "--form", "printed", "--form", "training.stability=2", "--budget", "12", "--out", "tuned")
    code, out, err = flashback("tune", "lwf-mc", *options, *tiny[:-2], "--set", "training.epochs=4")
    assert code == 0, err
    answer = json.loads(Path("tuned/trials.json").read_text())["answer"]
    assert answer in out
    assert "flashback compare lwf-mc --benchmark tiny.npz --recipe tuned/recipe.yaml --seed-list 2,3,4,5,6" in out
    compared = ("--benchmark", "tiny.npz", "--recipe", "tuned/recipe.yaml", "--seeds", "2", "--out", "compared")
    code, out, err = flashback("compare", "lwf-mc", *compared)
    assert code == 0, err
    assert "equal budget" in out
    assert flashback("report", "compared")[0] == 0
