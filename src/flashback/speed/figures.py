"""The figures of one machine, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten
from typing import Literal, TypeVar, get_args

from flashback.config import build, to_dict
from flashback.errors import FlashbackError
from flashback.files import ANOTHER_FOLDER, LARGEST_RECORD, make_folder, read_file, write_atomically
from flashback.hosts.outside import in_one_line
from flashback.records import differing_keys
from flashback.speed.setup import Size
from flashback.training.environment import WHOLE

Mode = Literal["eager", "captured", "fast"]  # captured is what a run on a GPU does by itself: deterministic
Cache = Literal["own", "cold", "warm"]  # of compiled code: the machine's, a new one, that of a run just before
MODES: tuple[Mode, ...] = get_args(Mode)
FILE = "bench.json"
LONGEST_REASON = 300  # letters; compilers say pages
SURROUNDINGS = ("device", "precision", "versions", "size")  # figures of others do not belong in one file


@dataclass(frozen=True)
class Case:
    """What a figure is of. Its label is its name: in the file, and on the terminal."""

    host: str
    flashback: bool
    mode: Mode
    batch_size: int

    @property
    def method(self) -> str:
        return f"{self.host} + flashback" if self.flashback else self.host

    @property
    def label(self) -> str:
        return f"{self.method}, batch {self.batch_size}, {self.mode}"


@dataclass(frozen=True)
class Speed(Case):
    """Training steps of the second task in steady state; with flashback, of phase 2."""

    images_per_second: float
    preparation_seconds: float  # until the steady state: first steps, compilation, capture
    peak_bytes: int  # of the device since the method was built, the end of the first task included; 0: not known
    knowledge_bytes: dict[str, int] = field(default_factory=dict)  # stable, plastic


@dataclass(frozen=True)
class RunCase(Case):
    tasks: int
    epochs: int
    cache: Cache

    @property
    def label(self) -> str:
        length = f"{self.tasks} tasks of {self.epochs} epochs"
        return f"whole run of {super().label}, {length}, {self.cache} cache"


@dataclass(frozen=True)
class TaskCost:
    """One task of a whole run, its evaluation included."""

    seconds: float
    training_seconds: float
    images: int
    peak_bytes: int
    compilations: int


@dataclass(frozen=True)
class Run(RunCase):
    """A whole run, from the evaluation of the untrained network to that after the last task."""

    images: int
    seconds: float
    images_per_second: float  # over everything
    training_seconds: float  # in steps; captures and compilations are preparation
    preparation_seconds: float
    share_outside_steps: float
    peak_bytes: int
    knowledge_bytes: dict[str, int]
    per_task: list[TaskCost]


@dataclass(frozen=True)
class PackedCase(RunCase):
    count: int

    @property
    def label(self) -> str:
        return f"{self.count} at a time: {super().label}"


@dataclass(frozen=True)
class Packed(PackedCase):
    """Whole runs at a time, each in a process of its own."""

    mps: bool  # whether they shared the GPU by NVIDIA's Multi-Process Service
    images: int  # of all
    seconds: float  # from the common start to the end of the slowest
    images_per_second: float  # of all, over everything
    together_per_second: float | None  # of all, while every one of them was training; None: never
    portion: str = WHOLE  # percent of the multiprocessors that each might use


@dataclass
class Bench:
    """All figures of one machine."""

    device: str
    date: str  # when the first figure was measured
    precision: str
    versions: dict[str, str]
    size: Size
    speeds: list[Speed] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)  # seconds of single parts, and a ratio
    runs: list[Run] = field(default_factory=list)
    packed: list[Packed] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)  # by label; measured again next time


AnyCase = TypeVar("AnyCase", bound=Case)


def has(figures: Sequence[Case], case: Case) -> bool:
    return any(figure.label == case.label for figure in figures)


def put(figures: list[AnyCase], new: AnyCase) -> None:
    """Add a figure in the place of an older one of the same case."""
    figures[:] = [figure for figure in figures if figure.label != new.label] + [new]


def reason(problem: Exception) -> str:
    """Why there is no figure, in a line."""
    said = str(problem) if isinstance(problem, FlashbackError) else in_one_line(problem)
    return shorten(said, LONGEST_REASON, placeholder=" ...")


# ---------------------------------------------------------------- the file


def read_bench(path: str | Path) -> Bench:
    """The figures of a file, from whatever machine."""
    try:
        return build(Bench, json.loads(read_file(Path(path), LARGEST_RECORD)))
    except FileNotFoundError:
        raise FlashbackError(f"there is no file {path}") from None
    except (OSError, ValueError, RecursionError, TypeError, FlashbackError):
        raise FlashbackError(f"{path} holds no figures of a bench; give the file of one, or another --out") from None


def write_bench(bench: Bench, folder: Path) -> None:
    write_atomically(folder / FILE, json.dumps(to_dict(bench), indent=1) + "\n")


def continue_bench(new: Bench, folder: Path) -> Bench:
    """The figures that a folder holds already, or the new ones; those of other surroundings are refused."""
    make_folder(folder)
    path = folder / FILE
    if not path.exists():
        return new
    known = read_bench(path)
    before, now = ({name: to_dict(bench)[name] for name in SURROUNDINGS} for bench in (known, new))
    differing = differing_keys(before, now)
    if differing:
        raise FlashbackError(
            f"{path} was measured in other surroundings (differs in {', '.join(differing)}); {ANOTHER_FOLDER}"
        )
    return known
