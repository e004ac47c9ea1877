"""Backbones, heads and networks; one forward pass computes features and logits."""

from flashback.nets import convit, resnet, small  # noqa: F401 - they fill the registry
from flashback.nets.base import NETS, Backbone, Frozen, Net, Output, Shape, evaluating, full_precision
from flashback.nets.batchnorm import BatchNorm2d, joint_forward, untracked_batchnorm
from flashback.nets.build import ModuleNets, build_backbone, net_for
from flashback.nets.growing import LinearHead

__all__ = [
    "NETS",
    "Backbone",
    "BatchNorm2d",
    "Frozen",
    "LinearHead",
    "ModuleNets",
    "Net",
    "Output",
    "Shape",
    "build_backbone",
    "evaluating",
    "full_precision",
    "joint_forward",
    "net_for",
    "untracked_batchnorm",
]
