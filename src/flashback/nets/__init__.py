"""Backbones and heads: one forward pass gives features and logits."""

from flashback.nets import resnet as resnet  # imported to fill the registry
from flashback.nets import small as small
from flashback.nets.base import NETS, Backbone, Net, Output, Shape, build_backbone
from flashback.nets.heads import CosineHead, LinearHead, full_precision, grown_linear
from flashback.nets.modes import Frozen, untracked_batchnorm

__all__ = [
    "NETS",
    "Backbone",
    "CosineHead",
    "Frozen",
    "LinearHead",
    "Net",
    "Output",
    "Shape",
    "build_backbone",
    "full_precision",
    "grown_linear",
    "untracked_batchnorm",
]
