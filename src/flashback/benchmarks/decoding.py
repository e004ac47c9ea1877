"""Images that are decoded once, group by group, into .npy files beside the data.

Tensors share memory with those files, so a large dataset need not fit in memory.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy

from flashback.benchmarks.pools import Array, Pool, Source, reading
from flashback.errors import FlashbackError

FORMATS = ("PNG", "JPEG")
CACHE = ".flashback"


@dataclass(frozen=True)
class File:
    """One image file of a listing."""

    name: str  # relative to the root, or within the archive
    label: int
    size: int
    stamp: int  # changes when the content does: modification time, or CRC in an archive


@dataclass(frozen=True)
class Store:
    """Where image files are read from, and the folder that keeps the decoded ones."""

    root: Path
    read: Callable[[str], bytes]
    cache: Path

    def decode(self, name: str, side: int | None) -> Array:
        """One image as uint8 [3, H, W], at its own size or as the central square of `side`."""
        from PIL import Image

        with reading(self.root / name):
            with Image.open(io.BytesIO(self.read(name)), formats=FORMATS) as file:
                picture = file.convert("RGB")
            if side is not None:  # the same as short side to `side`, then its centre, but never larger than the file
                left, top = ((length - min(picture.size)) / 2 for length in picture.size)
                square = (left, top, left + min(picture.size), top + min(picture.size))
                picture = picture.resize((side, side), Image.Resampling.BILINEAR, box=square)
            return np.asarray(picture).transpose(2, 0, 1)


def _checksum(files: Iterable[File], *, stamps: bool) -> str:
    lines = (f"{file.name}\t{file.size}\t{file.stamp if stamps else ''}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def from_files(
    store: Store, train: Sequence[File], test: Sequence[File], class_names: Sequence[str], side: int | None
) -> Source:
    """The checksum covers names and sizes: hashing the pixels of a large set would cost minutes at every start."""
    if not train or not test:
        raise FlashbackError(
            f"{store.root} has no {'test' if train else 'training'} images; put .png or .jpg files there"
        )
    _, height, width = store.decode(train[0].name, side).shape

    def pool(files: Sequence[File]) -> Pool:
        labels = np.array([file.label for file in files], np.int64)
        return Pool(labels, lambda rows: _decoded(store, [files[row] for row in rows], side, (3, height, width)))

    checksum = _checksum([*train, *test], stamps=False)
    return Source(pool(train), pool(test), tuple(class_names), (3, height, width), checksum)


def _decoded(store: Store, files: Sequence[File], side: int | None, image: tuple[int, int, int]) -> torch.Tensor:
    """The images of these files, from the cache if the listing is unchanged, else decoded into it."""
    shape = (len(files), *image)
    path = store.cache / f"{_checksum(files, stamps=True)[:32]}-{side or 'native'}.npy"
    array = _cached(path, shape)
    if array is None:
        _write(path, shape, files, partial(store.decode, side=side))
        array = _cached(path, shape)
    if array is None:
        raise FlashbackError(f"cannot read back {path}; check the disk")
    return torch.from_numpy(array)


def _cached(path: Path, shape: tuple[int, ...]) -> Array | None:
    """The file mapped into memory, copy-on-write so that nothing can change it; None if it is not usable."""
    try:
        array: Array = npy.open_memmap(path, mode="c")
    except (OSError, ValueError):
        return None
    return array if array.shape == shape and array.dtype == np.uint8 else None


def _write(path: Path, shape: tuple[int, ...], files: Sequence[File], decode: Callable[[str], Array]) -> None:
    """Decodes into a temporary file that takes its name only when complete."""
    part = path.with_suffix(f".{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if (needed := math.prod(shape)) > shutil.disk_usage(path.parent).free:  # a full disk would kill the process
            raise FlashbackError(f"decoding needs {needed / 2**30:.1f} GiB in {path.parent}; free some space there")
        _fill(npy.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape), files, decode)
        os.replace(part, path)
    except OSError as problem:
        raise FlashbackError(f"cannot write decoded images to {path.parent} ({problem.strerror})") from None
    finally:
        part.unlink(missing_ok=True)


def _fill(array: np.memmap[Any, Any], files: Sequence[File], decode: Callable[[str], Array]) -> None:
    from rich.console import Console
    from rich.progress import track

    def one(row: int) -> None:
        picture = decode(files[row].name)
        if picture.shape != array.shape[1:]:
            found, wanted = (f"{width}x{height}" for _, height, width in (picture.shape, array.shape[1:]))
            raise FlashbackError(f"{files[row].name} is {found} but the first image is {wanted}; make them equal")
        array[row] = picture

    with ThreadPoolExecutor() as threads:
        rows = threads.map(one, range(len(files)))
        for _ in track(rows, "decoding", len(files), console=Console(stderr=True), disable=len(files) < 1000):
            pass
    array.flush()
