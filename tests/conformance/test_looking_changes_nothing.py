"""Every host: evaluation in the middle of a task, after any step, is right and leaves no trace."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from conformance_runs import (
    ALL,
    KNOWING,
    TRAINED,
    Watcher,
    assert_same_state,
    few_images,
    method_of,
    mostly_slow,
    outcome,
    run,
)
from torch import Tensor

from flashback import Host, evaluate
from flashback.conformance import Ending
from flashback.hosts.prediction import Classifier

LURE = 1e9


def lured(host: Host, seen: int) -> dict[str, Classifier]:
    """The classifiers of a host with the columns of unseen classes raised above all others."""

    def with_lure(classifier: Classifier) -> Classifier:
        def scores(x: Tensor) -> Tensor:
            part = classifier(x).clone()
            assert part.shape == (len(x), host.columns)
            assert torch.isfinite(part[:, :seen]).all()
            part[:, seen:] = LURE
            return part

        return scores

    return {name: with_lure(classifier) for name, classifier in type(host).classifiers(host).items()}


class Looking(Watcher):
    """Evaluates after every step of a run."""

    def __init__(self) -> None:
        self.looks = 0

    def after_step(self, position: Any) -> None:
        host, tasks = self.trainer.host, self.trainer.benchmark.tasks[: position.task + 1]
        plain = evaluate(host, tasks)
        host.__dict__["classifiers"] = lambda: lured(host, tasks[-1].seen.stop)
        assert evaluate(host, tasks) == plain, "an unseen class was predicted"
        del host.__dict__["classifiers"]
        for accuracy in plain.values():
            pairs = zip(accuracy["class_incremental"], accuracy["task_incremental"], strict=True)
            assert all(ci <= ti for ci, ti in pairs)
        self.looks += 1


@cache
def looked_at(name: str) -> tuple[Ending, int]:
    looking = Looking()
    return run(method_of(name, few_images((2, 2)), flashback=name in KNOWING), looking), looking.looks


@pytest.mark.parametrize(
    "name", mostly_slow(TRAINED, [name for name in TRAINED if not name.endswith(("aanets", "compress"))])
)
def test_evaluation_after_every_step_changes_nothing(name: str) -> None:
    alone = outcome(name, flashback=name in KNOWING, sizes=(2, 2))
    seen, looks = looked_at(name)
    assert looks == sum(entry["steps"] for entry in alone.budget) > 0
    assert seen.results == alone.results
    assert_same_state(seen.weights, alone.weights)


@pytest.mark.parametrize("name", ALL)
def test_knowing_the_task_never_hurts(name: str) -> None:
    for classifier in outcome(name, flashback=name in KNOWING).results["classifiers"].values():
        by_class, by_task = classifier["class_incremental"]["matrix"], classifier["task_incremental"]["matrix"]
        assert all(ci <= ti for a, b in zip(by_class, by_task, strict=True) for ci, ti in zip(a, b, strict=True))
