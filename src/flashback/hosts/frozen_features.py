"""Frozen features: a component for hosts that train nothing and compute a classifier from sums over all images seen."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.prediction import features_of
from flashback.hosts.stages import Stage
from flashback.knowledge import bytes_of
from flashback.nets import Backbone, Net


class StatisticsHead(nn.Module):
    """A head that is computed from sums over images; it has no parameters, only buffers."""

    @abstractmethod
    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add images to the sums: features [n, width] and class columns [n]."""

    @abstractmethod
    def grow(self, classes: int) -> None:
        """Make room for more classes; existing sums stay.

        Args:
            classes: The total number of classes.
        """


class FeatureNet(Net):
    """A frozen backbone and a head that is computed."""

    head: StatisticsHead

    def __init__(self, backbone: Backbone, head: StatisticsHead) -> None:
        super().__init__(backbone.freeze(), head)

    def grow(self, classes: int) -> None:
        self.head.grow(classes)


class FrozenFeatureHost(Host):
    """Freezes the backbone and computes the head from sums that continue over all tasks.

    A task has one stage without epochs, so no gradient step is taken. Sums do not depend on the order of tasks, and
    known classes may come again. There is a column for every class seen; only `grow` adds columns.
    """

    family = "frozen"
    has_knowledge = False
    refuses_flashback_because = "takes no gradient steps: its classifier is computed from sums over all tasks"
    scores_unseen = False
    net: FeatureNet

    def new_net(self) -> FeatureNet:
        backbone = self.new_backbone()
        return FeatureNet(backbone, self.new_head(backbone.width, len(self.benchmark.tasks[0].classes)))

    def new_head(self, width: int, classes: int) -> StatisticsHead:
        """Make the head for features of this width, with columns for the classes of the first task."""
        raise NotImplementedError

    def check(self) -> None:
        require(
            self.config.training.backbone_lr_factor == 1,
            f"training.backbone_lr_factor does nothing with {self.settings.name}, whose backbone is frozen; leave it "
            "out",
        )
        require(
            self.config.training.average is None and self.config.training.merge is None,
            f"training.average and training.merge do nothing with {self.settings.name}, which trains no weights; leave "
            "them out",
        )

    def can_revisit(self) -> bool:
        """Known classes may come again: their sums continue."""
        return True

    def grow(self, columns: int) -> None:
        self.net.grow(columns)

    def stages(self) -> list[Stage]:
        return [self.main_stage(name="compute", epochs=0)]

    def allocate(self) -> None:
        self.grow(self.task.seen.stop)

    def end(self) -> None:
        self.add(torch.arange(len(self.task.train)))

    @torch.no_grad()
    def add(self, rows: Tensor) -> None:
        """Add these images of the task to the sums."""
        for piece in self.pieces(rows):
            self.net.head.add(*self.features_and_labels(piece))

    def pieces(self, rows: Tensor) -> tuple[Tensor, ...]:
        return torch.split(rows, self.config.training.evaluation_batch)

    def features_and_labels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        images = self.task.train
        return self.embed(images.x[rows], features_of), images.y[rows].to(self.device)

    def knowledge_bytes(self) -> dict[str, int]:
        """Return the bytes of the statistics."""
        return {"stable": bytes_of(self.net.head)}


def with_rows(table: Tensor, rows: int) -> Tensor:
    """Pad a table with rows of zeros, up to `rows` rows."""
    return F.pad(table, (0, 0, 0, max(0, rows - len(table))))
