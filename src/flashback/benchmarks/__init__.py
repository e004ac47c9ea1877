"""Where tasks come from: datasets, class orders, and the split into tasks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flashback.benchmarks.specs import BENCHMARKS, canonical_name, describe_benchmarks

if TYPE_CHECKING:
    from flashback.benchmarks.load import load_benchmark
    from flashback.benchmarks.splits import class_order, imagenet100_classes
    from flashback.benchmarks.tasks import Benchmark, Images, Task

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Images",
    "Task",
    "canonical_name",
    "class_order",
    "describe_benchmarks",
    "imagenet100_classes",
    "load_benchmark",
]

# Imported on first use: they need torch, a list of the benchmarks does not.
_LAZY = {
    "load": ("load_benchmark",),
    "splits": ("class_order", "imagenet100_classes"),
    "tasks": ("Benchmark", "Images", "Task"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
