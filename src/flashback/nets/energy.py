"""Modules that learn alone, by prototypes of the old and of the unknown, and the numbers that join them (BEEF)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.growing import Concatenation, GrowingNet
from flashback.nets.heads import grown_linear
from flashback.nets.modes import evaluating


@dataclass
class EnergyOutput(Output):
    """The logits are u = [b ; g], of backward prototypes (one a group of old classes) and new classes."""

    unknown: Tensor  # f, of forward prototypes: one for every class seen, which claims what only resembles that class

    def all_logits(self) -> Tensor:
        return torch.cat([self.logits, self.unknown], dim=1)


class EnergyNet(GrowingNet):
    """A module that learns alone: it tells new classes apart, and from groups of old ones and from the unknown."""

    pseudo_labels: Tensor  # a column of u for each class seen: the group of an old one, the own of a new one

    def __init__(self, backbone: Backbone, groups: Sequence[int], new: int) -> None:
        backward = len(set(groups))
        super().__init__(backbone, backward + new)
        self.backward = backward
        self.unknown = grown_linear(None, backbone.width, len(groups) + new)
        self.register_buffer("pseudo_labels", torch.tensor([*groups, *range(backward, backward + new)]))

    def forward(self, x: Tensor) -> EnergyOutput:
        known = super().forward(x)
        return EnergyOutput(known.features, known.logits, self.unknown(known.features))

    def known(self) -> Net:
        """What answers on real images."""
        return Net(self.backbone, self.head)

    @torch.enable_grad()
    def sample(self, x: Tensor, steps: int, rate: float, noise: float, generator: torch.Generator) -> Tensor:
        """Langevin steps from given images towards what the module takes for known classes, in evaluation mode."""
        with evaluating(self):
            for _ in range(steps):
                x = x.detach().requires_grad_()
                output = self(x)
                unknown = F.log_softmax(output.all_logits(), dim=1)[:, output.logits.shape[1] :]
                (slope,) = torch.autograd.grad(unknown.logsumexp(dim=(0, 1)), x)
                x = x - rate * slope + noise * torch.randn(x.shape, generator=generator, device=x.device)
        return x.detach()


class Fusion(nn.Module):
    """Adds the calibrated logit of its backward prototype, (1 + a) b + s, to the old logit of each old class."""

    groups: Tensor

    def __init__(self, groups: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("groups", torch.tensor(groups))
        self.scale, self.shift = (nn.Parameter(torch.zeros(len(set(groups)))) for _ in range(2))

    def forward(self, old: Output, new: Output) -> Output:
        backward, own = new.logits.tensor_split([len(self.scale)], dim=1)
        raised = ((1 + self.scale) * backward + self.shift)[:, self.groups]
        features = torch.cat([old.features, new.features], dim=1)
        return Output(features, torch.cat([old.logits + raised, own], dim=1))

    @torch.no_grad()
    def folded(self, old: Concatenation, new: EnergyNet) -> Concatenation:
        """The same network with one head: calibrated backward rows beside the old rows, new rows beside zeros."""
        classes, width = old.head.weight.shape
        head = grown_linear(old.head, width + new.backbone.width, classes + len(new.head.bias) - new.backward)
        scale = 1 + self.scale[self.groups]
        head.weight[:classes, width:] = scale[:, None] * new.head.weight[self.groups]
        head.bias[:classes] += scale * new.head.bias[self.groups] + self.shift[self.groups]
        head.weight[classes:, :width] = 0
        head.weight[classes:, width:] = new.head.weight[new.backward :]
        head.bias[classes:] = new.head.bias[new.backward :]
        return Concatenation([*old.parts, new.backbone], head)
