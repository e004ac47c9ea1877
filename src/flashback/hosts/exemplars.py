"""Exemplars: a few images per class, chosen by herding at the end of a task, that later tasks train on too."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from flashback.batches import Stream
from flashback.benchmarks import Images
from flashback.config import Count, HostSettings
from flashback.errors import require
from flashback.hosts.base import Host
from flashback.hosts.prediction import features_of
from flashback.memory import Memory
from flashback.seeds import seeded_generator


@dataclass(frozen=True)
class ExemplarSettings(HostSettings):
    """Settings of every host with exemplars."""

    memory_size: Count | None = 2000  # exemplars in all
    memory_per_class: Count | None = None  # or this many for each class, growing with the classes
    normalise: bool = False  # herd and average unit-length features

    def check(self) -> None:
        super().check()
        require(
            self.memory_per_class is not None or self.memory_size is not None,
            "set host.memory_size (in all) or host.memory_per_class",
        )

    def capacity(self, classes: int) -> int:
        """Return the number of exemplars of all classes together."""
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
        self.memory = Memory(self.settings.capacity(self.columns), self.benchmark.image_shape)

    def grow(self, columns: int) -> None:
        super().grow(columns)
        self.check_memory(columns)
        self.memory.enlarge(self.settings.capacity(columns))

    def check(self) -> None:
        self.check_memory(self.benchmark.classes)

    def check_memory(self, classes: int) -> None:
        total = self.settings.capacity(classes)
        require(
            total >= classes,
            f"host.memory_size is {total}, less than one exemplar for each of the {classes} classes; raise it",
        )

    def stream(self) -> Stream:
        """Return new images and exemplars as one data set, each at its natural frequency."""
        return super().stream().joined(self.memory_stream())

    def end(self) -> None:
        """Choose the exemplars again."""
        self.refill()

    def memory_stream(self) -> Stream:
        """Return the exemplars only."""
        filled = self.memory.filled
        slots = torch.arange(filled, device=self.device)
        return Stream(self.memory.images[:filled], self.memory.labels[:filled], slots)

    def balanced_stream(self) -> Stream:
        """Return all exemplars, and as many images of each new class as an old class has, drawn once per task."""
        exemplars, new = self.memory_stream(), self.task.train
        share = int(torch.bincount(exemplars.labels).max())
        generator = seeded_generator(self.config.seed, self.task.index, "balanced set")
        shuffled = torch.randperm(len(new), generator=generator)
        rows = torch.cat([shuffled[new.y[shuffled] == c][:share] for c in self.task.classes])
        return Stream.of(Images(new.x[rows], new.y[rows]), self.device).joined(exemplars)

    @torch.no_grad()
    def refill(self, net: nn.Module | None = None) -> None:
        """Keep the first exemplars of each old class, in herding order, and herd the new classes (iCaRL, Alg. 4 and 5).

        A class that comes again is herded again, from its exemplars and its new images.

        Args:
            net: The network whose features are herded; None: the one that is trained.
        """
        seen = self.task.seen.stop
        quota = self.settings.capacity(seen) // seen
        stored, labels = self.memory.images[: self.memory.filled], self.memory.labels[: self.memory.filled]
        images, targets = self.task.train.x, self.task.train.y
        if self.task.revisited:
            again = torch.isin(labels, torch.tensor(self.task.revisited, device=self.device))
            images, targets = torch.cat([images, stored[again].cpu()]), torch.cat([targets, labels[again].cpu()])
        slots = [torch.nonzero(labels == c).flatten()[:quota] for c in self.task.before if c not in self.task.revisited]
        self.memory.keep(torch.cat(slots) if slots else labels[:0])
        features = self.embed(images, features_of, net)
        classes = [torch.nonzero(targets == c).flatten() for c in self.task.columns]
        rankings = herd_classes([features[rows.to(self.device)] for rows in classes], quota, self.settings.normalise)
        selection = torch.cat([rows[ranking.cpu()] for rows, ranking in zip(classes, rankings, strict=True)])
        self.memory.append(images[selection].to(self.device), targets[selection].to(self.device))

    def exemplar_features(self) -> tuple[Tensor, Tensor]:
        """Return features and labels of the exemplars of each class seen.

        During a task the new classes have no exemplars yet; all their images are used instead.
        """
        stream = self.memory_stream()
        images, labels = stream.images, stream.labels
        if self.task.classes and not bool((labels >= self.task.new.start).any()):
            images = torch.cat([images, self.task.train.x.to(self.device)])
            labels = torch.cat([labels, self.task.train.y.to(self.device)])
        return self.embed(images, features_of), labels


# ---------------------------------------------------------------- herding and class means


@torch.no_grad()
def herd_classes(features: Sequence[Tensor] | Tensor, quota: int, normalise: bool = False) -> list[Tensor]:
    """Rank up to `quota` rows of each class, [n_i, d], by herding (iCaRL, Alg. 4), best first.

    Each step adds the row that brings the mean of the chosen rows closest to the class mean. Every prefix is the
    ranking for a smaller quota. It works in float64, where only true duplicates tie; the first of them is selected.
    Classes of similar size are processed together, padded to the largest of them.
    """
    batches: dict[int, list[int]] = {}
    for k, rows in enumerate(features):
        batches.setdefault(len(rows).bit_length(), []).append(k)
    selected: dict[int, Tensor] = {}
    for members in batches.values():
        selected |= zip(members, _herd_padded([features[k] for k in members], quota, normalise), strict=True)
    return [selected[k] for k in range(len(features))]


def _herd_padded(features: Sequence[Tensor], quota: int, normalise: bool) -> list[Tensor]:
    sizes = [len(rows) for rows in features]
    pool = pad_sequence([_prepared(rows, normalise) for rows in features], batch_first=True)
    size = torch.tensor(sizes, device=pool.device)
    mean = pool.sum(1) / size.clamp(min=1)[:, None]
    unavailable = torch.arange(pool.shape[1], device=pool.device) >= size[:, None]  # padding cannot be selected
    classes = torch.arange(len(sizes), device=pool.device)
    total, order = torch.zeros_like(mean), []
    for step in range(1, min(quota, max(sizes)) + 1):
        # argmin of |mean - (total + x) / step|, multiplied by step
        distance = torch.linalg.vector_norm(pool - (step * mean - total)[:, None], dim=2)
        best = distance.masked_fill_(unavailable, torch.inf).argmin(1)
        total += pool[classes, best]
        unavailable[classes, best] = True
        order.append(best)
    ranking = torch.stack(order, 1) if order else classes.new_empty(len(sizes), 0)
    return [row[: min(quota, n)] for row, n in zip(ranking, sizes, strict=True)]


@torch.no_grad()
def class_means(features: Tensor, labels: Tensor, classes: int, normalise: bool = False) -> Tensor:
    """The mean features of each class, [classes, d]; zeros for a class without samples.

    With `normalise`, features and then means are scaled to unit length (iCaRL).
    """
    # A product with a matrix of members is deterministic on CUDA.
    members = (torch.arange(classes, device=labels.device)[:, None] == labels).double()
    means = members @ _prepared(features, normalise) / members.sum(1, keepdim=True).clamp(min=1)
    if normalise:
        means = F.normalize(means, dim=1, eps=1e-8)
    return means.to(features.dtype)


def _prepared(features: Tensor, normalise: bool) -> Tensor:
    return F.normalize(features.double(), dim=1, eps=1e-8) if normalise else features.double()
