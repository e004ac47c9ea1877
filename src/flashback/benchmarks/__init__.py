"""Where tasks come from: datasets, class orders, and the split into tasks."""

from flashback.benchmarks.load import load_benchmark
from flashback.benchmarks.orders import class_order, imagenet100_classes
from flashback.benchmarks.specs import BENCHMARKS, Dataset, Spec, describe_benchmarks, known_as
from flashback.benchmarks.tasks import Benchmark, Images, Task

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "Dataset",
    "Images",
    "Spec",
    "Task",
    "class_order",
    "describe_benchmarks",
    "imagenet100_classes",
    "known_as",
    "load_benchmark",
]
