"""Backbones, heads and networks; one forward pass computes features and logits."""

from flashback.nets import resnet, small  # noqa: F401 - they fill the registry
from flashback.nets.base import NETS, Backbone, Frozen, Net, Output, Shape, evaluating, full_precision
from flashback.nets.batchnorm import BatchNorm2d, joint_forward, untracked_batchnorm
from flashback.nets.build import ModuleNets, build_backbone, net_for
from flashback.nets.combined import ActiveColumn, AggregatedBackbone, ParallelBackbone, ParallelNet, ParallelOutput
from flashback.nets.growing import (
    Boosted,
    BoostedOutput,
    ComposedNet,
    Concatenation,
    EnergyNet,
    EnergyOutput,
    Fusion,
    GrowingNet,
    pad_classes,
)
from flashback.nets.heads import (
    BiasCorrectedNet,
    CosineHead,
    CosineNet,
    CosineOutput,
    LinearHead,
    ProxyNet,
    ProxyOutput,
    grown_linear,
)

__all__ = [
    "NETS",
    "ActiveColumn",
    "AggregatedBackbone",
    "Backbone",
    "BatchNorm2d",
    "BiasCorrectedNet",
    "Boosted",
    "BoostedOutput",
    "ComposedNet",
    "Concatenation",
    "CosineHead",
    "CosineNet",
    "CosineOutput",
    "EnergyNet",
    "EnergyOutput",
    "Frozen",
    "Fusion",
    "GrowingNet",
    "LinearHead",
    "ModuleNets",
    "Net",
    "Output",
    "ParallelBackbone",
    "ParallelNet",
    "ParallelOutput",
    "ProxyNet",
    "ProxyOutput",
    "Shape",
    "build_backbone",
    "evaluating",
    "full_precision",
    "grown_linear",
    "joint_forward",
    "net_for",
    "pad_classes",
    "untracked_batchnorm",
]
