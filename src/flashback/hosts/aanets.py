"""AANets, adaptive aggregation networks (Liu et al. 2021), on iCaRL and on LUCIR.

From the second task on, every level of the network exists twice, stable and plastic, and their outputs are mixed by
learned weights. The main stage trains the networks (the inner problem). After each of its epochs the mixing weights
descend on the cross-entropy over a balanced set (the outer problem); they are kept from task to task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch.func import functional_call

from flashback.batches import Stream, split_batches
from flashback.config import not_negative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost
from flashback.hosts.icarl import ICaRL, ICaRLSettings
from flashback.hosts.lucir import LUCIR, LUCIRSettings
from flashback.hosts.stages import Stage
from flashback.nets import AggregatedBackbone, evaluating


@dataclass(frozen=True)
class ICaRLAANetsSettings(ICaRLSettings):
    mixing_lr: float = 0.01  # rate of the weights that mix stable and plastic levels

    def check(self) -> None:
        super().check()
        not_negative(self, "mixing_lr")


@HOSTS.register("icarl-aanets")
class ICaRLAANets(ICaRL):
    """iCaRL with AANets: its outputs and class means come from features mixed of a stable and a plastic network."""

    Settings = ICaRLAANetsSettings
    net: Any  # its backbone becomes an AggregatedBackbone

    def check(self) -> None:
        super().check()
        self.net.backbone.levels()  # a network without any is refused here

    def allocate(self) -> None:
        super().allocate()
        aggregate(self)

    def stages(self) -> list[Stage]:
        return with_mixing(self, super().stages(), self.settings.mixing_lr)


@dataclass(frozen=True)
class LUCIRAANetsSettings(LUCIRSettings):
    mixing_lr: float = 0.01  # rate of the weights that mix stable and plastic levels

    def check(self) -> None:
        super().check()
        not_negative(self, "mixing_lr")


@HOSTS.register("lucir-aanets")
class LUCIRAANets(LUCIR):
    """LUCIR with AANets: it keeps the direction of features mixed of a stable and a plastic network."""

    Settings = LUCIRAANetsSettings

    def check(self) -> None:
        super().check()
        self.net.backbone.levels()

    def allocate(self) -> None:
        super().allocate()
        aggregate(self)

    def stages(self) -> list[Stage]:
        return with_mixing(self, super().stages(), self.settings.mixing_lr)


# ---------------------------------------------------------------- what both share


def aggregate(host: Any) -> None:
    """Double the backbone in the second task. The stable knowledge, a copy of the single network, is complete then."""
    if host.task.index == 1:
        host.net.backbone = AggregatedBackbone(host.net.backbone)
        host.stable_blank_for_task = None


def with_mixing(host: ExemplarHost, stages: list[Stage], lr: float) -> list[Stage]:
    """From the second task on, learn the mixing weights after each epoch of the main stage."""
    if host.task.index == 0:
        return stages
    learn = partial(learn_mixing, host, cache(host.balanced_stream), lr)
    return [replace(stage, after_epoch=learn) if stage.main else stage for stage in stages]


def learn_mixing(host: Any, balanced: Callable[[], Stream], lr: float, epoch: int) -> None:
    """One pass over the balanced set, by plain gradient descent; networks and their statistics do not change."""
    stream, mix = balanced(), host.net.backbone.mix
    weights = mix.detach().requires_grad_()  # shares its memory with mix
    order = stream.order(host.config.seed, host.task.index, "mix", epoch)
    with evaluating(host.net):
        for rows in split_batches(order, host.config.training.batch_size):
            raw = stream.images[rows.to(stream.images.device)].to(host.device)
            x = host.views.weak(raw, host.generator)
            logits = functional_call(host.net, {"backbone.mix": weights}, (x,)).logits[:, host.task.seen]
            (slope,) = torch.autograd.grad(cross_entropy(logits, stream.labels[rows]), weights)
            mix.sub_(slope, alpha=lr).clamp_(0, 1)
