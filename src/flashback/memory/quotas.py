"""Quotas: how many exemplars each class may have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashback.errors import FlashbackError


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
