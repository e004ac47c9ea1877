"""Datasets that fit in memory: .npz files and the binary CIFAR archives. Nothing is unpickled or unpacked to disk."""

import hashlib
import math
import os
import tarfile
import zipfile
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy

from flashback.benchmarks.tasks import Array, RawDataset, RawSplit, reading
from flashback.errors import FlashbackError, printable, require

KEYS = ("x_train", "y_train", "x_test", "y_test")
NAMES = "class_names"  # optional: the name of each label
DEFLATE_LIMIT = 1032  # the largest possible compression ratio of deflate
CIFAR_PIXELS = 3 * 32 * 32
MOST_CIFAR_IMAGES = 50_000


def checksum(arrays: Iterable[Array]) -> str:
    """The sha256 of images (NHWC) and labels (int64)."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def read_npz(path: Path, classes: int | None = None) -> RawDataset:
    """Read x_train, y_train, x_test, y_test; by default the labels of y_train determine the number of classes."""
    with reading(path), zipfile.ZipFile(path) as archive:
        arrays = {key: _read_array(archive, key, path) for key in _keys(_names(archive), path)}
        return from_arrays(arrays, path, classes)


def npz_class_names(path: Path) -> Sequence[str]:
    """The class names of an .npz, or its labels as texts, without reading its images."""
    with reading(path), zipfile.ZipFile(path) as archive:
        if NAMES in _keys(_names(archive), path):
            return [printable(name) for name in _read_array(archive, NAMES, path)]
        return [str(label) for label in range(len(np.unique(_read_array(archive, "y_train", path))))]


def is_split_archive(path: Path) -> bool:
    """Whether an .npz has training and test images apart."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return {f"{key}.npy" for key in KEYS} <= set(archive.namelist())


def read_labelled_arrays(path: Path, part: str = "test") -> tuple[Array, Array, list[str] | None]:
    """Read images [n, H, W, C], labels [n] and class names, if there are some: x and y, or else those of a part."""
    with reading(path), zipfile.ZipFile(path) as archive:
        available = _names(archive)
        keys = ("x", "y") if "x" in available else (f"x_{part}", f"y_{part}")
        for key in keys:
            require(key in available, f"{path} has no array '{key}'; it needs x and y, or x_{part} and y_{part}")
        x, y = (_read_array(archive, key, path) for key in keys)
        names = [printable(name) for name in _read_array(archive, NAMES, path)] if NAMES in available else None
    require(len(x) == len(y), f"{path}: {keys[0]} has {len(x)} images but {keys[1]} {len(y)} labels; they must match")
    require(
        names is None or (y.min() >= 0 and y.max() < len(names)),
        f"{path}: {keys[1]} has labels from {y.min()} to {y.max()}, which {NAMES} does not all name; name each label",
    )
    return (x if x.ndim == 4 else x[..., None]), y, names


def read_mapping(mapping: Mapping[str, Any], name: str) -> RawDataset:
    arrays = {key: _as_array(mapping[key], key, name) for key in _keys(mapping, name)}
    for key, array in arrays.items():
        _check_layout(key, array.shape, array.dtype, name)
    return from_arrays(arrays, name, None)


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist()]


def _keys(available: Container[str], source: Path | str) -> list[str]:
    for key in KEYS:
        require(key in available, f"{source} has no array '{key}'; it needs {', '.join(KEYS)}")
    return [*KEYS, NAMES] if NAMES in available else list(KEYS)


def _as_array(value: Any, key: str, name: str) -> Array:
    try:
        return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError):  # bfloat16, which numpy lacks, or lists of unequal lengths
        raise FlashbackError(f"{name}: '{key}' is not an array; give a numpy array or a tensor") from None


