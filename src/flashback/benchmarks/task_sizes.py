"""The task sizes of a configuration, written out: whatever was given, a record keeps the list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashback.benchmarks.arrays import count_classes
from flashback.benchmarks.folders import count_class_folders
from flashback.benchmarks.load import fetch_data
from flashback.benchmarks.orders import read_sizes, task_sizes
from flashback.benchmarks.specs import BENCHMARKS
from flashback.config import BenchmarkConfig
from flashback.errors import require


def with_explicit_sizes(values: Mapping[str, Any], data: str | Path | None = None) -> Mapping[str, Any]:
    """A configuration whose benchmark.sizes is a list, where it was 2, 5x2 or 50+5x10.

    Only for equal tasks are the data looked at, and of files of one's own only the labels.
    """
    benchmark = values.get("benchmark")
    given = benchmark.get("sizes") if isinstance(benchmark, Mapping) else None
    if given is None or isinstance(given, list | tuple):
        return values
    assert isinstance(benchmark, Mapping)
    sizes = read_sizes(given)
    if isinstance(sizes, int):
        sizes = task_sizes(sizes, classes_of(str(benchmark.get("name", BenchmarkConfig.name)), data))
    return {**values, "benchmark": {**benchmark, "sizes": list(sizes)}}


def classes_of(benchmark: str, data: str | Path | None = None) -> int:
    if benchmark in BENCHMARKS:
        return BENCHMARKS[benchmark].dataset.classes
    path = fetch_data(benchmark, data)
    require(path.is_dir() or path.is_file(), f"{path} is neither a file nor a folder")  # a pipe would never end
    return count_class_folders(path) if path.is_dir() else count_classes(path)
