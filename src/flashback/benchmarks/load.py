"""Load a benchmark: find the images, order the classes, split them into tasks."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashback.benchmarks.arrays import KEYS, read_mapping, read_npz
from flashback.benchmarks.image_files import read_folder
from flashback.benchmarks.rotation import rotated
from flashback.benchmarks.specs import BENCHMARKS, Dataset, Spec
from flashback.benchmarks.splits import (
    Order,
    Sizes,
    class_order,
    consecutive,
    has_names,
    read_sizes,
    task_ranges,
    task_sizes,
)
from flashback.benchmarks.tasks import Array, Benchmark, Images, RawDataset, RawSplit, Task, data_folder
from flashback.errors import FlashbackError, printable, require, warn_once

PLACEHOLDER_SIDE = 16  # every backbone can halve it three times
IN_MEMORY = "arrays"  # the name of a benchmark made of arrays in memory
MEASURED_IMAGES = 2_000  # for the mean and deviation of a dataset without published ones
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
    """Load a benchmark by name, or make one from your own images.

    Args:
        name: A registered name; the path of an .npz file or of a folder of images; or a mapping with the arrays or
            tensors x_train, y_train, x_test, y_test and optionally class_names. Your own images need `sizes`.
        data: The data folder, where paths are looked up too. Default: FLASHBACK_DATA, else the user's cache folder.
        order: The class order: "identity", a number that seeds a permutation, "seed" for the seed of the run, or a
            list that names each class once, by label or by class name. Default: that of the benchmark.
        sizes: The number of classes of each task: a list, a number for equal tasks, or a text such as "50+5x10".
            A benchmark whose classes reappear has fixed tasks and takes none.
        validation: The fraction of the training images of each class that replaces the test images.
        seed: Selects the validation images, and the class order if `order` is "seed".
        download: Whether missing files may be downloaded.
        tasks: How many tasks to use, from the first on; None: all.
        labels_only: Load the labels but no images; small noise images take their place. Fast, for counting.

    Returns:
        The benchmark. Images of a folder stay in files and are read when used.

    Raises:
        FlashbackError: If the data are missing or damaged, or the order or sizes do not fit them.
    """
    _check_folder(data)
    spec, raw = _choose(name, sizes, data)
    dataset = spec.dataset
    order = spec.order if order is None else order
    by_label = dataset.class_names or None
    if has_names(order) and by_label is None:
        raw = load_dataset(dataset, data, download)
        by_label = raw.class_names
    labels = class_order(order, dataset.classes, seed, by_label)
    require(
        sizes is None or not spec.revisit_after,
        f"the tasks of {spec.name} are fixed, because its classes reappear; leave benchmark.sizes out",
    )
    ranges = consecutive(spec.sizes) if sizes is None else task_ranges(sizes, dataset.classes)
    count = len(ranges)
    fits = tasks is None or 1 <= tasks <= count
    require(fits, f"the benchmark has {count} tasks, not {tasks}; give a number from 1 to {count}")
    raw = raw or load_dataset(dataset, data, download)
    raw = _without_images(raw) if labels_only else raw
    names = [(by_label or raw.class_names)[label] for label in labels]
    all_tasks = tuple(islice(_tasks(spec, _split(raw, validation, seed), labels, ranges, names), tasks))
    mean, std = (dataset.mean, dataset.std) if dataset.mean else measure_channels(all_tasks[0].train.x)
    return Benchmark(
        *(spec.name, dataset.name, labels, all_tasks, mean, std, tuple(names), raw.checksum),
        validation=float(validation),
        validation_seed=seed if validation else None,
    )


def missing_data(name: str, data: str | Path | None = None) -> str | None:
    """Say how to get the data of a benchmark if they are missing; the user's own files must exist."""
    _check_folder(data)
    if name not in BENCHMARKS:
        _find_path(name, data)
        return None
    dataset = BENCHMARKS[name].dataset
    if find_files(dataset, data) is not None:
        return None
    missing = missing_message(dataset, data_folder(data))
    return missing + (f", or let a run download them from {dataset.url}" if dataset.url else "")


def fetch_data(name: str, data: str | Path | None = None) -> Path:
    _check_folder(data)
    return fetch_files(BENCHMARKS[name].dataset, data) if name in BENCHMARKS else _find_path(name, data)


def _check_folder(data: str | Path | None) -> None:
    """A named folder must exist, so that a mistyped one is not filled with a download."""
    if data is not None and not Path(data).expanduser().exists():
        raise FlashbackError(f"there is no data folder {data}; check the path, or make the folder")


