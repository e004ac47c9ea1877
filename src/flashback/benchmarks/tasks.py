"""What a benchmark is: tasks whose classes arrive one group after another."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

SMALL_SIDE = 64  # images up to this side are kept, and cropped, as those of CIFAR and Tiny ImageNet are


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images on the CPU; `x` may share memory with a file, so it is read and never written."""

    x: torch.Tensor  # uint8 [n, C, H, W]
    y: torch.Tensor  # int64 [n], positions in the class order

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True, eq=False)
class Task:
    """One group of new classes. Labels are positions in the class order, so a task's classes are contiguous columns."""

    index: int
    classes: range
    train: Images
    test: Images

    @property
    def before(self) -> range:
        """The classes of all earlier tasks."""
        return range(self.classes.start)

    @property
    def old(self) -> slice:
        """The columns of the classes of earlier tasks."""
        return slice(0, self.classes.start)

    @property
    def new(self) -> slice:
        """The columns of this task's own classes."""
        return slice(self.classes.start, self.classes.stop)

    @property
    def seen(self) -> slice:
        """The columns of the classes of all tasks up to and including this one."""
        return slice(0, self.classes.stop)


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark:
    """A dataset, a class order and the tasks they make."""

    name: str
    dataset: str
    order: tuple[int, ...]  # original labels in learning order, of the whole dataset
    tasks: tuple[Task, ...]
    mean: tuple[float, ...]  # per channel, for images scaled to [0, 1]
    std: tuple[float, ...]
    class_names: tuple[str, ...]  # in learning order
    checksum: str  # sha256 of the data as read
    validation: float = field(default=0.0, kw_only=True)  # share of the training images that stands in for test images
    validation_seed: int | None = field(default=None, kw_only=True)  # what it was drawn with

    @property
    def image_shape(self) -> tuple[int, int, int]:
        channels, height, width = self.tasks[0].train.x.shape[1:]
        return channels, height, width

    @property
    def classes(self) -> int:
        """How many classes are seen after the last task."""
        return self.tasks[-1].classes.stop

    @property
    def sizes(self) -> list[int]:
        """How many classes each task brings."""
        return [len(task.classes) for task in self.tasks]

    def __repr__(self) -> str:
        images = sum(len(task.train) for task in self.tasks)
        side = "×".join(map(str, self.image_shape))
        return f"Benchmark({self.name}: {len(self.tasks)} tasks, {self.classes} classes, {images:,} images of {side})"
