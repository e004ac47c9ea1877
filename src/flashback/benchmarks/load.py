"""From a name to a benchmark: find the images, order the classes, split them into tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashback.benchmarks.arrays import KEYS, read_mapping, read_npz
from flashback.benchmarks.download import fetch_files, find_files, load_dataset, say_missing
from flashback.benchmarks.folders import read_folder
from flashback.benchmarks.orders import Order, Sizes, class_order, read_sizes, task_ranges, task_sizes
from flashback.benchmarks.raw_data import Array, Pool, Source, data_folder
from flashback.benchmarks.specs import BENCHMARKS, Dataset, Spec
from flashback.benchmarks.tasks import Benchmark, Images, Task
from flashback.errors import FlashbackError, warn_once

SKETCHED_SIDE = 16  # pixels that every backbone can halve three times and still find several
IN_MEMORY = "arrays"  # the name of a benchmark that has neither a name nor a path
MEASURED_IMAGES = 2_000  # give the mean and deviation of a dataset without published ones
MEASURED_AT_ONCE = 16


def load_benchmark(
    name: str | Path | Mapping[str, Any],
    *,
    data: str | Path | None = None,
    order: Order | None = None,
    sizes: Sizes | None = None,
    validation: float = 0.0,
    seed: int = 0,
    download: bool = True,
    tasks: int | None = None,
    labels_only: bool = False,
) -> Benchmark:
    """A named benchmark, or with the `sizes` of its tasks: the path of an .npz or of a folder of images, or a mapping.

    A mapping has the arrays or tensors of an .npz: x_train, y_train, x_test, y_test, and optionally class_names.
    A path that is not there is looked for in the data folder too. `seed` draws the validation images, and the class
    order where `order` is "seed".
    `validation` cuts that fraction of each class's training images (seeded) and tests on them, never on the test set.
    With `labels_only`, images are a few pixels of noise, which are not decoded: enough to count by.
    """
    _check_folder(data)
    spec, source = _choose(name, sizes, data)
    dataset = spec.dataset
    labels = class_order(spec.order if order is None else order, dataset.classes, seed)
    ranges = _first(tasks, task_ranges(spec.sizes if sizes is None else sizes, dataset.classes))
    source = source or load_dataset(dataset, data, download)
    source = _labels_only(source) if labels_only else source
    names = [(dataset.class_names or source.class_names)[label] for label in labels]
    made = tuple(_tasks(*_split(source, validation, seed), labels, ranges, names))
    mean, std = (dataset.mean, dataset.std) if dataset.mean else _measure(made[0].train.x)
    return Benchmark(
        *(spec.name, dataset.name, labels, made, mean, std, tuple(names), source.checksum),
        validation=float(validation),
        validation_seed=seed if validation else None,
    )


def missing_data(name: str, data: str | Path | None = None) -> str | None:
    """What to do about the data of a benchmark, where they are not at hand; files of one's own must be."""
    _check_folder(data)
    if name not in BENCHMARKS:
        _own_path(name, data)
        return None
    dataset = BENCHMARKS[name].dataset
    if find_files(dataset, data) is not None:
        return None
    return say_missing(dataset, data) + (f", or let a run fetch them from {dataset.url}" if dataset.url else "")


def fetch_data(name: str, data: str | Path | None = None) -> Path:
    """Where the data of a benchmark lie, fetched where they are missing; a sentence where they cannot be had."""
    _check_folder(data)
    return fetch_files(BENCHMARKS[name].dataset, data) if name in BENCHMARKS else _own_path(name, data)


def _check_folder(data: str | Path | None) -> None:
    """A folder that is named must be there: a mistyped one would be filled with a download. The cache is made."""
    if data is not None and not Path(data).expanduser().exists():
        raise FlashbackError(f"there is no data folder {data}; check the path, or make the folder")


def _own_path(name: str, data: str | Path | None) -> Path:
    """As it was given; else below the data folder, by that path or by the file's name: a record outlives a folder."""
    path, folder = Path(name).expanduser(), data_folder(data)
    found = next((place for place in (path, folder / path, folder / path.name) if place.exists()), None)
    if found is None:
        if path.suffix != ".npz" and os.sep not in name:
            BENCHMARKS[name]  # raises the error that suggests the nearest name
        what = "file" if path.suffix == ".npz" else "folder"
        raise FlashbackError(f"there is no {what} {path}; check the path, or name the folder it is in (data, --data)")
    return found


