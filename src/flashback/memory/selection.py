"""Which exemplars to store: herding and class means (iCaRL, algorithm 4), k-means, and quotas of classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from flashback.errors import FlashbackError

ROUNDS = 100  # at most; it usually converges in a few


def herd(features: Tensor, quota: int, normalise: bool = False) -> Tensor:
    """Select up to `quota` rows of [n, d] by herding (iCaRL): each brings the mean nearest to the class mean.

    Rows are returned best first, so that every prefix is the selection of a smaller quota.
    """
    return herd_classes([features], quota, normalise)[0]


@torch.no_grad()
def herd_classes(features: Sequence[Tensor] | Tensor, quota: int, normalise: bool = False) -> list[Tensor]:
    """Apply `herd` to several classes, [k, n, d] or a list of [n_i, d].

    It works in float64, where only true duplicates tie; the first of them is selected. Classes of similar size are
    processed together, padded to the largest of them.
    """
    batches: dict[int, list[int]] = {}
    for k, rows in enumerate(features):
        batches.setdefault(len(rows).bit_length(), []).append(k)
    selected: dict[int, Tensor] = {}
    for members in batches.values():
        selected |= zip(members, _herd_padded([features[k] for k in members], quota, normalise), strict=True)
    return [selected[k] for k in range(len(features))]


def _herd_padded(features: Sequence[Tensor], quota: int, normalise: bool) -> list[Tensor]:
    sizes = [len(rows) for rows in features]
    pool = pad_sequence([_prepared(rows, normalise) for rows in features], batch_first=True)
    size = torch.tensor(sizes, device=pool.device)
    mean = pool.sum(1) / size.clamp(min=1)[:, None]
    taken = torch.arange(pool.shape[1], device=pool.device) >= size[:, None]  # padding cannot be selected
    classes = torch.arange(len(sizes), device=pool.device)
    total, order = torch.zeros_like(mean), []
    for step in range(1, min(quota, max(sizes)) + 1):
        # argmin of |mean - (total + x) / step|, multiplied by step
        distance = torch.linalg.vector_norm(pool - (step * mean - total)[:, None], dim=2)
        chosen = distance.masked_fill_(taken, torch.inf).argmin(1)
        total += pool[classes, chosen]
        taken[classes, chosen] = True
        order.append(chosen)
    ranking = torch.stack(order, 1) if order else classes.new_empty(len(sizes), 0)
    return [row[: min(quota, n)] for row, n in zip(ranking, sizes, strict=True)]


@torch.no_grad()
def class_means(features: Tensor, labels: Tensor, classes: int, normalise: bool = False) -> Tensor:
    """The mean features of each class, [classes, d]; zeros for a class without samples.

    With `normalise`, features and then means are scaled to unit length (iCaRL).
    """
    # A product with a matrix of members is deterministic on CUDA.
    members = (torch.arange(classes, device=labels.device)[:, None] == labels).double()
    means = members @ _prepared(features, normalise) / members.sum(1, keepdim=True).clamp(min=1)
    if normalise:
        means = F.normalize(means, dim=1, eps=1e-8)
    return means.to(features.dtype)


def _prepared(features: Tensor, normalise: bool) -> Tensor:
    return F.normalize(features.double(), dim=1, eps=1e-8) if normalise else features.double()


@torch.no_grad()
def k_means(points: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    """Cluster points [n, d] by Lloyd's algorithm in float64, starting from random points.

    An empty cluster keeps its centre. With fewer points than clusters, centres repeat. Returns [clusters, d].
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


def equal_quota(capacity: int, classes: int) -> int:
    """The same quota for each class, rounded down (iCaRL, LUCIR with a fixed total)."""
    if capacity < classes:
        raise FlashbackError(f"a memory of {capacity} images is too small for {classes} classes; raise its capacity")
    return capacity // classes


def balanced_quotas(capacity: int, old: int, new: int, generator: torch.Generator) -> list[int]:
    """X-DER's quotas, which fill the memory: an equal share, rounded down, for old classes, all the rest for new ones.

    The remainder goes to random new classes, one each. Old classes come first in the result.
    """
    share = equal_quota(capacity, old + new)
    each, left = divmod(capacity - old * share, new)
    extra = set(torch.randperm(new, generator=generator, device=generator.device)[:left].tolist())
    return [share] * old + [each + (index in extra) for index in range(new)]


def within_quotas(labels: Tensor, quotas: Sequence[int]) -> Tensor:
    """Positions, in order, of the first quotas[c] samples of each class c; labels beyond the quotas have none."""
    position = torch.arange(len(labels), device=labels.device)
    kept = [position[labels == label][:quota] for label, quota in enumerate(quotas)]
    return torch.cat([position[:0], *kept]).sort().values
