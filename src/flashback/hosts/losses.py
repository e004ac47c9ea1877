"""Losses that more than one method may want: contrast between classes, and margins by which one answer is to win."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.hosts.base import one_hot
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


def margin_nca(cosines: Tensor, labels: Tensor, scale: Tensor, margin: float) -> Tensor:
    """Neighbourhood components with a margin and a hinge (PODNet, Section 3.2): the own class against all others.

    The scale has no gradient from the margin, which would draw it to 0, where all classes are alike and the margin is
    met, before anything is learned. A class without others has no loss.
    """
    scaled = scale * cosines
    itself = one_hot(labels, slice(0, cosines.shape[1]), torch.bool)
    others = scaled.masked_fill(itself, torch.finfo(cosines.dtype).min).logsumexp(dim=1)
    own = scaled.gather(1, labels[:, None]).squeeze(1)
    return F.relu(others - own + margin * scale.detach()).mean()


def released_nca(cosines: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """As PODNet's released code has it: the margin cancels, and the largest of all stands among the others."""
    scaled = scale * cosines
    itself = one_hot(labels, slice(0, cosines.shape[1]), torch.bool)
    others = torch.where(itself, scaled.amax(dim=1, keepdim=True), scaled).logsumexp(dim=1)
    return (others - scaled.gather(1, labels[:, None]).squeeze(1)).mean()


def mean_violation(hinge: Tensor, counted: Tensor | bool = True) -> Tensor:
    """The mean over those that violate a constraint; zero if none does."""
    return masked_mean(hinge, (hinge > 0) & counted)


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over those that count, without selecting them: the shapes of a step are fixed. Zero if none does."""
    mean: Tensor = (values * counted).sum() / counted.sum().clamp(min=1)
    return mean
