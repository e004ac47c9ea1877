"""Several batches in one pass through a network, each with batch-norm statistics of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashback.nets.base import Output
from flashback.nets.modes import untracked_batchnorm

Part = tuple[int, bool]
"""How many images a part of a batch has, and whether it moves the running statistics."""


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm that can take the parts of a batch for batches of their own, one after the other."""

    parts: tuple[Part, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        if not self.parts or not self.training:
            return super().forward(input)
        sizes = [size for size, _ in self.parts]
        pieces = zip(torch.split(input, sizes), self.parts, strict=True)
        return torch.cat([self._alone(piece, tracked) for piece, (_, tracked) in pieces])

    def _alone(self, piece: Tensor, tracked: bool) -> Tensor:
        if tracked and self.track_running_stats:
            return super().forward(piece)
        return F.batch_norm(piece, None, None, self.weight, self.bias, training=True, eps=self.eps)


@contextmanager
def in_parts(net: nn.Module, parts: tuple[Part, ...]) -> Iterator[None]:
    """Training passes inside are as if each part of the batch went through alone."""
    norms = [module for module in net.modules() if isinstance(module, BatchNorm2d)]
    try:
        for norm in norms:
            norm.parts = parts
        yield
    finally:
        for norm in norms:
            norm.parts = ()


def takes_parts(net: nn.Module) -> bool:
    return getattr(getattr(net, "backbone", None), "takes_parts", False)


def together(net: nn.Module, tracked: Sequence[Tensor], untracked: Sequence[Tensor] = ()) -> list[Output]:
    """The answers to each batch; those of the second kind leave batch-norm statistics alone.

    One pass over all images does what a pass for each batch would; a GPU has little to do with a small batch. Only a
    backbone that takes parts can do that; others, and images of different sizes, get their passes one by one.
    """
    batches = [*tracked, *untracked]
    if not takes_parts(net) or len({x.shape[1:] for x in batches}) > 1:
        answers = [net(x) for x in tracked]
        with untracked_batchnorm(net):
            return answers + [net(x) for x in untracked]
    parts = tuple((len(x), index < len(tracked)) for index, x in enumerate(batches))
    with in_parts(net, parts):
        output: Output = net(torch.cat(batches))
    return output.split([len(x) for x in batches])
