"""How many exemplars each class may have."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashback.errors import FlashbackError


def equal_quota(capacity: int, classes: int) -> int:
    """The same number for every class seen, rounded down (iCaRL, LUCIR with a fixed total)."""
    if capacity < classes:
        raise FlashbackError(f"a memory of {capacity} images has no room for {classes} classes; raise its capacity")
    return capacity // classes


def balanced_quotas(capacity: int, old: int, new: int, generator: torch.Generator) -> list[int]:
    """X-DER's rule, which fills the memory: old classes get an equal share rounded down, the new ones all the rest.

    What does not divide evenly goes to random new classes, one each. Old classes come first in the answer.
    """
    share = equal_quota(capacity, old + new)
    each, left = divmod(capacity - old * share, new)
    lucky = set(torch.randperm(new, generator=generator, device=generator.device)[:left].tolist())
    return [share] * old + [each + (index in lucky) for index in range(new)]


def within_quotas(labels: Tensor, quotas: Sequence[int]) -> Tensor:
    """Positions, in order, of the first quotas[c] samples of every class c; labels beyond the quotas get none."""
    position = torch.arange(len(labels), device=labels.device)
    kept = [position[labels == label][:quota] for label, quota in enumerate(quotas)]
    return torch.cat([position[:0], *kept]).sort().values
