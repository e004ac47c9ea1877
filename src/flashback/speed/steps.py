"""Images per second of the training step in steady state."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from flashback.errors import FlashbackError
from flashback.hosts.stages import Stage
from flashback.speed.figures import Case, Speed
from flashback.speed.setup import Setup
from flashback.training.fast import CapturedStep, make_step
from flashback.training.step import TrainingStep, set_rate
from flashback.training.trainer import Trainer

FIRST_STEPS = 20  # of the first task, so that a memory holds something
WARM_UP = 8  # steps that compile and capture
DRAWS = 64  # different batches


def steady_state(setup: Setup, case: Case) -> Speed:
    """Steps of the second task, where there is something to remember, after everything is captured and compiled."""
    torch.compiler.reset()  # first: compiled code holds the networks of the last figure
    setup.free()
    captured = case.mode != "eager"
    settings = {"training.batch_size": case.batch_size, "compile": captured}
    trainer = setup.trainer(case.host, case.flashback, case.mode, settings=settings)
    with torch.compiler.set_stance("force_eager"):  # the captured step alone compiles, as in the trainer
        stage = begin_second_task(trainer)
        step = ready_step(trainer, stage)
        count = len(step.stream)
        positions = torch.randint(0, count, (DRAWS, min(case.batch_size, count)), device=setup.device)
        began = time.monotonic()
        for k in range(WARM_UP):
            step(positions[k])
        setup.wait()
        preparation = time.monotonic() - began
        if isinstance(step, CapturedStep) and not step.graphs:
            raise FlashbackError("the step could not be captured")
        rate = repeat(lambda k: step(positions[k % DRAWS]), setup) * positions.shape[1]
    return Speed(
        **vars(case),
        images_per_second=round(rate, 1),
        preparation_seconds=round(preparation, 2),
        peak_bytes=setup.peak_bytes(),
        knowledge_bytes=trainer.method.knowledge_bytes(),
    )


def begin_second_task(trainer: Trainer) -> Stage:
    """Go through the first task in a few steps, and begin the stage of the second that Flashback changes."""
    for task in trainer.benchmark.tasks[:2]:
        trainer.method.enter(task)
        for stage in trainer.method.stages():
            trainer.allocate(stage)
            stage.begin()
            if task.index == 1 and stage.main:
                return stage
            trainer.host.train()
            stream = stage.stream()
            step = TrainingStep(trainer.host, stage, stream, trainer.precision)
            for indices in torch.split(stream.order("bench"), stage.batch_size)[:FIRST_STEPS]:
                step(indices)
            stage.end()
    raise FlashbackError(f"{trainer.host.settings.name} has no main stage in its second task")


def ready_step(trainer: Trainer, stage: Stage) -> TrainingStep:
    trainer.host.train()
    trainer.host.generator.manual_seed(0)
    step = make_step(trainer.host, stage, stage.stream(), trainer.precision)
    set_rate(step.optimiser, 1e-4)
    stage.before_epoch(0)
    return step


def repeat(action: Callable[[int], None], setup: Setup) -> float:
    """How often per second an action runs, measured over at least the seconds of the setup."""
    count, block = 0, 16
    began = time.monotonic()
    while time.monotonic() - began < setup.size.seconds:
        for _ in range(block):
            action(count)
            count += 1
        setup.wait()
    return count / (time.monotonic() - began)
