"""Networks that grow: a head with rows for the classes met so far, and new modules beside old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from flashback.nets.base import Backbone, Net, Output
from flashback.nets.heads import LinearHead, grown_linear


class GrowingNet(Net):
    """A backbone and a linear head with a row for every class met so far; a head that grows keeps its old rows."""

    head: LinearHead

    def __init__(self, backbone: Backbone, classes: int, old_head: LinearHead | None = None) -> None:
        super().__init__(backbone, grown_linear(old_head, backbone.width, classes))


@dataclass
class BoostedOutput(Output):
    enhanced: Tensor  # logits from the new module alone
    old: Output  # what the frozen network says


class Boosted(nn.Module):
    """The new module m beside the frozen h_s: a head on [h_s ; m] (Eq. 7), and one on m alone to enhance its features.

    m starts as it is given; the first head keeps what the old one knew, the second tells apart what its host wants.
    """

    def __init__(self, module: Backbone, old_head: LinearHead, classes: int, enhanced: int) -> None:
        super().__init__()
        self.module = GrowingNet(module, enhanced)
        self.head = grown_linear(old_head, old_head.in_features + module.width, classes)

    def forward(self, old: Output, x: Tensor) -> BoostedOutput:
        own = self.module(x)
        features = torch.cat([old.features, own.features], dim=1)
        return BoostedOutput(features, self.head(features), own.logits, old)


class Concatenation(nn.Module):
    """All modules so far and one head on their joint features."""

    def __init__(self, modules: Iterable[nn.Module], head: LinearHead) -> None:
        super().__init__()
        self.parts, self.head = nn.ModuleList(modules), head

    def forward(self, x: Tensor) -> Output:
        features = torch.cat([part(x).float() for part in self.parts], dim=1)
        return Output(features, self.head(features))

    @property
    def first(self) -> Backbone:
        return cast(Backbone, self.parts[0])


class Whole(nn.Module):
    """Networks of a host run as one. It is made where it is needed and owns nothing, so no tensor has two names."""

    def __init__(self, run: Callable[[Tensor], Output], *parts: nn.Module) -> None:
        super().__init__()
        self.run, self.parts = run, nn.ModuleList(parts)
        self.training = any(part.training for part in parts)

    def forward(self, x: Tensor) -> Output:
        return self.run(x)
