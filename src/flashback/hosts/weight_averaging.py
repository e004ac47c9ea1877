"""Weight averaging: end the main stage on averaged or merged weights (`training.average` and `training.merge`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from flashback.batches import Batch, prefetch, split_batches
from flashback.hosts.stages import Stage
from flashback.nets import Net

if TYPE_CHECKING:
    from flashback.hosts.base import Host


class WeightCopies(nn.Module):
    """Copies of the weights that a stage trains: from when it began, and averaged over its steps.

    They are part of the host's state, so resumed runs and flashbacks restore them.

    Args:
        weights: The weights that the stage trains.
        keep_first: Whether to keep the weights with which the stage began.
        keep_mean: Whether to average over the steps.
    """

    steps: Tensor

    def __init__(self, weights: Sequence[nn.Parameter], keep_first: bool, keep_mean: bool) -> None:
        super().__init__()
        self.weights = list(weights)  # a plain list, so that they are not registered twice
        self.first = blank_copies(self.weights if keep_first else [])
        self.mean = blank_copies(self.weights if keep_mean else [])
        self.register_buffer("steps", torch.zeros(()))

    @torch.no_grad()
    def begin(self) -> None:
        self.steps.zero_()
        for copies in (self.first, self.mean):
            for copy, weight in zip(copies, self.weights, strict=False):
                copy.copy_(weight)

    @torch.no_grad()
    def add_step(self, decay: float) -> None:
        self.steps.add_(1)
        share = newest_share(self.steps, decay)
        for mean, weight in zip(self.mean, self.weights, strict=False):
            mean.lerp_(weight, share.to(mean.dtype))

    @torch.no_grad()
    def take_mean(self) -> None:
        """Set the weights to their average."""
        for mean, weight in zip(self.mean, self.weights, strict=False):
            weight.copy_(mean)

    @torch.no_grad()
    def merge(self, share: float, host: Host) -> None:
        """Move the modules that all tasks share, and the head rows of earlier classes, towards where the stage began.

        Args:
            share: The share of the first weights in the result.
            host: The host that the weights belong to.
        """
        shared = [module for module in host.net.modules() if getattr(module, "shared_by_tasks", False)]
        inside = {id(parameter) for module in shared for parameter in module.parameters()}
        # The heads of DyTox, LUCIR and PODNet have a module or a block for each task, and no rows for all classes.
        rows = {id(parameter) for parameter in cast(Net, host.net).head.parameters(recurse=False)}
        old = host.task.old.stop
        for first, weight in zip(self.first, self.weights, strict=False):
            if id(weight) in inside:
                weight.lerp_(first, share)
            elif id(weight) in rows and weight.ndim and len(weight) == host.columns:
                weight[:old].lerp_(first[:old], share)


def blank_copies(weights: Sequence[nn.Parameter]) -> nn.ParameterList:
    return nn.ParameterList(nn.Parameter(torch.zeros_like(weight), requires_grad=False) for weight in weights)


def newest_share(steps: Tensor, decay: float) -> Tensor:
    """Return the share of the newest weights in a running average: 1 - decay, but 1 / steps in the first steps.

    So a short stage ends on the plain mean of its steps and not near its initial weights. The step count is a
    tensor, so that a captured step reads the current value.
    """
    return steps.reciprocal().clamp(min=1 - decay)


def with_weight_averaging(host: Host, stage: Stage) -> Stage:
    """Return the main stage with the averaging and merging that the settings choose; by default the stage itself."""
    decay, share = host.config.training.average, host.config.training.merge
    share = share if host.task.index > 0 else None
    if not stage.main or (decay is None and share is None):
        return stage

    def allocate() -> None:
        stage.allocate()
        host.ending = WeightCopies(stage.parameters(), keep_first=share is not None, keep_mean=decay is not None)

    def begin() -> None:
        stage.begin()
        copies_of(host).begin()

    def after_step(step: Any) -> None:
        stage.after_step(step)
        if decay is not None:
            copies_of(host).add_step(decay)

    def end() -> None:
        copies_of(host).take_mean()
        if share is not None:
            copies_of(host).merge(share, host)
        reestimate_batchnorm(host, stage)
        stage.end()

    return replace(stage, allocate=allocate, begin=begin, after_step=after_step, end=end)


def copies_of(host: Host) -> WeightCopies:
    assert host.ending is not None, "allocate makes it"
    return host.ending


def reestimate_batchnorm(host: Host, stage: Stage) -> None:
    """Recompute the batch-norm statistics as the mean over one more pass through the images, without updates.

    The pass is that of training, with its views and its draws from a memory. Frozen statistics do not change.
    """
    norms = [norm for norm in host.net.modules() if isinstance(norm, _BatchNorm) and norm.training]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # torch then takes the mean over all batches
    stream = stage.stream()
    order = stream.order(host.config.seed, host.task.index, stage.training_key, "batch norm")
    for indices, fetched in prefetch(stream, split_batches(order, stage.batch_size) if norms else []):
        raw = stream.images[indices] if fetched is None else fetched
        x = host.views.weak(raw, host.generator)
        stage.forward(Batch(x, stream.labels[indices], raw, stream.slots[indices]))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
