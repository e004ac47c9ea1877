"""Images as they come: from a folder, a file, a CSV or an .npz, of any size. Unreadable ones are named and skipped."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from flashback.benchmarks.arrays import is_split_archive, read_labelled_arrays
from flashback.benchmarks.decoding import SUFFIXES, decode_image, fit_picture
from flashback.benchmarks.tasks import Array, reading
from flashback.errors import FlashbackError, printable, require, warn_once
from flashback.files import read_file

Shape = tuple[int, int, int]
Part = Literal["train", "test"]
Batch = tuple[list[int], torch.Tensor]  # positions in the list, and their images, uint8 [n, C, H, W]
LARGEST_IMAGE, LARGEST_LIST = 2**30, 2**30  # bytes of an image file and of a CSV
PATH_COLUMNS, LABEL_COLUMNS = ("path", "file", "filename", "image"), ("label", "class")
HELD_OUT = ("test", "val")
ENDINGS = ", ".join(SUFFIXES)
SOURCES = "a folder of images, an image, a .csv of paths or an .npz"


@dataclass(frozen=True)
class ListedImage:
    """One image of a list, not read yet.

    Attributes:
        name: Its path, or the file and row of an array, printable.
        label: Its class; a number if the source numbers its classes; None if it does not say.
        read: Reads it and fits it to a shape, or with None leaves its own, uint8 [C, H, W]; raises a FlashbackError
            if it is unreadable.
        number: The number of its class, if the source numbers its classes.
    """

    name: str
    label: str | int | None
    read: Callable[[Shape | None], Array]
    number: int = 0


def list_images(source: str | Path, labelled: bool = False, part: Part = "test") -> list[ListedImage]:
    """List the images of a source, without reading those that are files.

    Args:
        source: A folder, with folders in it at any depth; an image; a .csv of paths, relative to its folder, in the
            first column or that called `path`, and labels in the second or that called `label`; or an .npz with the
            arrays x and y, or those of a split, x_train, y_train, x_test and y_test.
        labelled: Whether the classes are needed. A folder then has one folder per class.
        part: Which images to list of a source that is split into train and test, if classes are needed.

    Returns:
        The images, sorted by path where they come from a folder.

    Raises:
        FlashbackError: If there is no such source, it has no images, or classes are needed and it has none.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        images = _class_folders(_part_of(path, part)) if labelled else [_listed(f, None) for f in _files_below(path)]
    elif path.suffix.lower() == ".csv":
        images = _csv_rows(path, labelled)
    elif path.suffix.lower() == ".npz":
        images = _npz_rows(path, part)
    else:
        require(path.exists(), f"there is no file or folder {printable(path)}; give {SOURCES}")
        require(not labelled, f"{printable(path)} does not say its class; give a folder with one folder per class")
        images = [_listed(path, None)]
    require(bool(images), f"{printable(path)} has no images; they are {ENDINGS} files")
    return images


def check_case_conflicts(names: Iterable[str], known: Collection[str] = ()) -> None:
    """Refuse a class name that differs only in case from another one, or from a known class."""
    spellings = {name.casefold(): name for name in known}
    for name in dict.fromkeys(names):
        other = name if name in known else spellings.setdefault(name.casefold(), name)
        require(other == name, f"the classes '{other}' and '{name}' differ only in case; rename one, or merge them")


def read_batches(
    images: Sequence[ListedImage],
    image_shape: Shape,
    batch: int,
    skipped: dict[str, str],
    advance: Callable[[int], None] = lambda count: None,
) -> Iterator[Batch]:
    """Read images in threads, one batch ahead of the one in use, and fit them to one shape.

    Args:
        images: What `list_images` returned.
        image_shape: Channels, height and width.
        batch: How many images to read at a time; at most twice as many are in memory.
        skipped: Gets the reason for each image that cannot be read, by name.
        advance: Called with the number of images that are done.

    Yields:
        The positions of the images that could be read, and their pixels.
    """

    threads = ThreadPoolExecutor()

    def submit(start: int) -> list[Future[Array]]:
        return [threads.submit(image.read, image_shape) for image in images[start : start + batch]]

    try:
        waiting = submit(0)
        for start in range(0, len(images), batch):
            current, waiting = waiting, submit(start + batch)
            rows, pixels = [], []
            for row, future in enumerate(current, start):
                try:
                    pixels.append(future.result())
                    rows.append(row)
                except FlashbackError as problem:
                    skipped[images[row].name] = str(problem)
            if rows:
                yield rows, torch.from_numpy(np.stack(pixels))
            advance(len(current))
    finally:
        threads.shutdown(cancel_futures=True)


