"""The versions of a model that keeps learning, in one folder.

    model.json          how the model learns; written once
    current.json        the number of the version in use
    versions/0001/      version.json, the model with its memory, and the images held out for judging
    update/             the update that is being learned, until it becomes a version

Every version is complete in itself, so going back to one is a change of `current.json`. A new version appears by the
renaming of its folder.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from flashback.benchmarks import Images
from flashback.config import CheckpointConfig, build
from flashback.errors import FlashbackError, printable, require
from flashback.files import (
    LARGEST_RECORD,
    LOCK,
    CannotWriteError,
    explaining_failure,
    make_folder,
    read_file,
    refuse_special,
    remove_folder,
    sha256,
    write_atomically,
)
from flashback.records import CHECKPOINT, FolderInUseError, RunFolder, is_begun
from flashback.training.checkpoints import Checkpoints, digest_of
from flashback.training.trainer import RunState

FORMAT = 1
SETTINGS, CURRENT, VERSION, VERSIONS, UPDATE = "model.json", "current.json", "version.json", "versions", "update"
DROPPED = f".{UPDATE}"  # an update that is being removed
CHECKSUM = "checksum"  # in version.json: a digest of everything else in it
HELD_OUT = "held-out.safetensors"
UPDATE_RECORD = "update.json"  # the number and the digest of the update that is being learned
ACCEPTED, REFUSED = "accepted", "refused"
SIDES = range(8, 2**14)  # of images
RESTORE = "restore it from a copy of the folder"
REMEDY = dict.fromkeys((CURRENT, VERSION), "`flashback rollback MODEL VERSION` chooses a version that is whole")
REMEDY[UPDATE_RECORD] = "remove its folder to drop the unfinished update"


@dataclass(frozen=True)
class PastTask:
    """What an update brought: the number of new classes, and the columns of known ones that reappeared."""

    new: int
    revisited: tuple[int, ...]


@dataclass(frozen=True)
class Version:
    """One update of a model.

    Attributes:
        number: Its number, from 1.
        parent: The version that it continues; None for the first.
        date: When it was finished, in UTC.
        images: How many images it was trained on.
        held_out: How many of its images were held out.
        skipped: How many files could not be read.
        copies: How many images, trained on or in the memory, are equal to held-out ones, which makes the accuracies too
            high.
        classes: All classes known, in the order of the model's columns.
        cuts: The place of an image, a number from 0 to 1, below which it is held out, by class.
        new: The classes that this update added.
        revisited: The known classes that it had more images of.
        judged: How many held-out images of each class the accuracies are measured on.
        before: Percent correct of each known class by the parent, on images held out in earlier updates.
        after: The same by this version; and that of new classes, on images held out in this update.
        decision: "accepted", or "refused" by a limit on the drop in accuracy.
        reason: Why it was refused; empty otherwise.
        seconds: How long the training took.
        tasks: All updates up to this one.
        image_shape: Channels, height and width of the images.
        mean: Mean of each channel.
        std: Standard deviation of each channel.
        content: A digest of the images.
        digest: What the stored model is bound to: the settings, the parent and the images.
    """

    number: int
    parent: int | None
    date: str
    images: int
    held_out: int
    skipped: int
    copies: int
    classes: tuple[str, ...]
    cuts: dict[str, float]
    new: tuple[str, ...]
    revisited: tuple[str, ...]
    judged: dict[str, int]
    before: dict[str, float]
    after: dict[str, float]
    decision: str
    reason: str
    seconds: float
    tasks: tuple[PastTask, ...]
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    content: str
    digest: str

    def is_consistent(self) -> bool:
        """Whether its entries go together; those of a record that somebody else made may not."""
        channels, *sides = self.image_shape or (0,)
        columns = range(len(self.classes))
        return (
            channels in (1, 3)
            and len(sides) == 2
            and all(side in SIDES for side in sides)
            and len(self.mean) == len(self.std) == channels
            and min(self.std) > 0
            and len(set(self.classes)) == len(self.classes) == sum(task.new for task in self.tasks)
            and all(task.new >= 0 and set(task.revisited) <= set(columns) for task in self.tasks)
            and {*self.before, *self.after, *self.judged} <= set(self.cuts) == set(self.classes)
        )

    @property
    def known(self) -> tuple[str, ...]:
        """The classes known before this update that can be judged."""
        return tuple(name for name in self.before if name in self.after)

    @property
    def drop(self) -> float | None:
        """How many points of mean accuracy the known classes lost; None if none can be judged."""
        known = self.known
        return sum(self.before[name] - self.after[name] for name in known) / len(known) if known else None

    def change(self, name: str) -> float:
        """How many points of accuracy a known class won, or lost if negative."""
        return self.after[name] - self.before[name]

    def accuracy(self, names: tuple[str, ...] | None = None) -> float | None:
        """Return the mean accuracy over classes after the update, in percent.

        Args:
            names: The classes; None: all. Classes without held-out images do not count.

        Returns:
            The mean, or None if none of the classes has held-out images.
        """
        values = [self.after[name] for name in (self.classes if names is None else names) if name in self.after]
        return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class ModelSettings:
    """How a model learns: what its first update decided.

    Attributes:
        config: The configuration of host, training and flashback.
        image_size: The side of the images; None: chosen by the first ones.
        holdout: The share of the images of each class that is held out.
        held_out_per_class: The most held-out images that are kept of a class.
        format: The version of the folder's layout.
    """

    config: dict[str, Any]
    image_size: int | None = None
    holdout: float = 0.1
    held_out_per_class: int = 50
    format: int = field(default=FORMAT, kw_only=True)


class ModelFolder:
    """Reads and writes the folder of a model."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return (self.path / SETTINGS).exists()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Allow one process to change the folder."""
        try:
            make_folder(self.path)
        except CannotWriteError as problem:
            reason = os.strerror(problem.errno or 0)
            raise FlashbackError(
                f"{printable(self.path)} cannot be the folder of a model ({reason}); choose another"
            ) from None
        with RunFolder(self.path).lock():
            for folder in (self.path / VERSIONS, self.update):
                refuse_special(folder)
            parts = [part for part in self.path.glob(f"{VERSIONS}/.*") if part.name[1:].isdecimal()]
            for part in (*parts, *self.path.glob(DROPPED)):  # of a process that was killed
                remove_folder(part)
            yield

    # ------------------------------------------------------------ settings and the current version

    def check_new_folder(self) -> None:
        """Refuse a folder that holds a model, a run or other files."""
        path = printable(self.path)
        require(not self.exists, f"{path} holds a model already; `flashback learn` continues it")
        require(not is_begun(self.path), f"{path} holds a run, which is not a model that learns on; give a new folder")
        others = [entry for entry in self.path.glob("*") if not entry.name.startswith(".")]
        require(not others, f"{path} holds other files; give a new folder for the model")

    def write_settings(self, settings: ModelSettings) -> None:
        self.write(self.path / SETTINGS, asdict(settings))

    def discard_if_empty(self) -> None:
        """Remove a new model that has learned nothing, so that it can be made with other settings."""
        with suppress(FolderInUseError), self.lock():
            if not self.numbers() and not self.update.exists():
                (self.path / SETTINGS).unlink(missing_ok=True)
                (self.path / LOCK).unlink(missing_ok=True)
                with suppress(OSError):  # other files
                    self.path.rmdir()

    def settings(self) -> ModelSettings:
        values = self.read(self.path / SETTINGS)
        require(
            isinstance(values.get("format"), int) and values["format"] <= FORMAT,
            f"{printable(self.path)} was made by a newer version of flashback; update this one",
        )
        return build(ModelSettings, values, "model.json: ")

    @property
    def current(self) -> int | None:
        """The number of the version in use; None before the first one."""
        if not (self.path / CURRENT).exists() and self.numbers() in ([], [self.unfinished()]):
            return None
        number = self.read(self.path / CURRENT).get("version")
        require(
            type(number) is int,
            f"{printable(self.path / CURRENT)} is damaged; `flashback rollback MODEL VERSION` writes it again",
        )
        return number

    def unfinished(self) -> int | None:
        """The number of the update that is being learned, or that was stored but not yet put to use."""
        record = self.update / UPDATE_RECORD
        return self.read(record).get("number") if record.exists() else None

    def set_current(self, number: int) -> None:
        self.write(self.path / CURRENT, {"version": number})

    # ------------------------------------------------------------ versions

    def numbers(self) -> list[int]:
        """The numbers of all versions, also of those whose model was removed."""
        return sorted(int(path.name) for path in self.path.glob(f"{VERSIONS}/*") if path.name.isdecimal())

    def folder(self, number: int) -> Path:
        return self.path / VERSIONS / f"{number:04d}"

    def version(self, number: int) -> Version:
        """The record of a version, which must follow from the settings, from its parent and from its images."""
        require(number in self.numbers(), f"{printable(self.path)} has no version {number}; see `flashback history`")
        values = self.record(number)
        values.pop(HELD_OUT, None)
        version, parent = build(Version, values, f"version {number}: "), None
        if version.parent is not None:
            with suppress(FlashbackError):  # the record of the parent may be damaged
                parent = self.record(version.parent).get("digest")
        require(version.is_consistent(), self.damaged(self.folder(number) / VERSION))
        is_known = version.parent is None or parent is not None
        expected = self.digest(number, parent, version.content) if is_known else version.digest
        require(
            (version.number, version.digest) == (number, expected),
            f"version {number} in {printable(self.path)} belongs to another model or to other settings; restore its "
            f"folder and {SETTINGS}, or choose another version with `flashback rollback`",
        )
        return version

    def digest(self, number: int, parent: str | None, content: str) -> str:
        """What a version is bound to; settings of checkpoints do not count."""
        settings = asdict(self.settings())
        settings["config"] = {key: value for key, value in settings["config"].items() if key != "checkpoint"}
        return digest_of([settings, number, parent, content])

    def record(self, number: int) -> dict[str, Any]:
        path = self.folder(number) / VERSION
        values = self.read(path)
        require(values.pop(CHECKSUM, None) in (None, digest_of(values)), self.damaged(path))
        return values

    def has_model(self, number: int) -> bool:
        return (self.folder(number) / CHECKPOINT).is_dir()

    def state(self, version: Version) -> RunState:
        """The model of a version with its memory, checked against its digest."""
        require(
            self.has_model(version.number), f"the model of version {version.number} was removed by `flashback prune`"
        )
        with warnings.catch_warnings(action="ignore"):
            state = Checkpoints(self.folder(version.number) / CHECKPOINT, CheckpointConfig(), run=version.digest).load()
        if state is None:
            raise FlashbackError(
                f"the model of version {version.number} in {printable(self.path)} is damaged; choose another version "
                "with `flashback rollback`"
            )
        return state

    def held_out(self, version: Version) -> Images:
        """The held-out images that a version has kept."""
        path, checksum = self.folder(version.number) / HELD_OUT, self.record(version.number).get(HELD_OUT)
        try:
            content = read_file(path, 2**40)
            if checksum not in (None, sha256(content)):
                raise ValueError
            tensors = safetensors.torch.load(content)
            return Images(tensors["images"], tensors["labels"])
        except (OSError, KeyError, ValueError, safetensors.SafetensorError):
            raise FlashbackError(
                f"{printable(path)} is missing or damaged; choose another version with `flashback rollback`"
            ) from None

    def add(self, version: Version, state: RunState, held_out: Images) -> None:
        """Store a version; it appears complete or not at all."""
        make_folder(self.path / VERSIONS)
        part = self.path / VERSIONS / f".{version.number:04d}"
        make_folder(part)
        Checkpoints(part / CHECKPOINT, CheckpointConfig(), run=version.digest).write(state)
        tensors: dict[str, Tensor] = {"images": held_out.x.contiguous(), "labels": held_out.y}
        content = safetensors.torch.save(tensors)
        write_atomically(part / HELD_OUT, content)
        values = asdict(version) | {HELD_OUT: sha256(content)}
        self.write(part / VERSION, values | {CHECKSUM: digest_of(values)})
        with explaining_failure(self.folder(version.number)):
            os.replace(part, self.folder(version.number))

    def remove_model(self, number: int) -> int:
        """Remove what a version needs to be used, and keep its record; returns the bytes freed."""
        refuse_special(self.folder(number))
        files = [path for path in self.folder(number).rglob("*") if path.is_file() and path.name != VERSION]
        size = sum(path.stat().st_size for path in files)
        (self.folder(number) / HELD_OUT).unlink(missing_ok=True)
        remove_folder(self.folder(number) / CHECKPOINT)  # last, as it says that there is something to remove
        return size

    def drop_update(self) -> None:
        """Remove the update that is being learned, at once: a process that is killed here leaves no half of it."""
        with explaining_failure(self.update, "removed"):
            os.replace(self.update, self.path / DROPPED)
        remove_folder(self.path / DROPPED)

    # ------------------------------------------------------------ files

    @property
    def update(self) -> Path:
        return self.path / UPDATE

    def write(self, path: Path, values: Mapping[str, Any]) -> None:
        write_atomically(path, json.dumps(dict(values), indent=1) + "\n")

    def read(self, path: Path) -> dict[str, Any]:
        try:
            values = json.loads(read_file(path, LARGEST_RECORD))
        except (OSError, ValueError, RecursionError):
            values = None
        require(isinstance(values, dict), self.damaged(path))
        return dict(values)

    def damaged(self, path: Path) -> str:
        return f"{printable(path)} is missing or damaged; {REMEDY.get(path.name, RESTORE)}"
