from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from flashback.benchmarks import Benchmark, Images, Task, load_benchmark
from flashback.training import building


@cache
def thinned(options: str) -> Benchmark:
    """Every tenth image of the shipped benchmark; the options are keywords as Python writes them."""

    def thin(task: Task) -> Task:
        train, test = (Images(images.x[::10], images.y[::10]) for images in (task.train, task.test))
        return replace(task, train=train, test=test)

    whole = load_benchmark("split-fashion-mini", **literal_eval(options))
    return replace(whole, tasks=tuple(map(thin, whole.tasks)))


@pytest.fixture(scope="module", autouse=True)
def fewer_images() -> Iterator[None]:
    """Runs of this process train on fewer images."""

    def load(name: str, **options: Any) -> Benchmark:
        shipped = name == "split-fashion-mini" and options.get("data") is None
        return thinned(repr(options)) if shipped else load_benchmark(name, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "load_benchmark", load)
        yield
