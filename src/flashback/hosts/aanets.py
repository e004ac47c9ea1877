"""AANets, adaptive aggregation networks (Liu et al. 2021), on iCaRL and on LUCIR.

From the second task on, every level of the network exists twice, stable and plastic, and their outputs are mixed by
learned weights. The main stage trains the networks (the inner problem). After each of its epochs the mixing weights
descend on the cross-entropy over a balanced set (the outer problem); they are kept from task to task.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch.func import functional_call

from flashback import ranks
from flashback.batches import Stream, split_batches
from flashback.config import NotNegative
from flashback.hosts.base import HOSTS, cross_entropy
from flashback.hosts.exemplars import ExemplarHost
from flashback.hosts.icarl import ICaRL, ICaRLSettings
from flashback.hosts.lucir import LUCIR, LUCIRSettings
from flashback.hosts.stages import Stage
from flashback.nets import evaluating
from flashback.nets.combined import AggregatedBackbone


class AANets(ExemplarHost):
    """What AANets add to a host with exemplars."""

    has_one_backbone = False
    net: Any  # its backbone becomes an AggregatedBackbone
    settings: Any  # with mixing_lr

    def check(self) -> None:
        super().check()
        self.net.backbone.levels()  # a network without any is refused here

    def can_revisit(self) -> bool:
        return False  # its balanced set has images of new classes and exemplars alone

    def allocate(self) -> None:
        """Double the backbone in the second task; the stable knowledge, a copy of the single one, is complete then."""
        super().allocate()
        if self.task.index == 1:
            self.net.backbone = AggregatedBackbone(self.net.backbone)
            self.stable_blank_for_task = None

    def stages(self) -> list[Stage]:
        """From the second task on, learn the mixing weights after each epoch of the main stage."""
        stages = super().stages()
        if self.task.index == 0:
            return stages
        learn = partial(self.learn_mixing, cache(self.balanced_stream))
        return [replace(stage, after_epoch=learn) if stage.main else stage for stage in stages]

    def learn_mixing(self, balanced: Callable[[], Stream], epoch: int) -> None:
        """One pass over the balanced set, by plain gradient descent; networks and their statistics do not change."""
        stream, mix = balanced(), self.net.backbone.mix
        weights = mix.detach().requires_grad_()  # shares its memory with mix
        order = stream.order(self.config.seed, self.task.index, "mix", epoch)
        with evaluating(self.net):
            for rows in split_batches(order, self.config.training.batch_size):
                raw = stream.images[rows.to(stream.images.device)].to(self.device)
                x = self.views.weak(raw, self.generator)
                logits = functional_call(self.net, {"backbone.mix": weights}, (x,)).logits[:, self.task.seen]
                loss = cross_entropy(logits, stream.labels[rows])
                (slope,) = ranks.average(torch.autograd.grad(loss, weights))
                mix.sub_(slope, alpha=self.settings.mixing_lr).clamp_(0, 1)


@dataclass(frozen=True)
class ICaRLAANetsSettings(ICaRLSettings):
    mixing_lr: NotNegative = 0.01  # rate of the weights that mix stable and plastic levels


@HOSTS.register("icarl-aanets")
class ICaRLAANets(AANets, ICaRL):
    """iCaRL with AANets: its outputs and class means come from features mixed of a stable and a plastic network."""

    Settings = ICaRLAANetsSettings


@dataclass(frozen=True)
class LUCIRAANetsSettings(LUCIRSettings):
    mixing_lr: NotNegative = 0.01  # rate of the weights that mix stable and plastic levels


@HOSTS.register("lucir-aanets")
class LUCIRAANets(AANets, LUCIR):
    """LUCIR with AANets: it keeps the direction of features mixed of a stable and a plastic network."""

    Settings = LUCIRAANetsSettings
