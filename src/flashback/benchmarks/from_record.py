"""Rebuild a benchmark from the record of a run; its images are loaded only when used."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any

from flashback.benchmarks.splits import consecutive
from flashback.benchmarks.tasks import Benchmark, Images, Task
from flashback.config import build
from flashback.errors import require

DATA = "data"  # the key in run.json


def describe_data(benchmark: Benchmark) -> dict[str, Any]:
    """The entry `data` of run.json; name, class order, task sizes and checksum are stored beside it."""
    revisited = [list(task.revisited) for task in benchmark.tasks]
    return {
        "dataset": benchmark.dataset,
        "image_shape": list(benchmark.image_shape),
        "mean": list(benchmark.mean),
        "std": list(benchmark.std),
        "class_names": list(benchmark.class_names),
        "training_images": [len(task.train) for task in benchmark.tasks],
        "test_images": [len(task.test) for task in benchmark.tasks],
        **({"revisited": revisited} if any(revisited) else {}),
    }


@dataclass(frozen=True)
class DataRecord:
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
    revisited: tuple[tuple[int, ...], ...] = ()  # known classes of each task, if any reappear

    @property
    def tasks(self) -> list[tuple[range, tuple[int, ...]]]:
        """The new and the known classes of each task."""
        return list(zip(consecutive(self.sizes), self.revisited or [()] * len(self.sizes), strict=True))

    def is_consistent(self) -> bool:
        return (
            len(self.image_shape) == 3
            and len(self.mean) == len(self.std) == self.image_shape[0]
            and sorted(self.order) == list(range(len(self.class_names)))
            and 0 < sum(self.sizes) <= len(self.order)
            and len(self.training_images) == len(self.test_images) == len(self.sizes)
            and len(self.revisited) in (0, len(self.sizes))
            and min(self.image_shape + self.training_images + self.test_images) >= 1
            and min(self.sizes) >= 0
            and all(len(new) + len(known) >= 1 for new, known in self.tasks)
            and all(set(known) <= set(range(new.start)) for new, known in self.tasks)
            and min(self.std) > 0
        )


class LazyImages(Images):
    """Images that are loaded on first use; their number and shape are known before."""

    def __init__(self, count: int, image_shape: tuple[int, ...], load: Callable[[], Images]) -> None:
        self.__dict__.update(count=count, known_shape=image_shape, load=load)

    def __len__(self) -> int:
        return int(self.__dict__["count"])

    @property
    def image_shape(self) -> tuple[int, ...]:
        return tuple(self.__dict__["known_shape"])

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
    shape = record.image_shape

    def task(index: int, classes: range, revisited: tuple[int, ...]) -> Task:
        train = LazyImages(record.training_images[index], shape, lambda: load().tasks[index].train)
        test = LazyImages(record.test_images[index], shape, lambda: load().tasks[index].test)
        return Task(index, classes, train, test, revisited)

    tasks = tuple(task(index, *classes) for index, classes in enumerate(record.tasks))
    description = (record.name, record.dataset, record.order, tasks, record.mean, record.std, record.class_names)
    return Benchmark(*description, record.checksum)


def _read(run: Mapping[str, Any]) -> DataRecord:
    keys = {"name": "benchmark", "order": "class_order", "sizes": "task_sizes", "checksum": "data_checksum"}
    values = {name: run[key] for name, key in keys.items() if key in run}
    values |= run[DATA] if isinstance(run[DATA], Mapping) else {}
    missing = [field.name for field in fields(DataRecord) if field.name not in values and field.default is MISSING]
    require(not missing, f"run.json lacks the {', '.join(missing)} of the data; it was changed")
    record = build(DataRecord, values, f"run.json: {DATA}.")
    require(record.is_consistent(), f"the entries of run.json under '{DATA}' contradict each other; it was changed")
    return record