# ---------------------------------------------------------------- folders


def _listed(path: Path, label: str | None) -> ListedImage:
    return ListedImage(printable(path), label, partial(_read_image, path))


def _read_image(path: Path, image_shape: Shape | None) -> Array:
    with reading(path):
        return decode_image(read_file(path, LARGEST_IMAGE), image_shape)


def _files_below(folder: Path) -> list[Path]:
    """All image files at any depth, without hidden ones; other files are counted in a warning."""
    files = list(_walk(folder, frozenset()))
    images = [path for path in files if path.name.lower().endswith(SUFFIXES)]
    if others := len(files) - len(images):
        warn_once(f"{others} of {len(files)} files in {printable(folder)} are ignored; images are {ENDINGS}")
    return images


def _walk(folder: Path, above: frozenset[tuple[int, int]]) -> Iterator[Path]:
    """Follow links to folders, except those that lead back to a folder above."""
    with reading(folder):
        status = folder.stat()
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(folder / entry.name, above | {here})
        else:
            yield folder / entry.name


def has_split(source: str | Path) -> bool:
    """Whether a source is split into train and test: a folder with both, or an .npz with x_train and x_test."""
    path = Path(source).expanduser()
    if path.is_dir():
        return _part_of(path, "test") != path
    return path.suffix.lower() == ".npz" and path.exists() and is_split_archive(path)


def _part_of(folder: Path, part: Part) -> Path:
    """The folder with the classes of one part; the folder itself if it has no split."""
    names = {entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")}
    held_out = [name for name in HELD_OUT if name in names]
    if "train" not in names or not held_out or not names <= {"train", *HELD_OUT}:
        return folder
    return folder / ("train" if part == "train" else held_out[0])


def _class_folders(folder: Path) -> list[ListedImage]:
    with reading(folder):
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    names = [entry.name for entry in entries if entry.is_dir()]
    require(bool(names), f"{printable(folder)} has no class folders; put images in one folder per class")
    if others := len(entries) - len(names):
        warn_once(f"files of {printable(folder)} in no class folder are ignored: {others}")
    images = list[ListedImage]()
    for name in names:
        files = _files_below(folder / name)
        if not files:
            warn_once(f"the class folder {printable(folder / name)} has no images")
        images.extend(_listed(file, printable(name)) for file in files)
    return images


# ---------------------------------------------------------------- lists and arrays


def _csv_rows(path: Path, labelled: bool) -> list[ListedImage]:
    with reading(path):
        text = read_file(path, LARGEST_LIST).decode("utf-8-sig", "surrogateescape")
        rows = [row for row in csv.reader(text.splitlines()) if any(row)]
    require(bool(rows), f"{printable(path)} is empty; give a path in each line, and a label if classes are needed")
    head = [cell.strip().lower() for cell in rows[0]]
    path_column = next((head.index(name) for name in PATH_COLUMNS if name in head), None)
    label_column: int | None = 1
    if path_column is not None:
        rows = rows[1:]
        label_column = next((head.index(name) for name in LABEL_COLUMNS if name in head), None)
    images = []
    for row in rows:
        label = row[label_column].strip() if label_column is not None and label_column < len(row) else ""
        require(bool(label) or not labelled, f"{printable(path)} has no label for {printable(row[0])}; add a column")
        images.append(_listed(path.parent / row[path_column or 0].strip(), printable(label) or None))
    return images


def _npz_rows(path: Path, part: Part) -> list[ListedImage]:
    x, y, names = read_labelled_arrays(path, part)
    return [
        ListedImage(
            *(f"{printable(path)}[{row}]", number if names is None else printable(names[number])),
            *(partial(fit_array, image), number),
        )
        for row, (image, number) in enumerate(zip(x, y.tolist(), strict=True))
    ]


def fit_array(image: Array, image_shape: Shape | None) -> Array:
    """Fit an image, uint8 [H, W, C], to a shape; to uint8 [C, H, W]."""
    from PIL import Image

    if image_shape is None or (image.shape[2], *image.shape[:2]) == tuple(image_shape):
        return image.transpose(2, 0, 1)
    return fit_picture(Image.fromarray(image[..., 0] if image.shape[2] == 1 else image), image_shape)
