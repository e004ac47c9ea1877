"""Hosts of parameter regularisation in a later task, with made parameters, and their penalty as a slow sum."""

from __future__ import annotations

import torch
from torch import Tensor

from flashback.batches import Batch
from flashback.hosts import Host, Step
from flashback.knowledge import ImportantParameters, flat


def step_of(host: Host, size: int = 6) -> Step:
    images = host.task.train
    rows = torch.arange(0, len(images), len(images) // size)[:size]
    raw, y = images.x[rows], images.y[rows]
    return host.forward(Batch(host.views.plain(raw), y, raw, torch.full_like(y, -1)))


def at_task(host: Host, task: int) -> Host:
    """Pass through the tasks before `task` as a run does, with random parameters instead of trained ones."""
    for earlier in host.benchmark.tasks[: task + 1]:
        host.enter(earlier)
        host.allocate()
        host.begin()
        if earlier.index < task:
            shuffle(host, seed=earlier.index)
            host.end()
    return host


@torch.no_grad()
def shuffle(host: Host, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in host.net.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def slow_penalty(host: Host, knowledge: ImportantParameters) -> float:
    """sum_k F_k (theta_k - anchor_k)^2, parameter by parameter."""
    total, start = 0.0, 0
    for parameter in host.net.parameters():
        part = slice(start, start + parameter.numel())
        importance, anchor = knowledge.importance[part].double(), knowledge.values[part].double()
        total += float((importance * (parameter.detach().flatten().double() - anchor) ** 2).sum())
        start = part.stop
    assert start == len(knowledge.values)
    return total


def gradient(host: Host, loss: Tensor) -> Tensor:
    return flat(torch.autograd.grad(loss, list(host.net.parameters()), allow_unused=False))


def sizes(host: Host) -> list[int]:
    return [parameter.numel() for parameter in host.net.parameters()]
