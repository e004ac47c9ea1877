"""Exemplars: a few images per class, chosen by herding at the end of a task, that later tasks train on too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from flashback.batches import Stream
from flashback.benchmarks import Images
from flashback.config import HostSettings, at_least_one
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.prediction import features_of
from flashback.memory import Memory, equal_quota, herd_classes
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class ExemplarSettings(HostSettings):
    """Settings of every host with exemplars."""

    memory_size: int | None = 2000  # exemplars in all
    memory_per_class: int | None = None  # or so many for each class, growing with the classes
    normalise: bool = False  # herd and average unit-length features

    def check(self) -> None:
        at_least_one(self, "memory_per_class", "memory_size")
        require(
            self.memory_per_class is not None or self.memory_size is not None,
            "set host.memory_size (in all) or host.memory_per_class",
        )

    def capacity(self, classes: int) -> int:
        """Return the exemplars that so many classes have together."""
        if self.memory_per_class is not None:
            return self.memory_per_class * classes
        assert self.memory_size is not None, "check ensures that one of the two is set"
        return self.memory_size


class ExemplarHost(Host):
    """A host with exemplars in `self.memory`: trains on new images and exemplars, and herds when a task ends."""

    Settings = ExemplarSettings
    family = "replay"
    memory: Memory

    def build(self) -> None:
        super().build()
        self.memory = Memory(self.settings.capacity(self.benchmark.classes), self.benchmark.image_shape)

    def check(self) -> None:
        classes = self.benchmark.classes
        total = self.settings.capacity(classes)
        require(
            total >= classes,
            f"host.memory_size is {total}, less than one exemplar for each of the {classes} classes; raise it",
        )

    def stream(self) -> Stream:
        """Return new images and exemplars as one data set, each at its natural frequency."""
        return super().stream().joined(self.memory_stream())

    def end(self) -> None:
        """Choose the exemplars anew."""
        self.refill()

    def memory_stream(self) -> Stream:
        """Return the exemplars alone."""
        filled = self.memory.filled
        slots = torch.arange(filled, device=self.device)
        return Stream(self.memory.images[:filled], self.memory.labels[:filled], slots)

    def balanced_stream(self) -> Stream:
        """Return all exemplars, and as many images of each new class as an old class has, drawn once per task."""
        exemplars, new = self.memory_stream(), self.task.train
        share = int(torch.bincount(exemplars.labels).max())
        generator = seeded_generator(self.config.seed, self.task.index, "balanced set")
        shuffled = torch.randperm(len(new), generator=generator)
        chosen = torch.cat([shuffled[new.y[shuffled] == c][:share] for c in self.task.classes])
        return Stream.of(Images(new.x[chosen], new.y[chosen]), self.device).joined(exemplars)

    @torch.no_grad()
    def refill(self, net: nn.Module | None = None) -> None:
        """Keep the head of the herding order of each old class, and herd the new classes (iCaRL, Alg. 4 and 5).

        Args:
            net: The network whose features are herded; None: the one that is trained.
        """
        seen = self.task.seen.stop
        quota = equal_quota(self.settings.capacity(seen), seen)
        labels = self.memory.labels[: self.memory.filled]
        kept = [torch.nonzero(labels == c).flatten()[:quota] for c in self.task.before]
        self.memory.keep(torch.cat(kept) if kept else labels[:0])
        images, targets = self.task.train.x, self.task.train.y
        features = self.embed(images, features_of, net)
        classes = [torch.nonzero(targets == c).flatten() for c in self.task.classes]
        rankings = herd_classes([features[rows.to(self.device)] for rows in classes], quota, self.settings.normalise)
        chosen = torch.cat([rows[ranking.cpu()] for rows, ranking in zip(classes, rankings, strict=True)])
        self.memory.append(images[chosen].to(self.device), targets[chosen].to(self.device))

    def exemplar_features(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of the exemplars of each class seen.

        In the middle of a task the new classes have no exemplars yet; all their images take their place.
        """
        stream = self.memory_stream()
        images, labels = stream.images, stream.labels
        if not bool((labels >= self.task.new.start).any()):
            images = torch.cat([images, self.task.train.x.to(self.device)])
            labels = torch.cat([labels, self.task.train.y.to(self.device)])
        return self.embed(images, features_of), labels
