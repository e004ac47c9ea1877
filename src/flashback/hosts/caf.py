"""CAF (Wang et al. 2023): narrow learners under EWC, each of which forgets actively and learns from the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.config import above_zero, at_least_one, not_negative
from flashback.hosts.base import HOSTS, trainable
from flashback.hosts.ewc import EWC, FisherSettings
from flashback.hosts.stages import Step
from flashback.nets import ParallelBackbone, ParallelNet, ParallelOutput

SHARPNESS = 100.0  # of the choice whom to learn from: nearly one learner alone


@dataclass(frozen=True)
class CAFSettings(FisherSettings):
    learners: int = 5
    learner_width: float = 0.45  # channels of a learner, as a share of the net's: five have the parameters of one net
    forgetting: float = 1e-8  # lambda_af, weight of active forgetting
    co_learning: float = 0.02  # lambda_kld, weight of the divergence between learners

    def check(self) -> None:
        super().check()
        at_least_one(self, "learners")
        above_zero(self, "learner_width")
        not_negative(self, "forgetting", "co_learning")


@HOSTS.register("caf")
class CAF(EWC):
    """EWC on narrow networks in parallel, whose features are summed before one head.

    Two terms are added. Active forgetting, from the second task on, draws every tensor W of a learner to 0 with a
    coefficient of its own, lambda_af / 2 * sum a ||W||^2, a being a softmax over the learners. Co-learning draws what
    each learner says alone to what the others say, lambda_kld * sum g KL, g being a softmax over those it learns from.
    The numbers under both softmaxes are trained, and drawn anew for each task.
    """

    Settings = CAFSettings
    net: ParallelNet

    def build(self) -> None:
        super().build()
        learners = self.settings.learners
        tensors = len(trainable(self.net.backbone)) // learners
        self.forgets = nn.Parameter(torch.zeros(tensors, learners))  # how much of each tensor, by learner
        self.follows = nn.Parameter(torch.zeros(learners, learners))  # how much each learner, a row, follows the others

    def new_net(self) -> ParallelNet:
        width = self.settings.learner_width
        backbone = ParallelBackbone([self.new_backbone(width) for _ in range(self.settings.learners)])
        return ParallelNet(backbone, nn.Linear(backbone.width, self.benchmark.classes))

    @torch.no_grad()
    def begin(self) -> None:
        """In the first task they stay at 0, where a softmax gives all the same."""
        if self.task.index > 0:
            for numbers in (self.forgets, self.follows):
                numbers.copy_(torch.randn(numbers.shape, generator=self.generator, device=self.device))

    def trained_parameters(self) -> list[nn.Parameter]:
        return trainable(self.net) + ([self.forgets, self.follows] if self.task.index > 0 else [])

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        assert isinstance(step.output, ParallelOutput)
        terms = dict(super().losses(step))
        if self.task.index > 0:
            terms["forgetting"] = self.settings.forgetting / 2 * self.weighted_norm()
        own = step.output.separate[:, :, self.softmax_columns()]
        shares = each_share(SHARPNESS * self.follows)
        terms["co-learning"] = self.settings.co_learning * (shares * divergences(own)).sum()
        return terms

    def weighted_norm(self) -> Tensor:
        """sum a ||W||^2 over the tensors of all learners; the head counts with 1."""
        learners = [squared_norms(learner) for learner in self.net.backbone.learners]
        weighted: Tensor = (each_share(self.forgets) * torch.stack(learners, dim=1)).sum()
        return weighted + squared_norms(self.net.head).sum()


def squared_norms(module: nn.Module) -> Tensor:
    """Of each tensor that is trained."""
    return torch.stack([parameter.square().sum() for parameter in trainable(module)])


def each_share(numbers: Tensor) -> Tensor:
    """A softmax over each row, with 1 as the mean."""
    return numbers.shape[1] * numbers.softmax(dim=1)


def divergences(logits: Tensor) -> Tensor:
    """KL(p_l || p_k), mean over images, at [k, l] for logits [B, learners, columns]: k learns, and l stands still."""
    learning = logits.log_softmax(dim=2)
    still = learning.detach()
    return (still.exp()[:, None] * (still[:, None] - learning[:, :, None])).sum(dim=3).mean(dim=0)
