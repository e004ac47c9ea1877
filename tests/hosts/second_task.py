"""A host in its second task, at a stage of one's choice, and a few steps of it."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from later_tasks import changed as moved
from later_tasks import in_later_task, state_of

from flashback.batches import Batch

__all__ = [
    "SMALL",
    "batch_of",
    "check_same_logits_after_flashback",
    "in_second_task",
    "moved",
    "some_steps",
    "state_of",
]
SMALL = {"host__memory_size": 21, "training__momentum": 0.9, "training__weight_decay": 0.01}


def in_second_task(name, stages=1, flashback=False, benchmark=None, **settings):
    """A method that has learned the first task and begun so many stages of the second."""
    return in_later_task(name, 1, stages, flashback, benchmark, **{**SMALL, **settings})


def batch_of(images, host, slots=None):
    return Batch(
        host.views.plain(images.x), images.y, images.x, torch.full_like(images.y, -1) if slots is None else slots
    )


def some_steps(run, stage, steps=3):
    """So many steps of plain SGD on a stage."""
    stream = stage.stream()
    run.host.train()
    for k in range(steps):
        part = SimpleNamespace(x=stream.images[k::steps], y=stream.labels[k::steps])
        parameters = stage.parameters()
        loss = sum(stage.losses(stage.forward(batch_of(part, run.host, stream.slots[k::steps]))).values())
        slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                parameter.data -= 0.05 * slope


def check_same_logits_after_flashback(run):
    """Of a host with frozen modules: phase 2 starts with the bits that phase 1 did, and knows what that led to."""
    x = run.host.views.plain(run.benchmark.tasks[1].test.x)
    run.host.eval()
    before = run.host.expanded()(x)
    phase_1, phase_2, *_ = run.method.stages()
    some_steps(run, phase_1)
    run.host.eval()
    primary = run.host.expanded()(x)
    assert not torch.equal(primary.logits, before.logits)
    run.trainer.allocate(phase_2)
    phase_2.begin()
    run.host.eval()
    after = run.host.expanded()(x)
    assert torch.equal(after.logits, before.logits)
    assert torch.equal(after.enhanced, before.enhanced)
    assert torch.equal(run.method.plastic.logits(after.old, x), primary.logits)
