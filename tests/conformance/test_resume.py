"""Every host, with flashback where it can: interrupted anywhere and resumed, it ends as if it had never stopped."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import quick_config, tiny_benchmark

from flashback.config import CheckpointConfig, RunConfig
from flashback.hosts import HOSTS
from flashback.training import Checkpoints, Interrupted, Trainer, build_method
from flashback.training.trainer import Position, RunState

SETTINGS: dict[str, Any] = {"training__momentum": 0.9, "training__epochs": 2, "flashback__epochs": 1}


class StopAt(Checkpoints):
    """Stops a run at the n-th moment it is asked; notes all moments when n is None."""

    def __init__(self, folder: Path, moment: int | None) -> None:
        super().__init__(folder, CheckpointConfig())
        self.moment, self.moments = moment, []

    def due(self, position: Position) -> bool:
        self.moments.append(position)
        if len(self.moments) - 1 == self.moment:
            self.stopping.set()
            return True
        return False


def config_of(name: str) -> RunConfig:
    memory = {"host__memory_size": 14} if hasattr(HOSTS[name].Settings(), "memory_size") else {}
    return quick_config(name, flashback=HOSTS[name].has_knowledge, **SETTINGS, **memory)


def start(name: str, keeper: Checkpoints, log: list[str], state: RunState | None = None) -> dict[str, Any]:
    """Train from the beginning or from a state, as a new process would."""
    benchmark = tiny_benchmark()
    trainer = Trainer(
        build_method(config_of(name), benchmark), benchmark, [lambda event: log.append(json.dumps(event))], keeper
    )
    if state is not None:
        trainer.resume(state)
    result = trainer.run()
    weights = {key: tensor.clone() for key, tensor in trainer.host.state_dict().items()}
    spent = [(entry["stage"], entry["steps"]) for entry in trainer.history.budget]
    return {"results": result.as_dict(), "weights": weights, "spent": spent}


@pytest.fixture(scope="module", params=list(HOSTS))
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    keeper, log = StopAt(tmp_path_factory.mktemp("whole"), None), []
    run = start(request.param, keeper, log)
    return {"name": request.param, "moments": keeper.moments, "log": log, **run}


def chosen_moments(moments: list[Position]) -> list[int]:
    """Every transition (a stage begins or ends, an epoch ends) of the second task, and some random steps."""
    second = [k for k, position in enumerate(moments) if position.task == 1]
    transitions = [k for k in second if moments[k].step == 0]
    rng = random.Random(11)
    return sorted({*transitions, *rng.sample(range(len(moments)), min(5, len(moments)))})


def test_resumed_run_equals_the_run_never_stopped(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    name = uninterrupted["name"]
    for moment in chosen_moments(uninterrupted["moments"]):
        folder, log = tmp_path / str(moment), []
        keeper = StopAt(folder, moment)
        with pytest.raises(Interrupted):
            start(name, keeper, log)
        state = Checkpoints(folder, CheckpointConfig()).load()
        assert state is not None
        again = start(name, StopAt(folder, None), log, state)
        where = uninterrupted["moments"][moment]
        assert again["results"] == uninterrupted["results"], where
        assert again["spent"] == uninterrupted["spent"], where
        assert log == uninterrupted["log"], where
        for key, tensor in uninterrupted["weights"].items():
            assert torch.equal(again["weights"][key], tensor), (where, key)


def test_a_resumed_run_can_be_stopped_again_and_again(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    name, log, state = uninterrupted["name"], [], None
    stops = len(uninterrupted["moments"]) // 3
    for _ in range(2):
        with pytest.raises(Interrupted):
            start(name, StopAt(tmp_path, stops), log, state)
        state = Checkpoints(tmp_path, CheckpointConfig()).load()
    assert start(name, StopAt(tmp_path, None), log, state)["results"] == uninterrupted["results"]
