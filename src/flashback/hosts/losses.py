"""Losses that more than one method may want: contrast between classes, and margins by which one answer is to win."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.nets import full_precision


def supervised_contrastive(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Mean over all anchors of the loss with the sum outside the logarithm (Khosla et al. 2020, Eq. 2).

    Vectors are [..., N, width], labels [N]; each set of N vectors has a loss of its own. Positives are the other rows
    with the anchor's label, so every label must appear at least twice: give two views.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels) & ~itself
    with full_precision(vectors):
        unit = F.normalize(vectors.float(), dim=-1)
        similarity = unit @ unit.mT / temperature
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(dim=-1, keepdim=True)
    return -((log_share * positives).sum(dim=-1) / positives.sum(dim=-1)).mean(dim=-1)


def margin_ranking(cosines: Tensor, labels: Tensor, new: slice, hardest: int, margin: float) -> Tensor:
    """Inter-class separation (LUCIR, Section 3.4): hinge of old samples against their nearest new class vectors."""
    own = cosines.gather(1, labels[:, None])
    nearest = cosines[:, new].topk(min(hardest, new.stop - new.start), dim=1).values
    hinges = F.relu(margin - own + nearest).mean(dim=1)
    return masked_mean(hinges, labels < new.start)


def mean_violation(hinge: Tensor, counted: Tensor | bool = True) -> Tensor:
    """The mean over those that violate a constraint; zero if none does."""
    return masked_mean(hinge, (hinge > 0) & counted)


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over those that count, without selecting them: the shapes of a step are fixed. Zero if none does."""
    mean: Tensor = (values * counted).sum() / counted.sum().clamp(min=1)
    return mean
