"""Backbones, heads and whole networks: one forward pass gives features and logits."""

from flashback.nets import resnet as resnet  # imported to fill the registry
from flashback.nets import small as small
from flashback.nets.aggregated import Aggregated
from flashback.nets.base import NETS, Backbone, Net, Output, Shape, build_backbone, net_for
from flashback.nets.columns import ActiveColumn
from flashback.nets.corrected import CorrectedNet
from flashback.nets.cosine import CosineNet, CosineOutput, ProxyNet, ProxyOutput
from flashback.nets.energy import EnergyNet, EnergyOutput, Fusion
from flashback.nets.growing import Boosted, BoostedOutput, Concatenation, GrowingNet, Whole
from flashback.nets.heads import CosineHead, LinearHead, full_precision, grown_linear
from flashback.nets.learners import Learners, LearnersNet, LearnersOutput
from flashback.nets.modes import Frozen, evaluating, untracked_batchnorm
from flashback.nets.norms import BatchNorm2d, together

__all__ = [
    "NETS",
    "ActiveColumn",
    "Aggregated",
    "Backbone",
    "BatchNorm2d",
    "Boosted",
    "BoostedOutput",
    "Concatenation",
    "CorrectedNet",
    "CosineHead",
    "CosineNet",
    "CosineOutput",
    "EnergyNet",
    "EnergyOutput",
    "Frozen",
    "Fusion",
    "GrowingNet",
    "Learners",
    "LearnersNet",
    "LearnersOutput",
    "LinearHead",
    "Net",
    "Output",
    "ProxyNet",
    "ProxyOutput",
    "Shape",
    "Whole",
    "build_backbone",
    "evaluating",
    "full_precision",
    "grown_linear",
    "net_for",
    "together",
    "untracked_batchnorm",
]
