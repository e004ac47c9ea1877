"""CAF (Wang et al. 2023): several narrow learners under EWC that forget actively and learn from each other."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.config import Count, NotNegative, Positive
from flashback.hosts.base import HOSTS, trainable
from flashback.hosts.ewc import EWC, FisherSettings
from flashback.hosts.stages import Step
from flashback.nets.combined import ParallelBackbone, ParallelNet, ParallelOutput

SHARPNESS = 100.0  # of the softmax over the learners to learn from; it nearly selects a single one


@dataclass(frozen=True)
class CAFSettings(FisherSettings):
    learners: Count = 5
    learner_width: Positive = 0.45  # channels of a learner, as a share of the net's: five have the size of one net
    forgetting: NotNegative = 1e-8  # lambda_af, weight of active forgetting
    co_learning: NotNegative = 0.02  # lambda_kld, weight of the divergence between learners


@HOSTS.register("caf")
class CAF(EWC):
    """EWC on narrow networks in parallel, whose features are summed before one head.

    Two terms are added. Active forgetting, from the second task on, is lambda_af / 2 * sum a ||W||^2 over the tensors W
    of all learners, a being a softmax over the learners for each tensor. Co-learning is lambda_kld * sum g KL between
    the predictions of the learners, g being a softmax over those that a learner learns from. The inputs of both
    softmaxes are trained, and drawn again for each task.
    """

    Settings = CAFSettings
    has_one_backbone = False
    net: ParallelNet

    def build(self) -> None:
        super().build()
        learners = self.settings.learners
        tensors = len(trainable(self.net.backbone)) // learners
        self.forget_logits = nn.Parameter(torch.zeros(tensors, learners))  # of a, for each tensor by learner
        self.follow_logits = nn.Parameter(torch.zeros(learners, learners))  # of g, for each learner (row) by the others

    def new_net(self) -> ParallelNet:
        width = self.settings.learner_width
        backbone = ParallelBackbone([self.new_backbone(width) for _ in range(self.settings.learners)])
        return ParallelNet(backbone, nn.Linear(backbone.width, self.columns))

    @torch.no_grad()
    def begin(self) -> None:
        """Draw the inputs of the softmaxes; in the first task they stay at 0, where all have the same weight."""
        if self.task.index > 0:
            for logits in (self.forget_logits, self.follow_logits):
                logits.copy_(torch.randn(logits.shape, generator=self.generator, device=self.device))

    def trained_parameters(self) -> list[nn.Parameter]:
        return trainable(self.net) + ([self.forget_logits, self.follow_logits] if self.task.index > 0 else [])

    def losses(self, step: Step) -> Mapping[str, Tensor]:
        """L = EWC's loss + active forgetting + co-learning."""
        assert isinstance(step.output, ParallelOutput)
        terms = dict(super().losses(step))
        if self.task.index > 0:
            terms["forgetting"] = self.settings.forgetting / 2 * self.weighted_norm()
        predictions = step.output.separate[:, :, self.softmax_columns()]
        weights = softmax_of_mean_one(SHARPNESS * self.follow_logits)
        terms["co-learning"] = self.settings.co_learning * (weights * divergences(predictions)).sum()
        return terms

    def weighted_norm(self) -> Tensor:
        """Compute sum a ||W||^2 over the tensors of all learners; the head counts with weight 1."""
        learners = [squared_norms(learner) for learner in self.net.backbone.learners]
        weighted: Tensor = (softmax_of_mean_one(self.forget_logits) * torch.stack(learners, dim=1)).sum()
        return weighted + squared_norms(self.net.head).sum()


def squared_norms(module: nn.Module) -> Tensor:
    """Compute ||W||^2 of each trained tensor."""
    return torch.stack([parameter.square().sum() for parameter in trainable(module)])


def softmax_of_mean_one(logits: Tensor) -> Tensor:
    """Compute a softmax over each row, scaled to a mean of 1."""
    return logits.shape[1] * logits.softmax(dim=1)


def divergences(logits: Tensor) -> Tensor:
    """Compute KL(p_l || p_k), mean over images, at [k, l] for logits [B, learners, columns]; only k has a gradient."""
    log_p = logits.log_softmax(dim=2)
    target = log_p.detach()
    return (target.exp()[:, None] * (target[:, None] - log_p[:, :, None])).sum(dim=3).mean(dim=0)