def _find_path(name: str, data: str | Path | None) -> Path:
    """Find a file or folder as given, else in the data folder, by its path or by its name."""
    path, folder = Path(name).expanduser(), data_folder(data)
    for candidate in (path, folder / path, folder / path.name):
        if candidate.exists():
            regular = candidate.is_dir() or candidate.is_file()  # reading a pipe would never end
            require(regular, f"{printable(candidate)} is neither a file nor a folder; check the path")
            return candidate
    if path.suffix != ".npz" and os.sep not in name:
        BENCHMARKS[name]  # raises the error that suggests the nearest name
    kind = "file" if path.suffix == ".npz" else "folder"
    raise FlashbackError(
        f"there is no {kind} {printable(path)}; check the path, or name the folder it is in (data, --data)"
    )


def _choose(
    name: str | Path | Mapping[str, Any], sizes: Sizes | None, data: str | Path | None
) -> tuple[Spec, RawDataset | None]:
    if isinstance(name, str | Path) and str(name) in BENCHMARKS:
        return BENCHMARKS[str(name)], None
    read: Callable[[], RawDataset]
    if isinstance(name, Mapping):
        source, title, read = "a mapping of arrays", IN_MEMORY, partial(read_mapping, name, "the mapping")
    elif isinstance(name, str | Path):
        path = _find_path(str(name), data)
        source, title = printable(path), path.stem
        read = partial(read_npz if path.suffix == ".npz" or path.is_file() else read_folder, path)
    else:
        raise FlashbackError(
            f"fb.load_benchmark takes a name, a path or a mapping of {', '.join(KEYS)}, not {type(name).__name__}"
        )
    if sizes is None:
        raise FlashbackError(
            f"{source} has no information about tasks; give their sizes, such as --set benchmark.sizes=2 (in Python "
            "sizes=2) for two classes a task, or [4,2,2] for three tasks"
        )
    size_list, raw = read_sizes(sizes), read()
    dataset = Dataset(title, len(raw.class_names), raw.image_shape, (), (), (), lambda path: raw, raw.class_names)
    return Spec(title, dataset, task_sizes(size_list, dataset.classes)), raw


def _without_images(raw: RawDataset) -> RawDataset:
    def load(rows: Array) -> torch.Tensor:
        shape = (len(rows), raw.image_shape[0], PLACEHOLDER_SIDE, PLACEHOLDER_SIDE)
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(len(rows)))

    return replace(raw, train=replace(raw.train, load=load), test=replace(raw.test, load=load))


Part = tuple[RawSplit, Array]  # a split and the rows of it to use


def _split(raw: RawDataset, validation: float, seed: int) -> tuple[Part, Part]:
    require(0 <= validation < 1, f"validation is {validation}; give a fraction from 0 to below 1")
    require(seed >= 0, f"the seed is {seed}; give one from 0")
    all_rows = np.arange(len(raw.train.labels))
    if validation == 0:
        return (raw.train, all_rows), (raw.test, np.arange(len(raw.test.labels)))
    held_out = _held_out(raw.train.labels, validation, seed)
    return (raw.train, all_rows[~held_out]), (raw.train, all_rows[held_out])


def _held_out(labels: Array, fraction: float, seed: int) -> Array:
    """Select the same fraction of each class; the selection depends on the label and the seed, not on the order."""
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


def _tasks(
    spec: Spec, parts: tuple[Part, Part], order: Sequence[int], ranges: list[range], names: Sequence[str]
) -> Iterator[Task]:
    position = np.argsort(np.array(order))  # label -> position in the order
    occurrences = (0, *spec.revisit_after)  # tasks since the first one of a class
    first = np.repeat(np.arange(len(ranges)), [len(classes) for classes in ranges])  # task of each column
    labels = [position[split.labels[rows]] for split, rows in parts]
    turns = _turns(labels[0], len(occurrences))
    for index, classes in enumerate(ranges):
        age = [index - first[present] for present in labels]
        masks = np.take(occurrences, turns) == age[0], np.isin(age[1], occurrences)
        selection = [rows[mask] for (_, rows), mask in zip(parts, masks, strict=True)]
        columns = [present[mask] for present, mask in zip(labels, masks, strict=True)]
        revisited = tuple(column for column in range(classes.start) if index - first[column] in spec.revisit_after)
        absent, untested = (sorted({*revisited, *classes} - set(present.tolist())) for present in columns)
        if absent:
            raise FlashbackError(f"task {index + 1} has no training images of class '{names[absent[0]]}'; add some")
        has_tests = len(untested) != len(classes) + len(revisited)
        require(has_tests, f"task {index + 1} has no test images; add some or give other sizes")
        if untested:
            listed = ", ".join(f"'{names[place]}'" for place in untested)
            warn_once(f"task {index + 1} has no test images of {listed}, so its accuracy ignores them")
        loaded = [split.load(rows) for (split, _), rows in zip(parts, selection, strict=True)]
        if spec.degrees:
            loaded = [rotated(images, spec.degrees[index]) for images in loaded]
        train, test = (Images(x, torch.from_numpy(y)) for x, y in zip(loaded, columns, strict=True))
        yield Task(index, classes, train, test, revisited)


