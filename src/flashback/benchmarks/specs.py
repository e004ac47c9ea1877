"""The registered benchmarks."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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
    written_sizes: str = ""  # such as 50 + 5x10
    order: str = "identity"
    revisit_after: tuple[int, ...] = ()  # how many tasks after their first one the classes of a task reappear
    degrees: tuple[int, ...] = ()  # by which the images of each task are rotated


PACKAGE = Path(__file__).parent
BENCHMARKS: Registry[Spec] = Registry("benchmark")
TERM = re.compile(r"(?:(?P<count>\d{1,5})\s*x\s*)?(?P<size>\d{1,5})")  # 5x10: five tasks of ten; 50: one of fifty
MOST_TASKS = 10_000


def parse_sizes(text: str) -> tuple[int, ...] | None:
    """The task sizes of a text such as 50+5x10; None if it is not of that form."""
    terms = [TERM.fullmatch(term.strip()) for term in text.split("+")]
    counts = [(int(term["count"] or 1), int(term["size"])) for term in terms if term is not None]
    if len(counts) < len(terms) or not 1 <= sum(count for count, _ in counts) <= MOST_TASKS:
        return None
    return tuple(size for count, size in counts for _ in range(count))


def _register(dataset: str, entry: dict[str, Any]) -> None:
    module, function = entry.pop("read").split(".")
    benchmarks = entry.pop("benchmarks")

    def read(path: Path) -> RawDataset:  # imported when it is called: a list of the benchmarks needs no torch
        raw: RawDataset = getattr(import_module(f"flashback.benchmarks.{module}"), function)(path)
        return raw

    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    values["files"] = tuple(file.format(package=PACKAGE) for file in entry["files"])
    definition = Dataset(dataset, read=read, **values)
    for name, split in benchmarks.items():
        sizes = split.pop("sizes")
        more: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in split.items()}
        BENCHMARKS.register(name)(Spec(name, definition, parse_sizes(sizes) or (), sizes, **more))


for _dataset, _entry in tomllib.loads((PACKAGE / "datasets.toml").read_text(encoding="utf-8")).items():
    _register(_dataset, _entry)


def canonical_name(name: str) -> str:
    """The name of a benchmark without folders: a file of the user has one name wherever it is stored."""
    return name if name in BENCHMARKS else Path(name).name or name


def describe_benchmarks() -> list[dict[str, str | int]]:
    """List all benchmarks: name, dataset, tasks, classes, sizes such as `50 + 5x10`, image size, default order."""
    return [
        {
            "name": spec.name,
            "dataset": spec.dataset.name,
            "tasks": len(spec.sizes),
            "classes": spec.dataset.classes,
            "sizes": spec.written_sizes,
            "image": "x".join(str(length) for length in (*spec.dataset.image[1:], spec.dataset.image[0])),
            "order": spec.order,
        }
        for spec in map(BENCHMARKS.__getitem__, BENCHMARKS)
    ]
