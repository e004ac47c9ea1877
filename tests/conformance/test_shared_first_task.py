"""Runs that differ in flashback alone share their first task, and end as if each had trained its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conformance_runs import KNOWING, mostly_slow

from flashback.config import CheckpointConfig, RunConfig
from flashback.training import Checkpoints, Interrupted, environment, run, running
from flashback.training.trainer import Event
from helpers import quick_config, small_settings, tiny_benchmark

CLOCK = ("time", "seconds", "training_seconds")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "open_benchmark", lambda config, data: tiny_benchmark(per_class=6, test_per_class=3))


def config_of(name: str, flashback: bool, **changes: Any) -> RunConfig:
    never = {"checkpoint__minutes": 1e6}  # no time that passes decides what is saved
    settings = {"training__momentum": 0.9, **never, **small_settings(name), **changes}
    return quick_config(name, flashback=flashback, **settings)


def train(config: RunConfig, out: Path, shared: Path | None = None, **options: Any) -> None:
    run(config, out=out, device="cpu", first_tasks=shared, **options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = Checkpoints(folder / "checkpoint", CheckpointConfig()).load()
    assert state is not None
    return state.tensors


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in CLOCK}


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [timeless(json.loads(line)) for line in (folder / "log.jsonl").read_text().splitlines()]


def facts_of(folder: Path) -> dict[str, Any]:
    return timeless(json.loads((folder / "run.json").read_text()))


def took_over(folder: Path) -> bool:
    return facts_of(folder)["took_over_first_task"]


def assert_same_run(one: Path, other: Path) -> None:
    assert (one / "results.json").read_text() == (other / "results.json").read_text()
    assert log_of(one) == log_of(other)
    facts = [facts_of(folder) for folder in (one, other)]
    for known in facts:
        del known["took_over_first_task"]
    assert facts[0] == facts[1]
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


@pytest.mark.parametrize("name", mostly_slow(KNOWING))
def test_flashback_goes_on_from_the_first_task_of_its_host(name: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(config_of(name, flashback=False), tmp_path / "host", shared)
    train(config_of(name, flashback=True), tmp_path / "flashback", shared)
    train(config_of(name, flashback=True), tmp_path / "alone")
    assert [took_over(tmp_path / run) for run in ("host", "flashback", "alone")] == [False, True, False]
    assert_same_run(tmp_path / "flashback", tmp_path / "alone")


def test_a_host_goes_on_from_the_first_task_of_flashback(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(config_of("icarl", flashback=True), tmp_path / "flashback", shared)
    train(config_of("icarl", flashback=False), tmp_path / "host", shared)
    train(config_of("icarl", flashback=False), tmp_path / "alone")
    assert took_over(tmp_path / "host")
    assert_same_run(tmp_path / "host", tmp_path / "alone")


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"training__lr": 0.1}, {"training__schedule": "none"}, {"host__memory_size": 14}]
)
def test_another_first_task_is_not_taken(changes: dict[str, Any], tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(config_of("icarl", flashback=False), tmp_path / "host", shared)
    train(config_of("icarl", flashback=True, **changes), tmp_path / "other", shared)
    assert not took_over(tmp_path / "other")
    assert len(list(shared.iterdir())) == 2


@pytest.mark.parametrize("what", ["environment", "data"])
def test_other_surroundings_or_data_share_nothing(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    train(config_of("lwf-mc", flashback=False), tmp_path / "host", shared)
    if what == "data":
        other = tiny_benchmark(per_class=11)
        object.__setattr__(other, "checksum", "other")
        monkeypatch.setattr(running, "open_benchmark", lambda config, data: other)
    else:
        monkeypatch.setattr(environment, "versions", lambda: {"torch": "another"})
    train(config_of("lwf-mc", flashback=True), tmp_path / "flashback", shared)
    assert not took_over(tmp_path / "flashback")


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize("pattern", ["*.safetensors", "*.json", "log.jsonl"])
@pytest.mark.parametrize("harm", [damage, Path.unlink])
@pytest.mark.filterwarnings("ignore:.*skipped", "ignore:.*starts again")
def test_a_first_task_that_is_not_whole_is_trained(pattern: str, harm: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    train(config_of("lwf-mc", flashback=False), tmp_path / "host", shared)
    for file in shared.glob(f"*/{pattern}"):
        harm(file)
    train(config_of("lwf-mc", flashback=True), tmp_path / "flashback", shared)
    train(config_of("lwf-mc", flashback=True), tmp_path / "alone")
    assert_same_run(tmp_path / "flashback", tmp_path / "alone")


def test_without_room_for_it_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file where a folder should be")
    train(config_of("lwf-mc", flashback=False), tmp_path / "host", tmp_path / "shared")
    assert (tmp_path / "host" / "results.json").exists()


def test_observers_are_told_of_the_first_task_they_have_not_seen(tmp_path: Path) -> None:
    shared, seen = tmp_path / "shared", list[Event]()
    train(config_of("icarl", flashback=False), tmp_path / "host", shared)
    train(config_of("icarl", flashback=True), tmp_path / "flashback", shared, observers=[seen.append])
    earlier = [event for event in seen if "earlier" in event]
    assert earlier
    assert {event["task"] for event in earlier} == {0}
    without_marks = [timeless({key: value for key, value in event.items() if key != "earlier"}) for event in seen]
    assert without_marks == log_of(tmp_path / "flashback")


def test_a_run_that_took_its_first_task_over_resumes_and_still_says_so(tmp_path: Path) -> None:
    shared, config = tmp_path / "shared", config_of("icarl", flashback=True, checkpoint__epochs=1)
    train(config_of("icarl", flashback=False), tmp_path / "host", shared)

    def stop(event: Event) -> None:
        if event["event"] == "evaluation" and event["task"] == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(config, tmp_path / "flashback", shared, observers=[stop])
    assert took_over(tmp_path / "flashback")
    train(config, tmp_path / "flashback")  # from its own checkpoint
    train(config, tmp_path / "alone")
    assert took_over(tmp_path / "flashback")
    assert_same_run(tmp_path / "flashback", tmp_path / "alone")


@pytest.mark.filterwarnings("ignore:.*other environment")
def test_a_run_that_went_on_in_other_surroundings_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not what those environment alone would have made of its settings."""
    shared, config = tmp_path / "shared", config_of("lwf-mc", flashback=False, checkpoint__epochs=1)

    def stop(event: Event) -> None:
        if event["event"] == "evaluation":
            raise Interrupted

    with pytest.raises(Interrupted):
        train(config, tmp_path / "host", observers=[stop])
    monkeypatch.setattr(environment, "versions", lambda: {"torch": "another"})
    train(config, tmp_path / "host", shared)
    assert facts_of(tmp_path / "host")["changed_on_resume"]
    assert not shared.exists()


def test_no_checkpoint_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = Checkpoints.write
    monkeypatch.setattr(Checkpoints, "write", lambda self, state: (written.append(self.folder), write(self, state))[1])
    train(config_of("lwf-mc", flashback=False), tmp_path / "host", tmp_path / "shared")
    assert [folder.parent.name for folder in written] == ["shared", "host"]  # after the first task, and at the end


def test_where_there_is_only_one_task_nothing_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "open_benchmark", lambda config, data: tiny_benchmark((3,)))
    train(config_of("lwf-mc", flashback=False), tmp_path / "host", tmp_path / "shared")
    assert not (tmp_path / "shared").exists()