def _turns(labels: Array, count: int) -> Array:
    """Split the rows of each class into `count` equal parts, in their order; returns the part of each row."""
    turns = np.zeros(len(labels), int)
    for label in np.unique(labels) if count > 1 else ():
        rows = np.flatnonzero(labels == label)
        turns[rows] = np.arange(len(rows)) * count // len(rows)
    return turns


def measure_channels(x: torch.Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of the first task: later tasks are unknown when learning starts."""
    rows = torch.arange(len(x))
    if len(x) > MEASURED_IMAGES:  # every k-th row would favour classes that alternate
        rows = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:MEASURED_IMAGES].sort().values
    counts = torch.zeros(x.shape[1], 256, dtype=torch.float64)  # how often each channel has each value
    for piece in torch.split(rows, MEASURED_AT_ONCE):
        counts += torch.stack([torch.bincount(each.flatten(), minlength=256) for each in x[piece].unbind(dim=1)])
    values = torch.arange(256, dtype=torch.float64) / 255
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ values
    std = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt().clamp(min=1 / 255)
    return tuple(mean.tolist()), tuple(std.tolist())


def load_dataset(dataset: Dataset, data: str | Path | None, download: bool) -> RawDataset:
    folder, files = data_folder(data), fetch_files(dataset, data, download)
    is_npz = files == folder / f"{dataset.name}.npz"
    raw = read_npz(files, dataset.classes) if is_npz else dataset.read(files)
    if raw.image_shape != dataset.image or len(raw.class_names) != dataset.classes:
        raise FlashbackError(
            f"the files of {dataset.name} in {folder} have {len(raw.class_names)} classes of images "
            f"{list(raw.image_shape)}, expected {dataset.classes} of {list(dataset.image)}; check the files"
        )
    numbers = tuple(map(str, range(dataset.classes)))  # the names of classes without names
    if dataset.class_names and raw.class_names not in (dataset.class_names, numbers):
        pairs = zip(raw.class_names, dataset.class_names, strict=True)
        label, (name, expected) = next((label, pair) for label, pair in enumerate(pairs) if pair[0] != pair[1])
        raise FlashbackError(
            f"{printable(files)}: label {label} is '{name}', but '{expected}' in {dataset.name}; number the classes as "
            f"{dataset.name} does, or leave class_names out if only their spelling differs"
        )
    if dataset.checksum not in (None, raw.checksum):
        raise FlashbackError(f"the data of {dataset.name} have a wrong checksum; install the package again")
    return raw


def find_files(dataset: Dataset, data: str | Path | None) -> Path | None:
    folder = data_folder(data)
    paths = [folder / name for name in (f"{dataset.name}.npz", *dataset.files)]
    return next((path for path in paths if path.is_file() or path.is_dir()), None)


def missing_message(dataset: Dataset, folder: Path) -> str:
    files = " or ".join((f"{dataset.name}.npz", *dataset.files))
    missing = f"the data of {dataset.name} are missing; put {files} into {folder} (or name another folder)"
    pickled = sorted(folder.glob(f"{dataset.name.replace('cifar', 'cifar-')}-*py*"))  # torchvision's layout
    return missing + (f"; {pickled[0].name} is there, but pickled, and data are never unpickled" if pickled else "")


def fetch_files(dataset: Dataset, data: str | Path | None, download: bool = True) -> Path:
    if path := find_files(dataset, data):
        return path
    import pooch

    folder = data_folder(data)
    missing = missing_message(dataset, folder)
    if not (download and dataset.url):
        raise FlashbackError(missing)
    pooch.get_logger().setLevel("WARNING")  # the progress bar shows the address and the size
    try:
        downloader = pooch.HTTPDownloader(progressbar=_Progress(dataset, folder), chunk_size=2**16)
        return Path(
            pooch.retrieve(dataset.url, f"md5:{dataset.md5}", dataset.files[0], path=folder, downloader=downloader)
        )
    except (OSError, ValueError) as problem:  # no network, no such address, no space, or a wrong checksum
        reason = str(problem) if isinstance(problem, ValueError) else type(problem).__name__
        raise FlashbackError(f"{missing}: downloading {dataset.url} failed ({reason})") from None


class _Progress:
    """The progress-bar interface of pooch, drawn by rich."""

    total = 0  # set by pooch when the server has answered; 0 if the size is unknown

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(dataset.files[0], total=None)
        self._url, self._folder = dataset.url, folder

    def update(self, count: int) -> None:
        if not self._bar.live.is_started and count:
            amount = f"{self.total / 1e6:,.1f} MB" if self.total else "of unknown size"
            print(f"downloading {self._url}, {amount}, into {self._folder}", file=sys.stderr)
            self._bar.start()
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        self._bar.stop()
