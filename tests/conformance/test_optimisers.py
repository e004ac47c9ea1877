"""Every host with another optimiser than the one its recipes have."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conformance_runs import KNOWING, TRAINED, Watcher, few_images, method_of, mostly_slow, run

from flashback.conformance import check_host

LATER = {
    "afec": "empty network",
    "beef": "fusion",
    "bic": "bias correction",
    "foster": "compression",
    "lucir": "balanced fine-tuning",
    "lucir-aanets": "balanced fine-tuning",
    "pnc": "progress",
    "podnet": "balanced fine-tuning",
}


class Optimisers(Watcher):
    """The stages of a run, each with the kind of its optimiser."""

    def __init__(self) -> None:
        self.seen: dict[str, type] = {}

    def after_step(self, position: Any) -> None:
        step = self.trainer.step
        assert step is not None
        self.seen[step.stage.name] = type(step.optimiser)


@pytest.mark.parametrize("name", mostly_slow(TRAINED, ["der++", *LATER]))
def test_all_stages_of_a_host_have_the_optimiser_of_the_run(name: str) -> None:
    settings = {"training__optimiser": "adamw", "training__momentum": 0.0, "training__lr": 0.002}
    watcher = Optimisers()
    run(method_of(name, few_images(), flashback=name in KNOWING, **settings), watcher)
    assert set(watcher.seen.values()) == {torch.optim.AdamW}
    assert ("phase 2" in watcher.seen) == (name in KNOWING)
    assert LATER.get(name, "phase 2" if name in KNOWING else "learn") in watcher.seen


@pytest.mark.parametrize("name", mostly_slow(["icarl", "der++", "foster"], ["icarl"]))
def test_a_host_keeps_what_comparisons_rest_on_with_adam(name: str) -> None:
    """Both arms, stopped everywhere and continued; momentum, which the short runs have otherwise, is left out."""
    result = check_host(name, settings={"training.optimiser": "adam", "training.lr": 0.005}, benchmark=few_images())
    assert [check for check in result if not check.kept] == []
