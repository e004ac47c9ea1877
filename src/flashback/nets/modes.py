"""Ways to run a network: as in evaluation, without moving batch-norm statistics, or frozen for good."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

M = TypeVar("M", bound=nn.Module)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Passes inside are those of evaluation: batch norm reads its running statistics and leaves them alone."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


@contextmanager
def untracked_batchnorm(module: nn.Module) -> Iterator[None]:
    """Training passes inside use batch statistics and leave the running ones alone; evaluation is unchanged."""
    # Clearing this flag while the buffers exist is all it takes: a training pass then ignores the buffers, an
    # evaluation pass still reads them. No tensor is touched, so the context may be entered inside a graph capture.
    norms = [(norm, norm.track_running_stats) for norm in module.modules() if isinstance(norm, _BatchNorm)]
    try:
        for norm, _ in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm, tracked in norms:
            norm.track_running_stats = tracked


class Frozen(nn.Module, Generic[M]):
    """A copy of a module as it is now: no gradients, and in eval mode whatever its parents do."""

    def __init__(self, module: M) -> None:
        super().__init__()
        self.module: M = copy.deepcopy(module)
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Frozen[M]:
        return super().train(False)

    @torch.no_grad()
    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs)
