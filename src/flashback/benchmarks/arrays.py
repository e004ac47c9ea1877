"""Datasets that fit in memory: .npz files and the binary CIFAR archives. Nothing is unpickled or unpacked to disk."""

from __future__ import annotations

import hashlib
import math
import os
import tarfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy

from flashback.benchmarks.raw_data import Array, Pool, Source, reading
from flashback.errors import FlashbackError

KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES = "class_names"  # may come with them: a text for every label, in the order of the labels
DEFLATE_LIMIT = 1032  # no deflate stream grows by more than this factor
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_MOST_IMAGES = 50_000


def checksum(arrays: Iterable[Array]) -> str:
    """sha256 over images (NHWC) and labels (int64), the same wherever the arrays were read from."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read_npz(path: Path, classes: int | None = None) -> Source:
    """An .npz of x_train, y_train, x_test, y_test; without `classes`, the labels of y_train say how many there are."""
    with reading(path), zipfile.ZipFile(path) as archive:
        arrays = [_member(archive, key, path) for key in KEYS]
        names = _member(archive, NAMES, path).tolist() if f"{NAMES}.npy" in archive.namelist() else None
    return from_arrays(arrays, path, classes, names)


def read_mapping(given: Mapping[str, Any], name: str) -> Source:
    """The same four arrays from memory, checked as those of a file; tensors and lists will do."""
    if missing := [key for key in KEYS if key not in given]:
        raise FlashbackError(_lacking(name, missing[0]))
    arrays = {key: _as_array(given[key], key, name) for key in (*KEYS, NAMES) if key in given}
    for key, array in arrays.items():
        _check_layout(key, array.shape, array.dtype, name)
    return from_arrays([arrays[key] for key in KEYS], name, None, arrays[NAMES].tolist() if NAMES in arrays else None)


def _as_array(value: Any, key: str, name: str) -> Array:
    try:
        return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError):  # bfloat16, which numpy lacks, and lists of unequal lengths
        raise FlashbackError(f"{name}: '{key}' cannot be made an array; give a numpy array or a tensor") from None


def _lacking(path: Path | str, key: str) -> str:
    return f"{path} has no array '{key}'; it needs {', '.join(KEYS)}"


def count_classes(path: Path) -> int:
    """How many classes an .npz has, by its labels alone."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return len(np.unique(_member(archive, "y_train", path)))


def _member(archive: zipfile.ZipFile, key: str, path: Path) -> Array:
    """One array, read only after its declared shape, type and size have been found plausible."""
    try:
        info = archive.getinfo(f"{key}.npy")
    except KeyError:
        raise FlashbackError(_lacking(path, key)) from None
    with archive.open(info) as stream:
        shape, dtype = _header(stream)
        declared = stream.tell() + math.prod(shape) * dtype.itemsize
    _check_layout(key, shape, dtype, path)
    growth = DEFLATE_LIMIT if info.compress_type == zipfile.ZIP_DEFLATED else 1
    if declared != info.file_size or info.file_size > growth * path.stat().st_size:
        raise FlashbackError(
            f"{path}: '{key}' declares {declared} bytes of shape {shape}, which the file cannot hold; write it again"
        )
    if declared > (memory := os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")):  # a bomb that holds its word
        raise FlashbackError(
            f"{path}: '{key}' needs {declared / 2**30:.1f} GiB of memory, but this machine has {memory / 2**30:.1f}"
        )
    with archive.open(info) as stream:
        array: Array = npy.read_array(stream, allow_pickle=False)
    return array


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    read = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _check_layout(key: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], path: Path | str) -> None:
    if key == NAMES:
        fits, wanted = dtype.kind == "U" and len(shape) == 1, "a list of texts, one for each label"
    elif key.startswith("y"):
        fits, wanted = dtype.kind in "iu" and len(shape) == 1, "integers [n]"
    else:
        fits = dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))
        wanted = "uint8 [n, height, width] or [n, height, width, channels] with 1 or 3 channels"
    if not fits or min(shape) < 1:
        raise FlashbackError(f"{path}: '{key}' is {dtype} {list(shape)}; it must be {wanted}, and not empty")


def from_arrays(
    arrays: Iterable[Array], path: Path | str, classes: int | None, class_names: Sequence[str] | None = None
) -> Source:
    """A source over images [n, H, W(, C)] and labels, each pair checked against the other."""
    x_train, y_train, x_test, y_test = arrays
    x_train, x_test = (x if x.ndim == 4 else x[..., None] for x in (x_train, x_test))
    classes = classes or len(np.unique(y_train))
    if x_train.shape[1:] != x_test.shape[1:]:
        raise FlashbackError(
            f"{path}: training images are {list(x_train.shape[1:])} but test images {list(x_test.shape[1:])}; "
            "make them equal"
        )
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise FlashbackError(f"{path}: x_{part} has {len(x)} images but y_{part} {len(y)} labels; they must match")
        if y.min() < 0 or y.max() >= classes:
            raise FlashbackError(
                f"{path}: y_{part} has labels from {y.min()} to {y.max()}; {classes} classes are labelled "
                f"0 to {classes - 1}, each with training images"
            )
    names = tuple(map(str, range(classes))) if class_names is None else tuple(class_names)
    if len(names) != classes:
        raise FlashbackError(f"{path}: {NAMES} has {len(names)} entries for {classes} classes; name each label once")
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    height, width, channels = x_train.shape[1:]
    return Source(
        train=_pool(x_train, y_train),
        test=_pool(x_test, y_test),
        class_names=names,
        image=(channels, height, width),
        checksum=checksum((x_train, y_train, x_test, y_test)),
    )


def _pool(x: Array, y: Array) -> Pool:
    return Pool(y, lambda rows: torch.from_numpy(np.ascontiguousarray(x[rows].transpose(0, 3, 1, 2))))


def read_cifar10(path: Path) -> Source:
    """cifar-10-binary.tar.gz: records of one label byte and 3072 pixels, in five training files and one of test."""
    folder = "cifar-10-batches-bin"
    train = [f"{folder}/data_batch_{number}.bin" for number in range(1, 6)]
    return _read_cifar(path, train, f"{folder}/test_batch.bin", label_bytes=1, classes=10)


def read_cifar100(path: Path) -> Source:
    """cifar-100-binary.tar.gz: records of a coarse label, a fine label (the one used) and 3072 pixels."""
    folder = "cifar-100-binary"
    return _read_cifar(path, [f"{folder}/train.bin"], f"{folder}/test.bin", label_bytes=2, classes=100)


def _read_cifar(path: Path, train: list[str], test: str, label_bytes: int, classes: int) -> Source:
    record = label_bytes + CIFAR_PIXELS
    files = _tar_members(path, {*train, test}, record)
    arrays: list[Array] = []
    for names in (train, [test]):
        records = np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, record)
        arrays.append(records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays.append(records[:, label_bytes - 1])
    return from_arrays(arrays, path, classes)


def _tar_members(path: Path, wanted: set[str], record: int) -> dict[str, bytes]:
    """The named members of a .tar.gz, in one pass over it; each is a whole number of records."""
    found: dict[str, bytes] = {}
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.name not in wanted:
                continue
            images, rest = divmod(member.size, record)
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None or rest or not 0 < images <= CIFAR_MOST_IMAGES:
                raise FlashbackError(f"{path}: {member.name} holds no whole number of images; fetch the archive again")
            found[member.name] = stream.read()
    if missing := sorted(wanted - set(found)):
        raise FlashbackError(f"{path} does not hold {missing[0]}; fetch the official archive again")
    return found
