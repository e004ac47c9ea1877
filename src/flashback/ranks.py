"""One run on several devices: a process for each of them, called a rank, and what the ranks tell each other.

Every rank runs the same program: it has all images, the whole memory and the same random generators, and so the same
weights. Only the passes through a backbone are divided (`flashback.nets.splitting`). Rank 0 alone writes and prints.
In a run on one device nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LONGEST_SILENCE = timedelta(minutes=30)  # a rank waits so long for another, which may read data or herd


@dataclass
class Group:
    """The ranks that share a run, as seen from one of them."""

    rank: int = 0
    count: int = 1
    captures: bool = True  # whether what they say can be part of a CUDA graph


_group = Group()


def count() -> int:
    """Return the ranks of this run."""
    return _group.count


def rank() -> int:
    """Return which of them this process is."""
    return _group.rank


def can_capture() -> bool:
    """Return whether a step of this run may be captured in a CUDA graph."""
    return _group.captures


# ---------------------------------------------------------------- what ranks tell each other


def add_up(tensor: Tensor) -> Tensor:
    """Replace a contiguous tensor by its sum over the ranks, in place; every rank gets the same bits."""
    import torch.distributed as dist

    if _group.count > 1:
        dist.all_reduce(tensor)
    return tensor


def average(gradients: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the means of gradients over the ranks, computed in one exchange.

    A backward pass leaves too much on a rank: see `flashback.nets.splitting`. Whoever calls `torch.autograd.grad` for
    parameters of a network has to pass the result through here.
    """
    import torch

    if _group.count == 1 or not gradients:
        return gradients
    mean = add_up(torch.cat([gradient.reshape(-1) for gradient in gradients])) / _group.count
    parts = torch.split(mean, [gradient.numel() for gradient in gradients])
    return [part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


@contextmanager
def sharing(backend: str) -> Iterator[None]:
    """Be one of the ranks that the environment describes, as torchrun does, inside this context."""
    global _group
    import torch.distributed as dist

    dist.init_process_group(backend, timeout=LONGEST_SILENCE)
    _group = Group(dist.get_rank(), dist.get_world_size(), captures=backend != "gloo")
    try:
        yield
    finally:
        _group = Group()
        dist.destroy_process_group()
