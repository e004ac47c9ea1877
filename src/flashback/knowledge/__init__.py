"""The four kinds of knowledge a model leaves behind, and the distances to it.

A host keeps stable knowledge of earlier tasks; Flashback keeps plastic knowledge of the new one. Both are of the same
kind and have the same distance. Equations without another name are those of the Flashback Learning paper.
"""

from flashback.knowledge.distances import (
    cosine_distance,
    masked_mean,
    pod_spatial,
    soft_binary_cross_entropy,
    soft_cross_entropy,
    squared_error,
)
from flashback.knowledge.importance import ImportantParameters, flat, with_rows
from flashback.knowledge.kinds import (
    Knowledge,
    ModelKnowledge,
    ModuleKnowledge,
    ReplayedTargets,
    Support,
    bytes_of,
    cached_outputs,
    copy_state,
)

__all__ = [
    "ImportantParameters",
    "Knowledge",
    "ModelKnowledge",
    "ModuleKnowledge",
    "ReplayedTargets",
    "Support",
    "bytes_of",
    "cached_outputs",
    "copy_state",
    "cosine_distance",
    "flat",
    "masked_mean",
    "pod_spatial",
    "soft_binary_cross_entropy",
    "soft_cross_entropy",
    "squared_error",
    "with_rows",
]
