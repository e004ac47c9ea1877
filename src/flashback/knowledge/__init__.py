"""The four kinds of knowledge a model leaves behind, and the distances to it.

A host keeps stable knowledge of earlier tasks; Flashback keeps plastic knowledge of the new one. Both are of the same
kind and meet the same distance (Sections 3.1 and 3.2 of the paper).
"""

from flashback.knowledge.distances import (
    cosine_distance,
    pod_spatial,
    soft_binary_cross_entropy,
    soft_cross_entropy,
    squared_error,
)
from flashback.knowledge.kinds import (
    ImportantParameters,
    Knowledge,
    ModelKnowledge,
    ModuleKnowledge,
    ReplayedTargets,
    bytes_of,
    copy_state,
    flat,
)
from flashback.knowledge.support import Support

__all__ = [
    "ImportantParameters",
    "Knowledge",
    "ModelKnowledge",
    "ModuleKnowledge",
    "ReplayedTargets",
    "Support",
    "bytes_of",
    "copy_state",
    "cosine_distance",
    "flat",
    "pod_spatial",
    "soft_binary_cross_entropy",
    "soft_cross_entropy",
    "squared_error",
]
