"""Centres of the clusters that the features of a class fall into."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDS = 100  # at most; it mostly settles within a few


@torch.no_grad()
def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm in float64, from points drawn on the CPU; a centre that is nearest to none stays where it is.

    Fewer points than clusters serve as centres more than once.
    """
    points = points.double()
    drawn = torch.randperm(len(points), generator=generator).to(points.device)
    centres = points[drawn.repeat(-(-clusters // len(points)))[:clusters]]
    before = None
    for _ in range(ROUNDS):
        nearest = torch.cdist(points, centres).argmin(dim=1)
        if before is not None and torch.equal(nearest, before):
            break
        members = F.one_hot(nearest, clusters).double()
        counts = members.sum(dim=0)[:, None]
        centres = torch.where(counts > 0, members.T @ points / counts.clamp(min=1), centres)
        before = nearest
    return centres
