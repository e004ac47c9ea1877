"""A host in its second task, at a stage of one's choice, and a few steps of it."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from flashback import Trainer
from flashback.batches import Batch
from helpers import quick_flashback, quick_host, tiny_benchmark

SMALL = {"host__memory_size": 21, "training__momentum": 0.9, "training__weight_decay": 0.01}


def state_of(module):
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def moved(before, module):
    """The names of the tensors that are not what they were."""
    after = module.state_dict()
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def batch_of(images, host, slots=None):
    return Batch(
        host.views.plain(images.x), images.y, images.x, torch.full_like(images.y, -1) if slots is None else slots
    )


def in_second_task(name, stages=1, flashback=False, benchmark=None, **settings):
    """A method that has learned the first task and begun so many stages of the second."""
    benchmark = benchmark or tiny_benchmark()
    method = (quick_flashback if flashback else quick_host)(name, benchmark, **{**SMALL, **settings})
    trainer = Trainer(method, benchmark)
    trainer.run_task(benchmark.tasks[0])
    method.enter(benchmark.tasks[1])
    for stage in method.stages()[:stages]:
        trainer.allocate(stage)
        stage.begin()
        method.host.train()
    return SimpleNamespace(method=method, host=method.host, trainer=trainer, benchmark=benchmark)


def some_steps(run, stage, steps=3):
    """So many steps of plain SGD on a stage."""
    stream = stage.stream()
    run.host.train()
    for k in range(steps):
        part = SimpleNamespace(x=stream.images[k::steps], y=stream.labels[k::steps])
        parameters = stage.parameters()
        loss = sum(stage.losses(stage.forward(batch_of(part, run.host, stream.slots[k::steps]))).values())
        slopes = torch.autograd.grad(loss, parameters)
        for parameter, slope in zip(parameters, slopes, strict=True):
            parameter.data -= 0.05 * slope