def _choose(
    name: str | Path | Mapping[str, Any], sizes: Sizes | None, data: str | Path | None
) -> tuple[Spec, Source | None]:
    """What a benchmark is made of; images that come with a name are found later."""
    if isinstance(name, Mapping):
        own_sizes = _given(sizes, "a mapping of arrays")
        return _own_spec(IN_MEMORY, read_mapping(name, "the mapping"), own_sizes)
    if not isinstance(name, str | Path):
        raise FlashbackError(
            f"fb.load_benchmark takes a name, a path or a mapping of {', '.join(KEYS)}, not {type(name).__name__}"
        )
    if str(name) in BENCHMARKS:
        return BENCHMARKS[str(name)], None
    path = _own_path(str(name), data)
    own_sizes = _given(sizes, str(path))
    read = read_npz if path.suffix == ".npz" or path.is_file() else read_folder
    return _own_spec(path.stem, read(path), own_sizes)


def _given(sizes: Sizes | None, what: str) -> Sizes:
    if sizes is None:
        raise FlashbackError(
            f"{what} says nothing about tasks; give their sizes, such as --set benchmark.sizes=2 (in Python "
            "sizes=2) for two classes a task, or [4,2,2] for three tasks"
        )
    return read_sizes(sizes)


def _own_spec(name: str, source: Source, sizes: Sizes) -> tuple[Spec, Source]:
    """A benchmark of the user's own images; what is published for named ones is read off them."""
    dataset = Dataset(name, len(source.class_names), source.image, (), (), (), lambda path: source)
    return Spec(name, dataset, task_sizes(sizes, dataset.classes)), source


def _first(count: int | None, ranges: list[range]) -> list[range]:
    if count is not None and not 1 <= count <= len(ranges):
        raise FlashbackError(
            f"the benchmark has {len(ranges)} tasks, not {count}; give a number from 1 to {len(ranges)}"
        )
    return ranges[:count]


def _labels_only(source: Source) -> Source:
    def take(rows: Array) -> torch.Tensor:
        shape = (len(rows), source.image[0], SKETCHED_SIDE, SKETCHED_SIDE)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(len(rows)))

    return replace(source, train=replace(source.train, take=take), test=replace(source.test, take=take))


Part = tuple[Pool, Array]  # a pool and the rows of it that may be used


def _split(source: Source, validation: float, seed: int) -> tuple[Part, Part]:
    """The images to train on and those to test on."""
    if not 0 <= validation < 1:
        raise FlashbackError(f"validation is {validation}; give a fraction from 0 to below 1")
    if seed < 0:
        raise FlashbackError(f"the seed is {seed}; give one from 0")
    everything = np.arange(len(source.train.labels))
    if validation == 0:
        return (source.train, everything), (source.test, np.arange(len(source.test.labels)))
    held_out = _held_out(source.train.labels, validation, seed)
    return (source.train, everything[~held_out]), (source.train, everything[held_out])


def _held_out(labels: Array, fraction: float, seed: int) -> Array:
    """A mask with the same fraction of every class; a class's draw depends on its label alone, not on the order."""
    mask = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = max(1, round(fraction * len(rows)))
        if count == len(rows):
            raise FlashbackError(
                f"class {label} has {len(rows)} training images, too few to hold out {fraction:g} of them"
            )
        mask[np.random.default_rng([seed, int(label)]).permutation(rows)[:count]] = True
    return mask


def _tasks(train: Part, test: Part, order: Sequence[int], ranges: list[range], names: Sequence[str]) -> Iterator[Task]:
    position = np.argsort(np.array(order))  # label -> position in the order
    for index, classes in enumerate(ranges):
        train_rows, test_rows = (_rows_of(part, order[classes.start : classes.stop]) for part in (train, test))
        if absent := sorted(set(classes) - set(position[train[0].labels[train_rows]].tolist())):
            raise FlashbackError(f"task {index + 1} has no training images of class '{names[absent[0]]}'; add some")
        if len(test_rows) == 0:
            raise FlashbackError(f"task {index + 1} has no test images; add some or give other sizes")
        if untested := sorted(set(classes) - set(position[test[0].labels[test_rows]].tolist())):
            which = ", ".join(f"'{names[place]}'" for place in untested)
            warn_once(f"task {index + 1} has no test images of {which}, so its accuracy says nothing of them")
        yield Task(index, classes, _images(train[0], train_rows, position), _images(test[0], test_rows, position))


def _rows_of(part: Part, labels: Sequence[int]) -> Array:
    pool, rows = part
    inside: Array = rows[np.isin(pool.labels[rows], labels)]
    return inside


def _images(pool: Pool, rows: Array, position: Array) -> Images:
    return Images(pool.take(rows), torch.from_numpy(position[pool.labels[rows]]))


def _measure(x: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per channel, from the first task alone: later ones are unknown when learning starts."""
    sample = x[:: -(-len(x) // MEASURED_IMAGES)]
    counts = torch.zeros(x.shape[1], 256, dtype=torch.float64)  # how often each channel has each value
    for piece in torch.split(sample, MEASURED_AT_ONCE):
        counts += torch.stack([torch.bincount(each.flatten(), minlength=256) for each in piece.unbind(dim=1)])
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt().clamp(min=1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())
