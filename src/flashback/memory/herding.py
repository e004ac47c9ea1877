"""Herding: exemplars whose running mean stays nearest to the class mean (iCaRL, algorithm 4), and class means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def herd(features: Tensor, quota: int, normalise: bool = False) -> Tensor:
    """Indices of at most `quota` rows of [n, d], best first; every prefix is the answer to a smaller quota."""
    return herd_classes([features], quota, normalise)[0]


@torch.no_grad()
def herd_classes(features: Sequence[Tensor] | Tensor, quota: int, normalise: bool = False) -> list[Tensor]:
    """`herd` for several classes, [k, n, d] or a list of [n_i, d].

    Works in float64, where only true duplicates tie; the first of them is taken. Classes of about the same size go
    together: they are padded to the largest of them, which one large class among small ones would make a large pool.
    """
    together: dict[int, list[int]] = {}
    for k, rows in enumerate(features):
        together.setdefault(len(rows).bit_length(), []).append(k)
    found: dict[int, Tensor] = {}
    for members in together.values():
        found |= zip(members, _herd_padded([features[k] for k in members], quota, normalise), strict=True)
    return [found[k] for k in range(len(features))]


def _herd_padded(features: Sequence[Tensor], quota: int, normalise: bool) -> list[Tensor]:
    """One loop of `quota` steps for all of these classes."""
    sizes = [len(rows) for rows in features]
    pool = pad_sequence([_prepared(rows, normalise) for rows in features], batch_first=True)
    size = torch.tensor(sizes, device=pool.device)
    mean = pool.sum(1) / size.clamp(min=1)[:, None]
    taken = torch.arange(pool.shape[1], device=pool.device) >= size[:, None]  # padding is never free
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
    """Means [classes, d]; zeros for a class without any sample.

    With `normalise` features have unit length before the mean and means after it (nearest mean of exemplars in iCaRL).
    """
    members = (
        torch.arange(classes, device=labels.device)[:, None] == labels
    ).double()  # a product is deterministic on CUDA
    means = members @ _prepared(features, normalise) / members.sum(1, keepdim=True).clamp(min=1)
    if normalise:
        means = F.normalize(means, dim=1, eps=1e-8)
    return means.to(features.dtype)


def _prepared(features: Tensor, normalise: bool) -> Tensor:
    return F.normalize(features.double(), dim=1, eps=1e-8) if normalise else features.double()
