"""AANets (Liu et al. 2021) on any host with exemplars: every level of its network twice, mixed by learned weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch.func import functional_call

from flashback.batches import Stream, split_batches
from flashback.config import not_negative
from flashback.hosts.base import cross_entropy
from flashback.hosts.exemplars import ExemplarHost, ExemplarSettings
from flashback.hosts.stages import Stage
from flashback.nets import AggregatedBackbone, evaluating


@dataclass(frozen=True, kw_only=True)
class AggregatingSettings(ExemplarSettings):
    mixing_lr: float = 0.01  # rate of the weights that mix stable and plastic levels

    def check(self) -> None:
        super().check()
        not_negative(self, "mixing_lr")


class AggregatingHost(ExemplarHost):
    """Put before a host: from the second task on its network is stable and plastic, and all else stays as it is.

    The main stage trains both (the inner problem). After each of its epochs the weights of the levels alone descend on
    the cross-entropy over a balanced set (the outer problem); they are kept from task to task.
    """

    Settings = AggregatingSettings
    net: Any  # a Net, of the kind that the host has

    def check(self) -> None:
        super().check()
        self.net.backbone.levels()  # a network without any is refused here

    def allocate(self) -> None:
        """What the model knew comes first, already filled: before the second task it was one network."""
        super().allocate()
        if self.task.index == 1:
            self.net.backbone = AggregatedBackbone(self.net.backbone)
            self.blank_since = None

    def stages(self) -> list[Stage]:
        if self.task.index == 0:
            return super().stages()
        learn_mix = partial(self.learn_mix, cache(self.balanced_stream))
        return [replace(stage, after_epoch=learn_mix) if stage.main else stage for stage in super().stages()]

    def learn_mix(self, balanced: Callable[[], Stream], epoch: int) -> None:
        """One pass over the balanced set, by plain gradient descent; networks and their statistics stand still."""
        stream, mix = balanced(), self.net.backbone.mix
        weights = mix.detach().requires_grad_()  # the same memory
        order = stream.order(self.config.seed, self.task.index, "mix", epoch)
        with evaluating(self.net):
            for rows in split_batches(order, self.config.training.batch_size):
                raw = stream.images[rows.to(stream.images.device)].to(self.device)
                x = self.views.weak(raw, self.generator)
                logits = functional_call(self.net, {"backbone.mix": weights}, (x,)).logits[:, self.task.seen]
                (slope,) = torch.autograd.grad(cross_entropy(logits, stream.labels[rows]), weights)
                mix.sub_(slope, alpha=self.settings.mixing_lr).clamp_(0, 1)
