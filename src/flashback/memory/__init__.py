"""A memory of exemplars with a fixed capacity, and the rules that select them."""

from flashback.memory.clusters import k_means
from flashback.memory.herding import class_means, herd, herd_classes
from flashback.memory.quotas import balanced_quotas, equal_quota, within_quotas
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
