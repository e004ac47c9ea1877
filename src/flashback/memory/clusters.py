"""k-means clustering of the features of a class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROUNDS = 100  # at most; it usually converges in a few


@torch.no_grad()
def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Cluster points [n, d] by Lloyd's algorithm in float64, starting from random points.

    An empty cluster keeps its centre. With fewer points than clusters, centres repeat.

    Returns:
        The centres, float64 [clusters, d].
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
