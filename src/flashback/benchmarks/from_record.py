"""A benchmark as a record keeps it: all that is known of it but the images, which are loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from itertools import accumulate
from typing import Any

from flashback.benchmarks.tasks import Benchmark, Images, Task
from flashback.config import build
from flashback.errors import require

DATA = "data"  # the key of run.json


def describe_data(benchmark: Benchmark) -> dict[str, Any]:
    """What a record says of the data under this key, beside the name, class order, task sizes and checksum it has."""
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
class Said:
    """What a record says of its benchmark, by type."""

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

    def agrees(self) -> bool:
        """Whether one thing fits the other."""
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
    """A benchmark whose images may be elsewhere, or gone."""

    shape: tuple[int, int, int]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.shape


class LazyImages(Images):
    """Images that are loaded when they are first looked at; how many there are is known before."""

    def __init__(self, count: int, load: Callable[[], Images]) -> None:
        self.__dict__.update(count=count, load=load)

    def __len__(self) -> int:
        return int(self.__dict__["count"])

    def __getattr__(self, name: str) -> Any:
        """Of x and y, which are not there yet."""
        if name not in ("x", "y"):
            raise AttributeError(name)
        images = self.__dict__["load"]()
        self.__dict__.update(x=images.x, y=images.y)
        return self.__dict__[name]


def benchmark_from_record(run: Mapping[str, Any], load: Callable[[], Benchmark]) -> Benchmark | None:
    """The benchmark of a run.json, None where it says too little; `load` is called when images are looked at."""
    if DATA not in run:
        return None
    said, load = _read(run), cache(load)
    channels, height, width = said.image_shape

    def task(index: int, stop: int) -> Task:
        train = LazyImages(said.training_images[index], lambda: load().tasks[index].train)
        test = LazyImages(said.test_images[index], lambda: load().tasks[index].test)
        return Task(index, range(stop - said.sizes[index], stop), train, test)

    return RecordedBenchmark(
        name=said.name,
        dataset=said.dataset,
        order=said.order,
        tasks=tuple(task(index, stop) for index, stop in enumerate(accumulate(said.sizes))),
        mean=said.mean,
        std=said.std,
        class_names=said.class_names,
        checksum=said.checksum,
        shape=(channels, height, width),
    )


def _read(run: Mapping[str, Any]) -> Said:
    places = {"name": "benchmark", "order": "class_order", "sizes": "task_sizes", "checksum": "data_checksum"}
    given = {name: run[place] for name, place in places.items() if place in run}
    given |= run[DATA] if isinstance(run[DATA], Mapping) else {}
    missing = [field.name for field in fields(Said) if field.name not in given]
    require(not missing, f"run.json does not say the {', '.join(missing)} of the data; it has been changed")
    said = build(Said, given, f"run.json: {DATA}.")
    require(said.agrees(), f"what run.json says under '{DATA}' cannot all be so; it has been changed")
    return said
