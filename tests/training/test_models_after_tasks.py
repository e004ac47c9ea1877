"""The model after every task: kept where it is asked for, loaded as it was then, and not missed elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import flashback as fb
from flashback.conformance import short_settings
from flashback.hosts import HOSTS
from flashback.records.terms import SETTINGS
from flashback.training import Interrupted
from helpers import write_tiny

SIZES = [2, 3, 2]
ONE_OF_A_FAMILY = ("icarl", "der++", "oewc", "foster")
EVERY_HOST = [name if name in ONE_OF_A_FAMILY else pytest.param(name, marks=pytest.mark.slow) for name in HOSTS]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tiny(tmp_path / "tiny.npz")
    return tmp_path


def config_of(host: str, flashback: bool = False, **changes: Any) -> fb.RunConfig:
    overrides = {"benchmark.sizes": SIZES, "training.epochs": 1, "flashback.second_epochs": 1, "checkpoint.tasks": True}
    settings = {**overrides, **short_settings(HOSTS[host]), **changes}
    return fb.configure(host, "tiny.npz", flashback=flashback, settings=settings)


def trained(
    host: str, flashback: bool = False, out: str = "out", first_tasks: str | None = None, **changes: Any
) -> Any:
    return fb.run(config_of(host, flashback, **changes), out=out, device="cpu", first_tasks=first_tasks)


def assert_as_measured(result: Any, folder: str = "out") -> None:
    """What the run measured after each task is what the model that was kept then reaches now, task by task."""
    tasks = fb.load_benchmark("tiny.npz", sizes=SIZES).tasks
    for learned in range(1, len(SIZES) + 1):
        host = fb.load_trained(folder, device="cpu", after_tasks=learned)
        accuracies = fb.evaluate(host, tasks[:learned])
        for classifier, settings in result.classifiers.items():
            for setting in SETTINGS:
                assert accuracies[classifier][setting] == settings[setting]["matrix"][learned - 1]
        columns = host.predict(torch.cat([task.test.x for task in tasks]))
        assert columns.max() < sum(SIZES[:learned])  # classes of later tasks are not known yet


@pytest.mark.parametrize("host", EVERY_HOST)
def test_every_host_is_loaded_as_it_was_after_each_task(host: str) -> None:
    assert_as_measured(trained(host, flashback=HOSTS[host].has_knowledge))


@pytest.mark.parametrize("host", ["icarl", "foster"])
def test_a_run_that_takes_over_a_first_task_keeps_its_model_too(host: str) -> None:
    trained(host, out="host", first_tasks="shared")
    assert_as_measured(trained(host, flashback=True, first_tasks="shared"))
    assert '"took_over_first_task": true' in Path("out/run.json").read_text()


MOMENTS = [("epoch", 1), ("evaluation", 0), ("evaluation", 1), ("stage", 2)]


@pytest.mark.parametrize("at", [("stage", 1), *(pytest.param(at, marks=pytest.mark.slow) for at in MOMENTS)])
def test_a_run_that_was_interrupted_has_them_all(at: tuple[str, int]) -> None:
    def stop(event: Any) -> None:
        if (event["event"], event["task"]) == at:
            raise Interrupted

    config = config_of("beef", **{"checkpoint.minutes": 0.0})
    with pytest.raises(Interrupted):
        fb.run(config, out="out", device="cpu", observers=[stop])
    assert_as_measured(fb.resume("out", device="cpu"))


def test_an_unfinished_run_gives_the_models_it_has() -> None:
    def stop(event: Any) -> None:
        if (event["event"], event["task"]) == ("stage", 1):
            raise Interrupted

    with pytest.raises(Interrupted):
        fb.run(config_of("icarl"), out="out", device="cpu", observers=[stop])
    assert fb.load_trained("out", device="cpu", after_tasks=1).task.index == 0
    with pytest.raises(fb.FlashbackError, match="after 2 of 3 tasks; it has those after 1;"):
        fb.load_trained("out", device="cpu", after_tasks=2)
    with pytest.raises(fb.FlashbackError, match="not finished; `flashback resume out` continues"):
        fb.load_trained("out", device="cpu")


def test_models_that_nobody_asked_for_are_not_kept() -> None:
    trained("finetune", **{"checkpoint.tasks": False})
    assert [path.suffix for path in sorted(Path("out/checkpoint").iterdir())] == [".json", ".safetensors"]
    with pytest.raises(fb.FlashbackError, match=r"does not hold the model after 1 of 3 .*checkpoint\.tasks=true"):
        fb.load_trained("out", device="cpu", after_tasks=1)
    assert fb.load_trained("out", device="cpu", after_tasks=3).task.index == 2


@pytest.mark.parametrize("wrong", [0, 4, -1, "1", True, 1.0])
def test_there_are_models_after_the_tasks_of_the_run_alone(wrong: Any) -> None:
    trained("finetune")
    with pytest.raises(fb.FlashbackError, match="after_tasks is a number of tasks from 1 to 3"):
        fb.load_trained("out", device="cpu", after_tasks=wrong)


def test_a_lost_checkpoint_is_told() -> None:
    trained("finetune")
    for path in Path("out/checkpoint").glob("*.*"):
        path.unlink()
    with pytest.raises(fb.FlashbackError, match="lost the checkpoint"):
        fb.load_trained("out", device="cpu")


def test_keeping_models_changes_nothing_of_a_run() -> None:
    full, bare = (
        trained("icarl", flashback=True),
        trained("icarl", flashback=True, out="b", **{"checkpoint.tasks": False}),
    )
    assert full.as_dict() == bare.as_dict()
