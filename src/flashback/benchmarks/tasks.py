"""Labelled images as read from files, and benchmarks: sequences of tasks that add classes or show known ones again."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from flashback.errors import FlashbackError, printable

Array = npt.NDArray[Any]
SMALL_SIDE = 64  # images up to this side are stored and cropped like those of CIFAR and Tiny ImageNet


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images on the CPU.

    Attributes:
        x: Images, uint8 [n, C, H, W]. May be mapped from a file: read it, never write to it.
        y: Labels, int64 [n], as positions in the class order.
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])


@dataclass(frozen=True, eq=False)
class Task:
    """A group of classes. Labels are positions in the class order, so the new classes of a task are contiguous.

    Attributes:
        index: The number of the task, from 0.
        classes: The labels of its new classes; may be empty from the second task on.
        train: Its training images.
        test: Its test images.
        revisited: The labels of the known classes that reappear in this task.
    """

    index: int
    classes: range
    train: Images
    test: Images
    revisited: tuple[int, ...] = ()

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
        """The columns of the new classes of this task."""
        return slice(self.classes.start, self.classes.stop)

    @property
    def seen(self) -> slice:
        """The columns of all classes up to and including this task."""
        return slice(0, self.classes.stop)

    @property
    def columns(self) -> tuple[int, ...]:
        """The columns of all classes that this task has images of."""
        return (*self.revisited, *self.classes)


@dataclass(frozen=True, eq=False, repr=False)
class Benchmark:
    """A dataset split into tasks.

    Attributes:
        name: The name of the benchmark, or of the file.
        dataset: The name of the dataset.
        order: The original labels of all classes, in learning order.
        tasks: The tasks, in learning order.
        mean: Mean of each channel, for images scaled to [0, 1].
        std: Standard deviation of each channel.
        class_names: The names of all classes, in learning order.
        checksum: The sha256 of the data.
        validation: The fraction of the training images that replaces the test images.
        validation_seed: The seed that selected them; None without validation.
        is_open: Whether more tasks may come than are known.
    """

    name: str
    dataset: str
    order: tuple[int, ...]
    tasks: tuple[Task, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    checksum: str
    validation: float = field(default=0.0, kw_only=True)
    validation_seed: int | None = field(default=None, kw_only=True)
    is_open: bool = field(default=False, kw_only=True)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        channels, height, width = self.tasks[0].train.image_shape
        return channels, height, width

    @property
    def classes(self) -> int:
        """The number of classes seen after the last task."""
        return self.tasks[-1].classes.stop

    @property
    def sizes(self) -> list[int]:
        """The number of classes of each task."""
        return [len(task.classes) for task in self.tasks]

    @property
    def names_by_label(self) -> list[str]:
        """The class names in the order of the original labels."""
        return [name for _, name in sorted(zip(self.order, self.class_names, strict=True))]

    def __repr__(self) -> str:
        images = sum(len(task.train) for task in self.tasks)
        shape = "×".join(map(str, self.image_shape))
        return f"Benchmark({self.name}: {len(self.tasks)} tasks, {self.classes} classes, {images:,} images of {shape})"


@dataclass(frozen=True, eq=False)
class RawSplit:
    """A training or test set: its labels, and a function that loads the images of given rows."""

    labels: Array  # int64 [n], original labels
    load: Callable[[Array], torch.Tensor]  # row numbers to uint8 [n, C, H, W]


@dataclass(frozen=True, eq=False)
class RawDataset:
    train: RawSplit
    test: RawSplit
    class_names: tuple[str, ...]  # by label
    image_shape: tuple[int, int, int]  # C, H, W
    checksum: str


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any exception that a damaged file causes in a decoder into one sentence."""
    try:
        yield
    except FlashbackError:
        raise
    except FileNotFoundError:
        raise FlashbackError(f"there is no file {printable(path)}; check the path") from None
    except PermissionError:
        raise FlashbackError(f"{printable(path)} may not be read by this user; change its permissions") from None
    except Exception as problem:  # decoders of damaged input raise nearly every kind of exception
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise FlashbackError(
            f"cannot read {printable(path)}: the file is damaged, truncated or of another kind ({reason})"
        ) from None


def data_folder(data: str | Path | None) -> Path:
    """The folder of datasets: the one given, else FLASHBACK_DATA, else the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "flashback"
    folder = Path(data or os.environ.get("FLASHBACK_DATA") or cache).expanduser()
    if folder.exists() and not folder.is_dir():
        raise FlashbackError(f"the data folder {folder} is a file; give the folder that contains the dataset")
    return folder