def _read_array(archive: zipfile.ZipFile, key: str, path: Path) -> Array:
    """Read one array, after checking that its declared shape, type and size are plausible."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as stream:
        shape, dtype = _header(stream)
        declared = stream.tell() + math.prod(shape) * dtype.itemsize
    _check_layout(key, shape, dtype, path)
    growth = DEFLATE_LIMIT if info.compress_type == zipfile.ZIP_DEFLATED else 1
    require(
        declared == info.file_size <= growth * path.stat().st_size,
        f"{path}: '{key}' declares {declared} bytes of shape {shape}, which the file cannot contain; write it again",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    require(
        declared <= memory,  # a true size may be too large
        f"{path}: '{key}' needs {declared / 2**30:.1f} GiB of memory, but this machine has {memory / 2**30:.1f}",
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
        fits, required = dtype.kind == "U" and len(shape) == 1, "a list of texts, one for each label"
    elif key.startswith("y"):
        fits, required = dtype.kind in "iu" and len(shape) == 1, "integers [n]"
    else:
        fits = dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))
        required = "uint8 [n, height, width] or [n, height, width, channels] with 1 or 3 channels"
    if not fits or min(shape) < 1:
        raise FlashbackError(f"{path}: '{key}' is {dtype} {list(shape)}; it must be {required}, and not empty")


def from_arrays(arrays: Mapping[str, Array], source: Path | str, classes: int | None) -> RawDataset:
    """Make a dataset of images [n, H, W] or [n, H, W, C] and labels, after checking that they fit together."""
    x_train, x_test = (x if x.ndim == 4 else x[..., None] for x in (arrays["x_train"], arrays["x_test"]))
    y_train, y_test = arrays["y_train"], arrays["y_test"]
    classes = classes or len(np.unique(y_train))
    names = tuple(arrays.get(NAMES, np.arange(classes).astype(str)).tolist())
    require(
        x_train.shape[1:] == x_test.shape[1:],
        f"{source}: training images are {list(x_train.shape[1:])} but test images {list(x_test.shape[1:])}; "
        "make them equal",
    )
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        require(
            len(x) == len(y), f"{source}: x_{part} has {len(x)} images but y_{part} {len(y)} labels; they must match"
        )
        require(
            y.min() >= 0 and y.max() < classes,
            f"{source}: y_{part} has labels from {y.min()} to {y.max()}; {classes} classes have labels "
            f"0 to {classes - 1}, each with training images",
        )
    require(
        len(names) == classes,
        f"{source}: {NAMES} has {len(names)} entries for {classes} classes; name each label once",
    )
    y_train, y_test = y_train.astype(np.int64), y_test.astype(np.int64)
    height, width, channels = x_train.shape[1:]
    return RawDataset(
        train=_split(x_train, y_train),
        test=_split(x_test, y_test),
        class_names=tuple(map(printable, names)),
        image_shape=(channels, height, width),
        checksum=checksum((x_train, y_train, x_test, y_test)),
    )


def _split(x: Array, y: Array) -> RawSplit:
    return RawSplit(y, lambda rows: torch.from_numpy(np.ascontiguousarray(x[rows].transpose(0, 3, 1, 2))))


def read_cifar10(path: Path) -> RawDataset:
    """Read cifar-10-binary.tar.gz: records of one label byte and 3072 pixels."""
    folder = "cifar-10-batches-bin"
    train = [f"{folder}/data_batch_{number}.bin" for number in range(1, 6)]
    return _read_cifar(path, train, f"{folder}/test_batch.bin", label_bytes=1, classes=10)


def read_cifar100(path: Path) -> RawDataset:
    """Read cifar-100-binary.tar.gz: records of a coarse label, a fine label (the one used) and 3072 pixels."""
    folder = "cifar-100-binary"
    return _read_cifar(path, [f"{folder}/train.bin"], f"{folder}/test.bin", label_bytes=2, classes=100)


def _read_cifar(path: Path, train: list[str], test: str, label_bytes: int, classes: int) -> RawDataset:
    record = label_bytes + CIFAR_PIXELS
    files = _tar_members(path, {*train, test}, record)
    arrays: list[Array] = []
    for names in (train, [test]):
        records = np.frombuffer(b"".join(files[name] for name in names), np.uint8).reshape(-1, record)
        arrays.append(records[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        arrays.append(records[:, label_bytes - 1])
    return from_arrays(dict(zip(KEYS, arrays, strict=True)), path, classes)


def _tar_members(path: Path, names: set[str], record: int) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    with reading(path), tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.name not in names:
                continue
            images, rest = divmod(member.size, record)
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None or rest or not 0 < images <= MOST_CIFAR_IMAGES:
                raise FlashbackError(f"{path}: {member.name} is not a whole number of images; download it again")
            contents[member.name] = stream.read()
    if missing := sorted(names - set(contents)):
        raise FlashbackError(f"{path} does not contain {missing[0]}; download the official archive again")
    return contents
