"""A memory of exemplars with a fixed capacity, and the rules that select them."""

from flashback.memory.selection import (
    balanced_quotas,
    class_means,
    equal_quota,
    herd,
    herd_classes,
    k_means,
    within_quotas,
)
from flashback.memory.store import Field, Memory, first_occurrences, reservoir_slots

__all__ = [
    "Field",
    "Memory",
    "balanced_quotas",
    "class_means",
    "equal_quota",
    "first_occurrences",
    "herd",
    "herd_classes",
    "k_means",
    "reservoir_slots",
    "within_quotas",
]
