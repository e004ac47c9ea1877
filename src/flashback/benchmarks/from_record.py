"""Rebuild a benchmark from the record of a run; its images are loaded only when used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import accumulate
from typing import Any

from flashback.benchmarks.tasks import Benchmark, Images, Task
from flashback.config import build
from flashback.errors import require

DATA = "data"  # the key in run.json


def describe_data(benchmark: Benchmark) -> dict[str, Any]:
    """The entry `data` of run.json; name, class order, task sizes and checksum are stored beside it."""
    return {
        "dataset": benchmark.dataset,
        "image_shape": list(benchmark.image_shape),
        "mean": list(benchmark.mean),
        "std": list(benchmark.std),
        "class_names": list(benchmark.class_names),
        "training_images": [len(task.train) for task in benchmark.tasks],
        "test_images": [len(task.test) for task in benchmark.tasks],
    }


@dataclass(frozen=True)
class DataRecord:
    """What run.json says about its benchmark."""

    name: str
    dataset: str
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    checksum: str
    image_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...]
    training_images: tuple[int, ...]  # of each task
    test_images: tuple[int, ...]

    def is_consistent(self) -> bool:
        return (
            len(self.image_shape) == 3
            and len(self.mean) == len(self.std) == self.image_shape[0]
            and sorted(self.order) == list(range(len(self.class_names)))
            and 0 < sum(self.sizes) <= len(self.order)
            and len(self.training_images) == len(self.test_images) == len(self.sizes)
            and min(self.image_shape + self.sizes + self.training_images + self.test_images) >= 1
            and min(self.std) > 0
        )


@dataclass(frozen=True, eq=False, repr=False)
class RecordedBenchmark(Benchmark):
    """A benchmark whose images may be missing."""

    shape: tuple[int, int, int]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.shape


class LazyImages(Images):
    """Images that are loaded on first use; their number is known before."""

    def __init__(self, count: int, load: Callable[[], Images]) -> None:
        self.__dict__.update(count=count, load=load)

    def __len__(self) -> int:
        return int(self.__dict__["count"])

    def __getattr__(self, name: str) -> Any:
        if name not in ("x", "y"):
            raise AttributeError(name)
        images = self.__dict__["load"]()
        self.__dict__.update(x=images.x, y=images.y)
        return self.__dict__[name]


def benchmark_from_record(run: Mapping[str, Any], load: Callable[[], Benchmark]) -> Benchmark | None:
    """The benchmark that a run.json describes, loaded when images are used; None for old records."""
    if DATA not in run:
        return None
    record, load = _read(run), cache(load)
    channels, height, width = record.image_shape

    def task(index: int, stop: int) -> Task:
        train = LazyImages(record.training_images[index], lambda: load().tasks[index].train)
        test = LazyImages(record.test_images[index], lambda: load().tasks[index].test)
        return Task(index, range(stop - record.sizes[index], stop), train, test)

    tasks = tuple(task(index, stop) for index, stop in enumerate(accumulate(record.sizes)))
    described = (record.name, record.dataset, record.order, tasks, record.mean, record.std, record.class_names)
    return RecordedBenchmark(*described, record.checksum, shape=(channels, height, width))


def _read(run: Mapping[str, Any]) -> DataRecord:
    keys = {"name": "benchmark", "order": "class_order", "sizes": "task_sizes", "checksum": "data_checksum"}
    values = {name: run[key] for name, key in keys.items() if key in run}
    values |= run[DATA] if isinstance(run[DATA], Mapping) else {}
    missing = [field.name for field in fields(DataRecord) if field.name not in values]
    require(not missing, f"run.json lacks the {', '.join(missing)} of the data; it was changed")
    record = build(DataRecord, values, f"run.json: {DATA}.")
    require(record.is_consistent(), f"the entries of run.json under '{DATA}' contradict each other; it was changed")
    return record
