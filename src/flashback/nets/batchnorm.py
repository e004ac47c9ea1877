"""Batch norm: several batches in one pass, each with its own statistics, and passes that do not update running ones."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from flashback.nets.base import Output
from flashback.nets.splitting import local_sizes

Part = tuple[int, bool]  # images in a part of a batch, and whether it updates the running statistics


class BatchNorm2d(nn.BatchNorm2d):
    """Batch norm that can normalise the parts of a batch separately, as if they came one after another."""

    parts: tuple[Part, ...] = ()

    def forward(self, input: Tensor) -> Tensor:
        if not self.parts or not self.training:
            return super().forward(input)
        sizes = local_sizes([size for size, _ in self.parts])
        pieces = zip(torch.split(input, sizes), self.parts, strict=True)
        return torch.cat([self._normalise(piece, tracked) for piece, (_, tracked) in pieces])

    def _normalise(self, piece: Tensor, tracked: bool) -> Tensor:
        if tracked and self.track_running_stats:
            return super().forward(piece)
        return F.batch_norm(piece, None, None, self.weight, self.bias, training=True, eps=self.eps)


@contextmanager
def in_parts(net: nn.Module, parts: tuple[Part, ...]) -> Iterator[None]:
    norms = [module for module in net.modules() if isinstance(module, BatchNorm2d)]
    try:
        for norm in norms:
            norm.parts = parts
        yield
    finally:
        for norm in norms:
            norm.parts = ()


@contextmanager
def untracked_batchnorm(module: nn.Module) -> Iterator[None]:
    """Use batch statistics in training passes without updating the running ones; evaluation is unchanged."""
    # Clearing this flag while the buffers exist is enough: a training pass then ignores the buffers, an evaluation
    # pass still reads them. No tensor is touched, so the context may be entered inside a graph capture.
    norms = [(norm, norm.track_running_stats) for norm in module.modules() if isinstance(norm, _BatchNorm)]
    try:
        for norm, _ in norms:
            norm.track_running_stats = False
        yield
    finally:
        for norm, tracked in norms:
            norm.track_running_stats = tracked


def joint_forward(net: nn.Module, tracked: Sequence[Tensor], untracked: Sequence[Tensor] = ()) -> list[Output]:
    """Run several batches through a network with the result of separate passes; tracked ones update running statistics.

    One pass over all images uses a GPU better than several small ones. If the backbone does not support it, or the
    images differ in size, the batches go through one by one.
    """
    batches = [*tracked, *untracked]
    supported = getattr(getattr(net, "backbone", None), "supports_joint_forward", False)
    if not supported or len({x.shape[1:] for x in batches}) > 1:
        outputs = [net(x) for x in tracked]
        with untracked_batchnorm(net):
            return outputs + [net(x) for x in untracked]
    parts = tuple((len(x), index < len(tracked)) for index, x in enumerate(batches))
    with in_parts(net, parts):
        output: Output = net(torch.cat(batches))
    return output.split([len(x) for x in batches])
