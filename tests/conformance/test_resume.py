"""Every host, with flashback where it can: interrupted anywhere and resumed, it ends as if it had never stopped."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance_runs import few_images, mostly_slow

from flashback.config import CheckpointConfig, RunConfig
from flashback.files import write_atomically
from flashback.hosts import HOSTS
from flashback.training import Checkpoints, Interrupted, Trainer, build_method
from flashback.training.trainer import Position, RunState
from helpers import quick_config, small_settings, tiny_benchmark

SETTINGS: dict[str, Any] = {"training__momentum": 0.9, "training__epochs": 2, "flashback__epochs": 1}


class Counting(Checkpoints):
    """Notes every moment it is asked at, and acts at some of them."""

    def __init__(self, folder: Path, options: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        super().__init__(folder, CheckpointConfig())
        self.chosen, self.moments = options, list[Position]()

    def due(self, position: Position) -> bool:
        self.moments.append(position)
        return len(self.moments) - 1 in self.chosen


class KeepingAll(Counting):
    """Keeps each chosen moment in a folder of its own, and lets the run go on."""

    def save(self, state: RunState) -> None:
        Checkpoints(self.folder / str(len(self.moments) - 1), CheckpointConfig(), self.log_size).write(state)


class StoppingAt(Counting):
    """Saves at the last of the chosen moments as if a signal had come."""

    def due(self, position: Position) -> bool:
        if super().due(position) and len(self.moments) - 1 == max(self.chosen):
            self.stopping.set()
        return len(self.moments) - 1 in self.chosen


class Killed(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


class KilledWhileWriting(Counting):
    """Dies while it writes its last checkpoint: nothing is tidied up, unlike after an error."""

    def write(self, state: RunState) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if len(self.moments) - 1 == max(self.chosen):
                patch.setattr("flashback.training.checkpoints.write_atomically", self.death)
                patch.setattr(self, "tidy", lambda: None)
            super().write(state)

    def __init__(self, folder: Path, options: set[int], death: Callable[[Path, Any], None]) -> None:
        super().__init__(folder, options)
        self.death = death


def torn(path: Path, content: bytes | str) -> None:
    """The middle of a file that is written aside."""
    raw = content.encode() if isinstance(content, str) else content
    path.with_name(f".{path.name}.part").write_bytes(raw[: len(raw) // 2])
    raise Killed


def in_the_tensors(path: Path, content: bytes | str) -> None:
    torn(path, content)


def between_the_files(path: Path, content: bytes | str) -> None:
    if path.suffix == ".json":
        raise Killed
    write_atomically(path, content)


def in_the_manifest(path: Path, content: bytes | str) -> None:
    between_the_files(path, content) if path.suffix != ".json" else torn(path, content)


def before_tidying(path: Path, content: bytes | str) -> None:
    write_atomically(path, content)
    if path.suffix == ".json":
        raise Killed


DEATHS = [in_the_tensors, between_the_files, in_the_manifest, before_tidying]


def config_of(name: str) -> RunConfig:
    memory = {"host__memory_size": 14} if hasattr(HOSTS[name].Settings(), "memory_size") else {}
    return quick_config(name, flashback=HOSTS[name].has_knowledge, **{**SETTINGS, **small_settings(name), **memory})


def start(name: str, checkpointer: Checkpoints, log: list[str], state: RunState | None = None) -> dict[str, Any]:
    """Train from the beginning or from a state, as a new process would. The log is cut as a folder cuts it."""
    benchmark = few_images()
    trainer = Trainer(
        build_method(config_of(name), benchmark, "cpu"),
        benchmark,
        [lambda event: log.append(json.dumps(event))],
        checkpointer,
    )
    checkpointer.log_size = lambda: len(log)
    if state is not None:
        del log[state.values["log_bytes"] :]
        trainer.resume(state)
    result = trainer.run()
    weights = {key: tensor.clone() for key, tensor in trainer.host.state_dict().items()}
    spent = [(entry["stage"], entry["steps"]) for entry in trainer.history.budget]
    return {"results": result.as_dict(), "weights": weights, "spent": spent, "log": log}


def load(folder: Path) -> RunState:
    state = Checkpoints(folder, CheckpointConfig()).load()
    assert state is not None
    return state


def assert_same(again: dict[str, Any], whole: dict[str, Any], where: object) -> None:
    for key in ("results", "spent", "log"):
        assert again[key] == whole[key], (where, key)
    assert again["weights"].keys() == whole["weights"].keys(), where
    for key, tensor in whole["weights"].items():
        assert torch.equal(again["weights"][key], tensor), (where, key)


@pytest.fixture(scope="module", params=mostly_slow(list(HOSTS), ["icarl", "foster", "si"]))
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    checkpointer = Counting(tmp_path_factory.mktemp("whole"))
    run = start(request.param, checkpointer, [])
    return {"name": request.param, "moments": checkpointer.moments, **run}


def chosen_moments(moments: list[Position]) -> set[int]:
    """Every transition of the second task (a stage begins or ends, an epoch ends, the task ends), and some steps."""
    transitions = [k for k, at in enumerate(moments) if at.step == 0 and (at.task == 1 or at == Position(2))]
    return {*transitions, *random.Random(11).sample(range(len(moments)), 5)}


def test_resumed_run_equals_the_run_never_stopped(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    name, log = uninterrupted["name"], list[str]()
    selection = chosen_moments(uninterrupted["moments"])
    checkpointer = KeepingAll(tmp_path, selection)
    assert_same(start(name, checkpointer, log), uninterrupted, "saving changes nothing")
    for moment in sorted(selection):
        folder = tmp_path / str(moment)
        again = start(name, Counting(folder), list(log), load(folder))
        assert_same(again, uninterrupted, uninterrupted["moments"][moment])


def test_a_resumed_run_can_be_stopped_again_and_again(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    name, log, state = uninterrupted["name"], list[str](), None
    for _ in range(2):
        with pytest.raises(Interrupted):
            start(name, StoppingAt(tmp_path, {len(uninterrupted["moments"]) // 3}), log, state)
        state = load(tmp_path)
    assert_same(start(name, Counting(tmp_path), log, state), uninterrupted, "stopped twice")


def assert_survives(uninterrupted: dict[str, Any], folder: Path, moments: set[int], death: Any) -> None:
    log = list[str]()
    with pytest.raises(Killed):
        start(uninterrupted["name"], KilledWhileWriting(folder, moments, death), log)
    left = {path.name for path in folder.iterdir()}
    state = load(folder)
    again = start(uninterrupted["name"], Counting(folder), log, state)
    assert_same(again, uninterrupted, (death.__name__, moments))
    assert left & {".000002.safetensors.part", "000002.safetensors"}, "the second checkpoint was under way"
    rest = {"000001", "000002"} if death is not before_tidying else {"000002", "000003"}
    assert {path.stem for path in folder.iterdir()} == rest, "nothing else is left"


def test_killed_while_a_checkpoint_is_written(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    """Each host at a moment and in a way of its own; the next test goes through all ways."""
    dice = random.Random(uninterrupted["name"])
    moments = set(dice.sample(range(len(uninterrupted["moments"])), 2))
    assert_survives(uninterrupted, tmp_path, moments, dice.choice(DEATHS))


@pytest.mark.parametrize("uninterrupted", ["icarl"], indirect=True)
@pytest.mark.parametrize("death", DEATHS)
def test_every_way_to_be_killed_while_writing(uninterrupted: dict[str, Any], tmp_path: Path, death: Any) -> None:
    assert_survives(uninterrupted, tmp_path, {7, 20}, death)


WITHOUT_PARTS = [name for name in HOSTS if not HOSTS[name].accumulates_structure and HOSTS[name].task_by_task]


@pytest.mark.parametrize("name", mostly_slow(WITHOUT_PARTS, ["icarl", "oewc", "der++", "pnc"]))
def test_a_host_without_parts_by_task_enters_the_first_and_the_last(name: str, monkeypatch: Any) -> None:
    benchmark, states = tiny_benchmark((2, 1, 2, 1, 1), per_class=4, test_per_class=2), dict[Position, RunState]()

    class Keeping(Counting):
        def save(self, state: RunState) -> None:
            tensors = {key: tensor.clone() for key, tensor in state.tensors.items()}
            states[self.moments[-1]] = RunState(tensors, copy.deepcopy(state.values))

    def trainer(checkpointer: Any = None) -> Trainer:
        return Trainer(build_method(config_of(name), benchmark, "cpu"), benchmark, checkpointer=checkpointer)

    whole = trainer(Keeping(Path("nowhere"), set(range(10_000))))
    results = whole.run().as_dict()
    for position, state in states.items():
        if position.task < 3 or position.step > 1:
            continue
        short, full = trainer(), trainer()
        short.resume(state)
        with monkeypatch.context() as patch:
            patch.setattr(HOSTS[name], "accumulates_structure", True)
            full.resume(state)
        assert describe(short) == describe(full), position
        assert short.run().as_dict() == results, position
        ends = short.host.state_dict(), whole.host.state_dict()
        assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[1]), position


def describe(trainer: Trainer) -> dict[str, Any]:
    """All that resuming may decide beside the tensors: modes, gradients, and plain attributes of host and plug-in."""
    described: dict[str, Any] = {}
    for owner in {trainer.host, trainer.method}:
        values = {key: value for key, value in vars(owner).items() if isinstance(value, int | str | None)}
        described[type(owner).__name__] = values
    described["gradients"] = {key: value.requires_grad for key, value in trainer.host.named_parameters()}
    described["modes"] = {key: module.training for key, module in trainer.host.named_modules()}
    return described


def test_whether_a_host_has_parts_by_task_is_not_inherited() -> None:
    class WithParts(HOSTS["icarl"]):  # type: ignore[misc]
        pass

    assert WithParts.accumulates_structure
