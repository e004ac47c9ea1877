"""Networks that grow: a head with one row for each class seen so far, and new modules beside old ones."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output, evaluating, full_precision


class LinearHead(nn.Linear):
    """A linear classifier with the default initialisation of PyTorch."""

    def forward(self, input: Tensor) -> Tensor:
        with full_precision(input):
            return super().forward(input.float())


def grown_linear(old: nn.Linear | None, in_features: int, out_features: int) -> LinearHead:
    """Create a head (Kaiming-uniform with linear gain, zero bias) and copy the old rows, columns and biases into it."""
    new = LinearHead(in_features, out_features)
    bound = math.sqrt(3 / in_features)
    with torch.no_grad():
        new.weight.uniform_(-bound, bound)
        new.bias.zero_()
        if old is not None:
            new.to(old.weight.device)
            new.weight[: old.out_features, : old.in_features] = old.weight
            new.bias[: old.out_features] = old.bias
    return new


class GrowingNet(Net):
    """A backbone and a linear head with one row for each class seen so far, the first of them those of `old_head`."""

    head: LinearHead

    def __init__(self, backbone: Backbone, classes: int, old_head: LinearHead | None = None) -> None:
        super().__init__(backbone, grown_linear(old_head, backbone.width, classes))

    def grow(self, classes: int) -> None:
        """Do nothing: this network grows with a new module or a student, not by itself."""


@dataclass
class BoostedOutput(Output):
    enhanced: Tensor  # logits of the new module alone
    old: Output  # of the frozen network


class Boosted(nn.Module):
    """A new module m beside the frozen network h_s, with a head on [h_s ; m] (FL Eq. 7) and one on m alone.

    The first head starts from the weights of the old head; the second, of `enhancement_rows` rows, improves the
    features of m.
    """

    def __init__(self, module: Backbone, old_head: LinearHead, classes: int, enhancement_rows: int) -> None:
        super().__init__()
        self.module = GrowingNet(module, enhancement_rows)
        self.head = grown_linear(old_head, old_head.in_features + module.width, classes)

    def grow(self, classes: int) -> None:
        """Do nothing: the next task makes a wider head."""

    def forward(self, old: Output, x: Tensor) -> BoostedOutput:
        new = self.module(x)
        features = torch.cat([old.features, new.features], dim=1)
        return BoostedOutput(features, self.head(features), new.logits, old)


class Concatenation(nn.Module):
    """All backbones so far and one head on their concatenated features."""

    def __init__(self, modules: Iterable[nn.Module], head: LinearHead) -> None:
        super().__init__()
        self.parts, self.head = nn.ModuleList(modules), head

    def forward(self, x: Tensor) -> Output:
        features = torch.cat([part(x).float() for part in self.parts], dim=1)
        return Output(features, self.head(features))

    @property
    def first(self) -> Backbone:
        return cast(Backbone, self.parts[0])


class ComposedNet(nn.Module):
    """Several networks of a host run as one. Build it where needed; do not store it, or tensors get two names."""

    def __init__(self, run: Callable[[Tensor], Output], *parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(parts)
        self.training = any(part.training for part in parts)

    def forward(self, x: Tensor) -> Output:
        return self.run(x)


def pad_classes(logits: Tensor, classes: int) -> Tensor:
    """Add a column of -inf for each class without a row, so that it is never predicted."""
    return F.pad(logits, (0, classes - logits.shape[1]), value=-torch.inf)


@dataclass
class EnergyOutput(Output):
    """The logits are u = [b ; g]: backward prototypes (one per group of old classes), then new classes."""

    unknown: Tensor  # f, logits of forward prototypes: one per class seen, for inputs that only resemble that class

    def all_logits(self) -> Tensor:
        return torch.cat([self.logits, self.unknown], dim=1)


class EnergyNet(GrowingNet):
    """A module trained independently: it separates new classes, groups of old classes, and unknown inputs."""

    pseudo_labels: Tensor  # for each class seen, its column of u: that of its group if old, its own if new

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
        """The part that is used for prediction."""
        return Net(self.backbone, self.head)

    @torch.enable_grad()
    def sample(self, x: Tensor, steps: int, rate: float, noise: float, generator: torch.Generator) -> Tensor:
        """Move images towards known classes by Langevin steps, in evaluation mode."""
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
        backward, current = new.logits.tensor_split([len(self.scale)], dim=1)
        correction = ((1 + self.scale) * backward + self.shift)[:, self.groups]
        features = torch.cat([old.features, new.features], dim=1)
        return Output(features, torch.cat([old.logits + correction, current], dim=1))

    @torch.no_grad()
    def folded(self, old: Concatenation, new: EnergyNet) -> Concatenation:
        """Fold the fusion into one head: calibrated backward rows beside old rows, zeros beside new rows."""
        classes, width = old.head.weight.shape
        head = grown_linear(old.head, width + new.backbone.width, classes + len(new.head.bias) - new.backward)
        scale = 1 + self.scale[self.groups]
        head.weight[:classes, width:] = scale[:, None] * new.head.weight[self.groups]
        head.bias[:classes] += scale * new.head.bias[self.groups] + self.shift[self.groups]
        head.weight[classes:, :width] = 0
        head.weight[classes:, width:] = new.head.weight[new.backward :]
        head.bias[classes:] = new.head.bias[new.backward :]
        return Concatenation([*old.parts, new.backbone], head)
