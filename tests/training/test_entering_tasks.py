"""In a training loop of one's own, every task is entered once."""

from __future__ import annotations

from pathlib import Path

import pytest

import flashback as fb
from flashback.benchmarks import Task
from flashback.training.step import TrainingStep
from helpers import quick_flashback, quick_host, small_settings, write_tiny


def learn(method: fb.Host | fb.Flashback, task: Task) -> None:
    """One step of every stage of a task."""
    method.enter(task)
    for stage in method.stages():
        stage.allocate()
        stage.begin()
        stream = stage.stream()
        TrainingStep(method.host, stage, stream, "fp32")(stream.order(0, task.index, stage.name)[:8])
        stage.end()


@pytest.mark.parametrize("build", [quick_host, quick_flashback])
@pytest.mark.parametrize("name", ["icarl", "foster"])
@pytest.mark.parametrize("again", [0, 1])
def test_a_task_that_was_learned_is_not_entered_again(name: str, build: type, again: int) -> None:
    method = build(name, **small_settings(name))
    tasks = method.host.benchmark.tasks
    method.enter(tasks[0])  # looking is not learning
    for task in tasks[:2]:
        learn(method, task)
    with pytest.raises(fb.FlashbackError, match=rf"the classes of task {again + 1} are already learned; enter every"):
        method.enter(tasks[again])
    assert method.host.task is tasks[1]
    learn(method, tasks[2])


def test_a_loaded_host_has_learned_its_tasks(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.npz")
    settings = {"benchmark.sizes": [2, 3, 2], "training.epochs": 1, "checkpoint.tasks": True}
    config = fb.configure("finetune", tmp_path / "tiny.npz", settings=settings)
    fb.run(config, out=tmp_path / "run", device="cpu")
    host = fb.load_trained(tmp_path / "run", device="cpu", after_tasks=2)
    with pytest.raises(fb.FlashbackError, match="the classes of task 2 are already learned"):
        host.enter(host.benchmark.tasks[1])
    host.enter(host.benchmark.tasks[2])
