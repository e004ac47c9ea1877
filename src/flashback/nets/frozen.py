"""Networks in evaluation mode: for a while, or frozen for good."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

import torch
from torch import nn

M = TypeVar("M", bound=nn.Module)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode inside the context, and restore its mode afterwards."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class Frozen(nn.Module, Generic[M]):
    """A copy of a module as it is now, without gradients and always in evaluation mode."""

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
