"""Backbones, heads and networks; one forward pass computes features and logits."""

from flashback.nets import resnet as resnet  # imported to fill the registry
from flashback.nets import small as small
from flashback.nets.active_column import ActiveColumn
from flashback.nets.aggregated import AggregatedBackbone
from flashback.nets.base import NETS, Backbone, Net, Output, Shape
from flashback.nets.batchnorm import BatchNorm2d, joint_forward, untracked_batchnorm
from flashback.nets.bias_correction import BiasCorrectedNet
from flashback.nets.build import build_backbone, net_for
from flashback.nets.cosine import CosineNet, CosineOutput, ProxyNet, ProxyOutput
from flashback.nets.energy import EnergyNet, EnergyOutput, Fusion
from flashback.nets.frozen import Frozen, evaluating
from flashback.nets.growing import Boosted, BoostedOutput, ComposedNet, Concatenation, GrowingNet, pad_classes
from flashback.nets.heads import CosineHead, LinearHead, full_precision, grown_linear
from flashback.nets.parallel import ParallelBackbone, ParallelNet, ParallelOutput

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
