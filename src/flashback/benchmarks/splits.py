"""How the classes of a dataset become tasks: the order in which they are learned, and the size of each task."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from flashback.benchmarks.specs import BENCHMARKS, parse_sizes
from flashback.config import BenchmarkConfig
from flashback.errors import FlashbackError, abbreviate, printable, shorten, unknown

Order = str | int | Sequence[int | str]
RUN_SEED = "seed"  # drawn with the seed of the run: another order for each seed, the same for both arms
Sizes = Sequence[int] | int | str


def class_order(order: Order, classes: int, seed: int = 0, class_names: Sequence[str] | None = None) -> tuple[int, ...]:
    """Return the original labels in the order in which they are learned.

    An order is "identity"; a number such as 1993, which seeds a permutation; "seed", which uses `seed` as that number;
    or a list that names each class once, by label or by class name.
    """
    if isinstance(order, str | int):
        number = seed if order == RUN_SEED else order
        return tuple(range(classes)) if order == "identity" else _permutation(number, classes)
    names = [str(label) for label in range(classes)] if class_names is None else class_names
    labels = [_label_of(entry, names) if isinstance(entry, str) else entry for entry in order]
    if repeated := [label for label, count in Counter(labels).items() if count > 1]:
        raise FlashbackError(f"the class order names {_describe(repeated[0], names)} twice; name each class once")
    if outside := sorted(set(labels) - set(range(classes))):
        raise FlashbackError(f"the class order has the label {outside[0]}; labels go from 0 to {classes - 1}")
    if missing := sorted(set(range(classes)) - set(labels)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FlashbackError(
            f"the class order has {len(labels)} of {classes} classes; it lacks {_describe(missing[0], names)}{more}"
        )
    return tuple(int(label) for label in labels)


def has_names(order: object) -> bool:
    return isinstance(order, Sequence) and not isinstance(order, str) and any(isinstance(x, str) for x in order)


def _label_of(name: str, names: Sequence[str]) -> int:
    labels = [label for label, known in enumerate(names) if known == name]
    if not labels:
        raise unknown("class in benchmark.order", name, names)
    if len(labels) > 1:
        raise FlashbackError(f"labels {labels[0]} and {labels[1]} are both named '{name}'; order the classes by label")
    return labels[0]


def _describe(label: int, names: Sequence[str]) -> str:
    has_name = 0 <= label < len(names) and names[label] != str(label)
    return f"'{names[label]}' (label {label})" if has_name else f"label {label}"


def _permutation(seed: str | int, classes: int) -> tuple[int, ...]:
    """numpy's legacy generator: seed 1993 gives the order on which iCaRL, LUCIR and their successors report."""
    try:
        generator = np.random.RandomState(int(seed))
    except ValueError:
        raise FlashbackError(
            f"the class order '{shorten(str(seed))}' is unknown; give 'identity', a seed from 0 to 4294967295 such as "
            "1993, 'seed' for that of the run, or a list of labels or class names"
        ) from None
    return tuple(generator.permutation(classes).tolist())


def imagenet100_classes() -> list[int]:
    """Positions of the ImageNet-100 classes among the 1000 sorted WordNet ids: LUCIR's draw with seed 1993."""
    return sorted(_permutation(1993, 1000)[:100])


def read_sizes(sizes: Sizes) -> tuple[int, ...] | int:
    """Parse a list of sizes, a text such as 50+5x10, or a number, which stands for equal tasks."""
    if isinstance(sizes, str):
        size_list = parse_sizes(sizes)
        if size_list:
            return size_list[0] if sizes.strip().isdecimal() else size_list
    elif isinstance(sizes, Integral) and not isinstance(sizes, bool):
        return int(sizes)
    elif isinstance(sizes, Sequence) and all(isinstance(n, Integral) and not isinstance(n, bool) for n in sizes):
        return tuple(int(size) for size in sizes)
    raise FlashbackError(
        "the task sizes (benchmark.sizes) are a list such as [4, 3, 3], a number such as 2 for equal tasks of two "
        f"classes, or a text such as 5x2 or 50+5x10, not {abbreviate(sizes)}"
    )


def task_sizes(sizes: Sizes, classes: int) -> tuple[int, ...]:
    size_list = read_sizes(sizes)
    if isinstance(size_list, tuple):
        return size_list
    if size_list < 1 or classes % size_list:
        divisors = ", ".join(str(size) for size in range(1, classes + 1) if classes % size == 0)
        raise FlashbackError(
            f"{classes} classes cannot be split into equal tasks of {size_list}; give a size among {divisors}, or a "
            "list of unequal sizes"
        )
    return (size_list,) * (classes // size_list)


def task_ranges(sizes: Sizes, classes: int) -> list[range]:
    sizes = task_sizes(sizes, classes)
    if not sizes or min(sizes) < 1 or sum(sizes) != classes:
        raise FlashbackError(
            f"the task sizes {list(sizes)} sum to {sum(sizes)}, but the dataset has {classes} classes; "
            "give positive sizes that sum to the number of classes"
        )
    return consecutive(sizes)


def consecutive(sizes: Sequence[int]) -> list[range]:
    return [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def resolve_benchmark(values: Mapping[str, Any], data: str | Path | None = None) -> Mapping[str, Any]:
    """Turn benchmark.sizes into a list and class names in benchmark.order into labels; only then are data needed."""
    section = values.get("benchmark")
    if not isinstance(section, Mapping):
        return values
    name, result = str(section.get("name", BenchmarkConfig.name)), dict(section)
    sizes = section.get("sizes")
    if sizes is not None and not isinstance(sizes, list | tuple):
        size_list = read_sizes(sizes)
        if isinstance(size_list, int):
            known = BENCHMARKS[name].dataset.classes if name in BENCHMARKS else len(_class_names(name, data))
            size_list = task_sizes(size_list, known)
        result["sizes"] = list(size_list)
    if (order := section.get("order")) is not None and has_names(order):
        names = _class_names(name, data)
        result["order"] = list(class_order(order, len(names), class_names=names))
    return {**values, "benchmark": result}


def _class_names(benchmark: str, data: str | Path | None) -> Sequence[str]:
    from flashback.benchmarks.arrays import npz_class_names
    from flashback.benchmarks.image_files import class_folders
    from flashback.benchmarks.load import fetch_data, load_dataset

    if benchmark in BENCHMARKS:
        dataset = BENCHMARKS[benchmark].dataset
        return dataset.class_names or load_dataset(dataset, data, download=True).class_names
    path = fetch_data(benchmark, data)
    return [printable(name) for name in class_folders(path / "train")] if path.is_dir() else npz_class_names(path)
