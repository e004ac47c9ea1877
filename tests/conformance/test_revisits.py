"""Known classes that come again: every host that can learns them, resumes exactly, and the others refuse first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from conformance_runs import assert_same_state, method_of, mostly_slow

import flashback as fb
from flashback.benchmarks import Benchmark, Images, Task
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS, Host
from flashback.training import Trainer, build_host
from flashback.training.trainer import RunState
from helpers import quick_config, revisiting_benchmark, small_settings, tiny_benchmark

ABLE = {
    *("er", "der", "der++", "agem", "replay", "icarl", "wa", "lwf-mc", "lwf", "finetune", "joint"),
    *("ewc", "oewc", "si", "mas", "afec", "caf", "pnc", "simplecil", "ranpac"),
}
SETTINGS: dict[str, dict[str, Any]] = {"lwf": {"host__columns": "seen"}}


def trainer_of(name: str, flashback: bool, benchmark: Benchmark, checkpointer: Any = None) -> Trainer:
    method = method_of(name, benchmark, flashback, **SETTINGS.get(name, {}))
    return Trainer(method, benchmark, checkpointer=checkpointer)


class KeepingSome:
    """Keeps the state in the middle of every stage of the later tasks, and between tasks."""

    def __init__(self) -> None:
        self.states: list[RunState] = []

    def due(self, position: Any) -> bool:
        return position.task > 0 and (position.step == 1 or not position.begun)

    def save(self, state: RunState) -> None:
        self.states.append(RunState({name: tensor.clone() for name, tensor in state.tensors.items()}, state.values))


@pytest.mark.parametrize("flashback", [False, True], ids=["alone", "with flashback"])
@pytest.mark.parametrize("name", mostly_slow(sorted(ABLE), ("icarl", "er", "oewc", "agem")))
def test_a_run_with_known_classes_resumes_exactly(name: str, flashback: bool) -> None:
    if flashback and not HOSTS[name].has_knowledge:
        pytest.skip("no knowledge")
    benchmark, checkpointer = revisiting_benchmark(), KeepingSome()
    whole = trainer_of(name, flashback, benchmark, checkpointer)
    results = whole.run().as_dict()
    assert checkpointer.states
    for state in checkpointer.states:
        again = trainer_of(name, flashback, benchmark)
        again.resume(state)
        assert again.run().as_dict() == results
        assert_same_state(again.host.state_dict(), whole.host.state_dict())


def negatives(task: Task) -> Task:
    return replace(task, train=Images(255 - task.train.x, task.train.y), test=Images(255 - task.test.x, task.test.y))


@pytest.mark.parametrize("name", mostly_slow(sorted(ABLE - {"joint"}), ("icarl", "wa", "lwf", "agem")))
def test_a_known_class_in_another_look_is_learned(name: str) -> None:
    known = tiny_benchmark((3, 0), per_class=16, test_per_class=8, revisited=[(), (0, 1, 2)])
    benchmark = replace(known, tasks=(known.tasks[0], negatives(known.tasks[1])))
    settings = {**SETTINGS.get(name, {}), "training__epochs": 12, "training__views": []}
    trainer = Trainer(method_of(name, benchmark, **settings), benchmark)
    trainer.run_task(benchmark.tasks[0])
    (before,) = own_accuracy(trainer.host, benchmark.tasks[1])
    trainer.run_task(benchmark.tasks[1])
    (after,) = own_accuracy(trainer.host, benchmark.tasks[1])
    assert after > max(before, 50), (before, after)


def own_accuracy(host: Host, task: Task) -> list[float]:
    return next(iter(fb.evaluate(host, [task]).values()))["class_incremental"]


@pytest.mark.parametrize("name", [name for name in HOSTS if name not in ABLE])
def test_the_others_refuse_before_training(name: str) -> None:
    config = quick_config(name, **small_settings(name))
    with pytest.raises(FlashbackError, match=f"{name} cannot learn known classes again, and task 2 has '1';"):
        build_host(config, revisiting_benchmark(), "cpu")


@pytest.mark.parametrize(("name", "key", "value"), [("lwf", "columns", "new"), ("ewc", "loss", "ce_current")])
def test_a_loss_over_the_new_columns_alone_cannot(name: str, key: str, value: str) -> None:
    config = quick_config(name, **{**small_settings(name), f"host__{key}": value})
    with pytest.raises(FlashbackError, match="cannot learn known classes again"):
        build_host(config, revisiting_benchmark(), "cpu")
