"""Hosts that keep exemplars: a few images per class, chosen by herding at the end of a task."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashback.batches import Stream
from flashback.benchmarks import Images
from flashback.config import HostSettings, at_least_one
from flashback.errors import require
from flashback.hosts.base import Host, features_of
from flashback.memory import Memory, equal_quota, herd_classes
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class ExemplarSettings(HostSettings):
    """What every host with exemplars has."""

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
        """The exemplars of so many classes."""
        if self.memory_per_class is not None:
            return self.memory_per_class * classes
        assert self.memory_size is not None, "one of both is set, see check"
        return self.memory_size


class ExemplarHost(Host):
    """Adds an exemplar memory, the stream merged with it, and its refill by herding."""

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

    def quota(self) -> int:
        seen = self.task.seen.stop
        return equal_quota(self.settings.capacity(seen), seen)

    def stream(self) -> Stream:
        """New images and exemplars in one, each at its natural frequency."""
        return super().stream().joined(self.memory_stream())

    def end(self) -> None:
        self.refill()

    def memory_stream(self) -> Stream:
        filled = self.memory.filled
        slots = torch.arange(filled, device=self.device)
        return Stream(self.memory.images[:filled], self.memory.labels[:filled], slots)

    def balanced_stream(self) -> Stream:
        """All exemplars, and as many images of each new class as an old one has exemplars, drawn once a task."""
        exemplars, new = self.memory_stream(), self.task.train
        share = int(torch.bincount(exemplars.labels).max())
        generator = seeded_generator(self.config.seed, self.task.index, "balanced set")
        shuffled = torch.randperm(len(new), generator=generator)
        chosen = torch.cat([shuffled[new.y[shuffled] == c][:share] for c in self.task.classes])
        return Stream.of(Images(new.x[chosen], new.y[chosen]), self.device).joined(exemplars)

    @torch.no_grad()
    def refill(self, net: torch.nn.Module | None = None) -> None:
        """Old classes keep the head of their herding order, new classes are herded (iCaRL, Alg. 4 and 5)."""
        quota = self.quota()
        labels = self.memory.labels[: self.memory.filled]
        kept = [torch.nonzero(labels == c).flatten()[:quota] for c in self.task.before]
        self.memory.keep(torch.cat(kept) if kept else labels[:0])
        images, targets = self.task.train.x, self.task.train.y
        features = self.embed(images, features_of, net)
        members = [torch.nonzero(targets == c).flatten() for c in self.task.classes]
        ranked = herd_classes([features[own.to(self.device)] for own in members], quota, self.settings.normalise)
        chosen = torch.cat([own[ranking.cpu()] for own, ranking in zip(members, ranked, strict=True)])
        self.memory.append(images[chosen].to(self.device), targets[chosen].to(self.device))

    def exemplar_features(self) -> tuple[Tensor, Tensor]:
        """Features and labels of the images that stand for each class seen.

        In the middle of a task the new classes have no exemplars yet; all their images stand for them.
        """
        stream = self.memory_stream()
        images, labels = stream.images, stream.labels
        if not bool((labels >= self.task.new.start).any()):
            images = torch.cat([images, self.task.train.x.to(self.device)])
            labels = torch.cat([labels, self.task.train.y.to(self.device)])
        return self.embed(images, features_of), labels
