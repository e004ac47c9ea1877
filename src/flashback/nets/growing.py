"""Networks that grow: a head with one row for each class seen so far, and new modules beside old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import LinearHead, grown_linear


class GrowingNet(Net):
    """A backbone and a linear head with one row for each class seen so far; a grown head keeps its old rows."""

    head: LinearHead

    def __init__(self, backbone: Backbone, classes: int, old_head: LinearHead | None = None) -> None:
        super().__init__(backbone, grown_linear(old_head, backbone.width, classes))


@dataclass
class BoostedOutput(Output):
    enhanced: Tensor  # logits from the new module alone
    old: Output  # of the frozen network


class Boosted(nn.Module):
    """A new module m beside the frozen network h_s, with a head on [h_s ; m] (Eq. 7) and one on m alone.

    The first head starts from the weights of the old head; the second improves the features of m.
    """

    def __init__(self, module: Backbone, old_head: LinearHead, classes: int, enhanced: int) -> None:
        super().__init__()
        self.module = GrowingNet(module, enhanced)
        self.head = grown_linear(old_head, old_head.in_features + module.width, classes)

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
