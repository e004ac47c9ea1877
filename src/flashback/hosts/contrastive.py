"""Supervised contrastive learning (Khosla et al. 2020), for heads that wait for their classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashback.nets import full_precision


def supervised_contrastive(vectors: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Mean over all anchors of the loss with the sum outside the logarithm (Eq. 2 there).

    Positives are the other rows with the anchor's label, so every label must appear at least twice: give two views.
    """
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    positives = (labels[:, None] == labels) & ~itself
    with full_precision(vectors):
        unit = F.normalize(vectors.float(), dim=1)
        similarity = unit @ unit.T / temperature
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(dim=1, keepdim=True)
    return -((log_share * positives).sum(dim=1) / positives.sum(dim=1)).mean()
