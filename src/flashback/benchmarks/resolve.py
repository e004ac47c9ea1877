"""Write out the benchmark section of a configuration: task sizes and class names become lists of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashback.benchmarks.orders import class_order, has_names
from flashback.benchmarks.specs import BENCHMARKS
from flashback.benchmarks.task_sizes import read_sizes, task_sizes
from flashback.config import BenchmarkConfig


def resolve_benchmark(values: Mapping[str, Any], data: str | Path | None = None) -> Mapping[str, Any]:
    """Return a configuration whose benchmark.sizes is a list and whose benchmark.order has labels instead of names.

    Only equal tasks and class names need the data; of the user's own files only the labels are read.
    """
    section = values.get("benchmark")
    if not isinstance(section, Mapping):
        return values
    name, resolved = str(section.get("name", BenchmarkConfig.name)), dict(section)
    sizes = section.get("sizes")
    if sizes is not None and not isinstance(sizes, list | tuple):
        parsed = read_sizes(sizes)
        resolved["sizes"] = list(task_sizes(parsed, _count_classes(name, data)) if isinstance(parsed, int) else parsed)
    if (order := section.get("order")) is not None and has_names(order):
        names = _class_names(name, data)
        resolved["order"] = list(class_order(order, len(names), class_names=names))
    return {**values, "benchmark": resolved}


def _count_classes(benchmark: str, data: str | Path | None) -> int:
    return BENCHMARKS[benchmark].dataset.classes if benchmark in BENCHMARKS else len(_class_names(benchmark, data))


def _class_names(benchmark: str, data: str | Path | None) -> Sequence[str]:
    from flashback.benchmarks.arrays import npz_class_names
    from flashback.benchmarks.download import load_dataset
    from flashback.benchmarks.folders import class_folders
    from flashback.benchmarks.load import fetch_data
    from flashback.benchmarks.raw_data import printable

    if benchmark in BENCHMARKS:
        dataset = BENCHMARKS[benchmark].dataset
        return dataset.class_names or load_dataset(dataset, data, download=True).class_names
    path = fetch_data(benchmark, data)
    folders = [printable(name) for name in class_folders(path / "train")] if path.is_dir() else None
    return npz_class_names(path) if folders is None else folders
