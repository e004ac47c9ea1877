"""The registered benchmarks."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback.registry import Registry

if TYPE_CHECKING:
    from flashback.benchmarks.tasks import RawDataset


@dataclass(frozen=True)
class Dataset:
    """A dataset as known before it is read, and where its files are."""

    name: str
    classes: int
    image: tuple[int, int, int]  # C, H, W
    mean: tuple[float, ...]
    std: tuple[float, ...]
    files: tuple[str, ...]  # possible paths of the official file or folder in the data folder
    read: Callable[[Path], RawDataset]
    class_names: tuple[str, ...] = ()  # by label; empty: those in the files
    url: str | None = None
    md5: str | None = None  # of the official file
    checksum: str | None = None  # of the arrays, for data shipped with the package


@dataclass(frozen=True)
class Spec:
    """A benchmark: a dataset, the number of classes of each task, and the class order."""

    name: str
    dataset: Dataset
    sizes: tuple[int, ...]
    order: str = "identity"


def _read_dataset(name: str, entry: dict[str, Any]) -> Dataset:
    module, function = entry.pop("read").split(".")

    def read(path: Path) -> RawDataset:  # imported when it is called: a list of the benchmarks needs no torch
        raw: RawDataset = getattr(import_module(f"flashback.benchmarks.{module}"), function)(path)
        return raw

    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    values["files"] = tuple(file.format(package=PACKAGE) for file in entry["files"])
    return Dataset(name, read=read, **values)


PACKAGE = Path(__file__).parent
_ENTRIES = tomllib.loads((PACKAGE / "datasets.toml").read_text(encoding="utf-8"))
DATASETS = {name: _read_dataset(name, entry) for name, entry in _ENTRIES.items()}
BENCHMARKS: Registry[Spec] = Registry("benchmark")

# B0 tasks are all equal; B50 learns half of the classes first. iCaRL's successors report on the order of seed 1993.
for name, dataset, sizes, *order in (
    ("split-fashion-mini", "fashion_mini", (2,) * 5),
    ("split-cifar10", "cifar10", (2,) * 5),
    ("split-cifar100", "cifar100", (10,) * 10),
    ("split-tinyimagenet", "tinyimagenet", (20,) * 10),
    ("cifar100-b0-10", "cifar100", (10,) * 10, "1993"),
    ("cifar100-b50-10", "cifar100", (50, *(10,) * 5), "1993"),
    ("cifar100-b50-5", "cifar100", (50, *(5,) * 10), "1993"),
    ("cifar100-b50-2", "cifar100", (50, *(2,) * 25), "1993"),
    ("imagenet100-b0-10", "imagenet100", (10,) * 10, "1993"),
    ("imagenet100-b50-10", "imagenet100", (50, *(10,) * 5), "1993"),
):
    BENCHMARKS.register(name)(Spec(name, DATASETS[dataset], sizes, *order))


def canonical_name(name: str) -> str:
    """The name of a benchmark without folders: a file of the user has one name wherever it is stored."""
    return name if name in BENCHMARKS else Path(name).name or name


def describe_benchmarks() -> list[dict[str, str | int]]:
    """List all benchmarks: name, dataset, tasks, classes, sizes such as `50 + 5x10`, image size, default order."""
    return [_describe(BENCHMARKS[name]) for name in BENCHMARKS]


def _describe(spec: Spec) -> dict[str, str | int]:
    runs = [(size, len(list(run))) for size, run in groupby(spec.sizes)]
    return {
        "name": spec.name,
        "dataset": spec.dataset.name,
        "tasks": len(spec.sizes),
        "classes": spec.dataset.classes,
        "sizes": " + ".join(f"{count}x{size}" if count > 1 else str(size) for size, count in runs),
        "image": "x".join(str(length) for length in (*spec.dataset.image[1:], spec.dataset.image[0])),
        "order": spec.order,
    }
