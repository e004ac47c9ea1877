"""Hosts, by default with a memory, in the middle of a later task, and their losses as slow loops in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flashback import Trainer
from flashback.batches import Batch
from flashback.benchmarks import Benchmark
from flashback.hosts import Stage, Step
from flashback.nets import Output
from helpers import quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 28, "training__momentum": 0.9, "training__weight_decay": 0.01}


def in_later_task(
    name: str,
    task: int = 1,
    stages: int = 1,
    flashback: bool = False,
    benchmark: Benchmark | None = None,
    small: Mapping[str, Any] = SMALL,
    **settings: Any,
) -> Any:
    """A method that has learned some tasks and begun so many stages of the next one."""
    benchmark = benchmark or tiny_benchmark()
    method = (quick_flashback if flashback else quick_host)(name, benchmark, **{**small, **settings})
    trainer = Trainer(method, benchmark)
    for earlier in benchmark.tasks[:task]:
        trainer.run_task(earlier)
    method.enter(benchmark.tasks[task])
    for stage in method.stages()[:stages]:
        trainer.allocate(stage)
        stage.begin()
    method.host.train()
    return SimpleNamespace(method=method, host=method.host, trainer=trainer, benchmark=benchmark)


def batch_of(host: Any, stage: Stage, every: int = 2) -> Batch:
    """Every so many images of a stage, un-augmented."""
    stream = stage.stream()
    raw, labels, slots = (part[::every] for part in (stream.images, stream.labels, stream.slots))
    return Batch(host.views.plain(raw), labels, raw, slots)


def some_steps(host: Any, stage: Stage, steps: int = 2, lr: float = 0.05, every: int = 2) -> None:
    """So many steps of plain SGD, with the hook after each."""
    host.train()
    batch = batch_of(host, stage, every)
    for _ in range(steps):
        step, parameters = stage.forward(batch), stage.parameters()
        slopes = torch.autograd.grad(sum(stage.losses(step).values()), parameters)  # type: ignore[arg-type]
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter -= lr * slope
            stage.after_step(step)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def changed(before: dict[str, Tensor], module: nn.Module) -> set[str]:
    after = module.state_dict()
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


class Answers(nn.Module):
    """Knowledge that gives the same answers whatever it is shown."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, x: Tensor) -> Output:
        return Output(x, self.logits)


def made_step(labels: Sequence[int], columns: int, seed: int = 0) -> Step:
    """A step with float64 logits for these labels, and no images."""
    logits = 3 * torch.randn(len(labels), columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    nothing = torch.zeros(len(labels), 1, dtype=torch.float64)
    batch = Batch(nothing, torch.tensor(labels), nothing, torch.full((len(labels),), -1))
    return Step(batch, Output(nothing, logits.requires_grad_()))


def slow_cross_entropy(logits: Tensor, labels: Sequence[int], columns: int) -> float:
    rows = [[float(value) for value in row[:columns]] for row in logits]
    return -sum(row[y] - math.log(sum(map(math.exp, row))) for row, y in zip(rows, labels, strict=True)) / len(rows)


def slow_distillation(student: Tensor, teacher: Tensor, columns: int, temperature: float) -> float:
    """- sum p_T log q_T over the first columns alone, averaged over the samples."""
    total = 0.0
    for first, other in zip(student.tolist(), teacher.tolist(), strict=True):
        p, q = ([math.exp(value / temperature) for value in row[:columns]] for row in (other, first))
        total -= sum(a / sum(p) * math.log(b / sum(q)) for a, b in zip(p, q, strict=True))
    return total / len(student)


def slow_binary_loss(
    host: Any, batch: Batch, logits: Tensor, teacher: Tensor | None, columns: int
) -> tuple[float, float]:
    """Old and new columns of the mean of one binary cross-entropy per sample and column."""
    old, new = 0.0, 0.0
    for row, label in enumerate(batch.y.tolist()):
        for column in range(columns):
            if column < host.task.classes.start:
                assert teacher is not None
                target = 1 / (1 + math.exp(-float(teacher[row, column])))
            else:
                target = float(label == column)
            answer = 1 / (1 + math.exp(-float(logits[row, column])))
            loss = -(target * math.log(answer) + (1 - target) * math.log(1 - answer)) / (len(batch) * columns)
            old, new = (old + loss, new) if column < host.task.classes.start else (old, new + loss)
    return old, new


def check_binary_losses(host: Any, columns: int) -> None:
    """Compare the losses of binary distillation, at the beginning of a task, with slow loops."""
    with torch.no_grad():
        for parameter in host.net.parameters():  # so that the net is not its own teacher any more
            parameter.mul_(1.1)
    batch = batch_of(host, host.stages()[0], every=4)
    step = host.forward(batch)
    terms = {name: float(term.detach()) for name, term in host.losses(step).items()}
    teacher = host.stable(batch.x).logits if host.task.index > 0 else None
    old, new = slow_binary_loss(host, batch, step.output.logits.detach(), teacher, columns)
    expected = {"task": new} if teacher is None else {"task": new, "stability": old}
    assert terms == pytest.approx(expected, rel=1e-4)
