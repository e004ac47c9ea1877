"""Herding: exemplars whose running mean stays nearest to the class mean (iCaRL, algorithm 4), and class means."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


def herd(features: Tensor, quota: int, normalise: bool = False) -> Tensor:
    """Select exemplars by herding (iCaRL): each step adds the row that brings the mean nearest to the class mean.

    Args:
        features: The features of one class, [n, d].
        quota: The largest number of rows to select.
        normalise: Whether features are scaled to unit length first.

    Returns:
        Row indices, best first. Every prefix is the selection of a smaller quota.
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

    Args:
        features: [n, d].
        labels: [n].
        classes: The number of classes.
        normalise: Whether features and then means are scaled to unit length (iCaRL).
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
