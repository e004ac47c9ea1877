"""Seconds of what happens around training steps, and the trainer's own share of a step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from flashback.batches import split_batches
from flashback.config import CheckpointConfig
from flashback.hosts.prediction import features_of
from flashback.knowledge.importance import fisher_diagonal
from flashback.memory import class_means, herd_classes
from flashback.speed.setup import Setup
from flashback.training.checkpoints import Checkpoints
from flashback.training.evaluation import evaluate
from flashback.training.fast import make_step
from flashback.training.trainer import Position

HOST, BARE_HOST = "icarl", "finetune"
ROUNDS = 5
BARE_STEPS = 50  # at least, as in a real epoch, which ends with reading the losses


def fisher(setup: Setup) -> float:
    """The diagonal of the Fisher information, of all images of a task."""
    host = setup.trainer(HOST).host
    train = host.benchmark.tasks[0].train
    images, labels = train.x.to(setup.device), train.y.to(setup.device)
    return seconds_of(lambda: fisher_diagonal(host.net, images, labels, host.views.plain, "empirical"), setup)


def herding(setup: Setup) -> float:
    """Ranking all images of a task, class by class, and the means of the classes; features are there already."""
    host, size = setup.trainer(HOST).host, setup.size
    train = host.benchmark.tasks[0].train
    features = host.embed(train.x.to(setup.device), features_of).reshape(size.classes, size.per_class, -1)
    labels = train.y.to(setup.device)

    def herd() -> None:
        herd_classes(features, size.per_class)
        class_means(features.flatten(0, 1), labels, size.classes)

    return seconds_of(herd, setup)


def evaluation(setup: Setup) -> float:
    """The test images of a task, by every classifier of the host."""
    trainer = setup.trainer(HOST)
    return seconds_of(lambda: evaluate(trainer.host, trainer.benchmark.tasks[:1]), setup)


def checkpoint(setup: Setup) -> float:
    """Writing the whole state of a run to the disk."""
    trainer = setup.trainer(HOST)
    with tempfile.TemporaryDirectory() as folder:
        checkpointer = Checkpoints(Path(folder), CheckpointConfig())
        return seconds_of(lambda: checkpointer.write(trainer.state()), setup)


def trainer_overhead(setup: Setup) -> float:
    """Time of an eager epoch through the trainer over that of a bare loop with the same mathematics.

    Both in turn, several times, and the best of each; on a CPU by the time it worked, so that others do not count.
    """
    trainer = setup.trainer(BARE_HOST, mode="eager", settings={"training.lr": 0.01})
    host = trainer.host.train()
    trainer.method.enter(trainer.benchmark.tasks[0])
    stage = trainer.method.stages()[0]
    trainer.allocate(stage)
    stream = stage.stream()
    order = stream.order("bench").repeat(-(-BARE_STEPS * stage.batch_size // len(stream)))
    optimiser = torch.optim.SGD(host.net.parameters(), lr=0.01, foreach=True)
    trainer.step = make_step(host, stage, stream, "fp32")
    trainer.history.budget.append({"steps": 0, "images": 0})

    def bare() -> None:
        total = torch.zeros((), device=setup.device)
        for indices in split_batches(order, stage.batch_size):
            x = host.views.weak(stream.images[indices], host.generator)
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(host.net(x).logits, stream.labels[indices])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.detach()
        float(total)

    def trained() -> None:
        trainer.position = Position()
        trainer.run_epoch(stage, stream, 0, order)

    clock = time.process_time if setup.device.type == "cpu" else time.monotonic
    times = [(timed(trained, setup, clock), timed(bare, setup, clock)) for _ in range(1 + ROUNDS)]
    counted = times[1:]  # the first time loads kernels
    return round(min(time[0] for time in counted) / min(time[1] for time in counted), 4)


RATIO = "trainer over a bare loop"
PARTS: dict[str, Callable[[Setup], float]] = {
    "fisher": fisher,
    "herding all images, class means": herding,
    "evaluation of a task": evaluation,
    "checkpoint": checkpoint,
    RATIO: trainer_overhead,
}


def seconds_of(action: Callable[[], object], setup: Setup) -> float:
    """The second time counts: the first one loads kernels."""
    timed(action, setup)
    return round(timed(action, setup), 5)


def timed(action: Callable[[], object], setup: Setup, clock: Callable[[], float] = time.monotonic) -> float:
    setup.wait()
    began = clock()
    action()
    setup.wait()
    return clock() - began
