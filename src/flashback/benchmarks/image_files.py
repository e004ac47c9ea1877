"""Datasets of image files, decoded once into one mapped .npy file per class that all orders, splits and sizes share."""

import fcntl
import math
import os
import re
import struct
import uuid
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.lib import format as npy

from flashback.benchmarks.decoding import SUFFIXES, decode_image
from flashback.benchmarks.mapped_images import MappedImages
from flashback.benchmarks.splits import imagenet100_classes
from flashback.benchmarks.tasks import SMALL_SIDE, Array, RawDataset, RawSplit, data_folder, reading
from flashback.errors import FlashbackError, printable, require, warn_once
from flashback.files import LOCK, NO_SPACE, open_to_append, sha256

CACHE = ".flashback"
VERSION = 3  # of the cache: raise it when images are decoded differently
TRAILER = struct.Struct("<II")  # after the pixels of a file: the version and their CRC-32
DECODED_AT_ONCE = 256  # images in memory before they are written
PROGRESS_FROM = 1000  # images from which a progress bar is shown
LARGE_SIDE = 256  # large images are stored as their central square of 256 pixels, from which crops of 224 are cut
TINY = "tiny-imagenet-200"
LARGEST_MEMBER = 64 * 2**20


@dataclass(frozen=True)
class File:
    name: str  # relative to the root, or inside the archive
    label: int
    size: int
    stamp: str  # changes with the content: times and inode, or CRC in an archive


@dataclass(frozen=True)
class Store:
    """Where image files are read from, and the folder for decoded ones."""

    root: Path
    read: Callable[[str], bytes]
    cache: Path
    shared: bool = False  # whether other datasets have the same cache

    def decode(self, name: str, side: int | None) -> Array:
        """Decode an image to uint8 [3, H, W]: all of it, or its central square resized to `side` pixels."""
        with reading(self.root / name):
            return decode_image(self.read(name), None if side is None else (3, side, side))


def _checksum(files: Iterable[File], *, stamps: bool) -> str:
    lines = (f"{file.name}\t{file.size}\t{file.stamp if stamps else ''}\n" for file in files)
    return sha256("".join(lines).encode("utf-8", "surrogateescape"))


def from_files(
    store: Store, train: Sequence[File], test: Sequence[File], class_names: Sequence[str], side: int | None = None
) -> RawDataset:
    """Store images as squares of `side` pixels; None: as they are, but large ones with 256."""
    for part, files in (("training", train), ("test", test)):
        require(bool(files), f"{printable(store.root)} has no {part} images; put {', '.join(SUFFIXES)} files there")
    _, height, width = store.decode(train[0].name, side).shape
    if side is None and max(height, width) > SMALL_SIDE:
        side = height = width = LARGE_SIDE
    image_shape = (3, height, width)

    def split(files: Sequence[File]) -> RawSplit:
        labels = np.array([file.label for file in files], np.int64)

        def load(rows: Array) -> torch.Tensor:
            members = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels[rows])]
            groups = [DecodedClass(store, [files[row] for row in group], side, image_shape) for group in members]
            pictures: dict[int, Array] = {}
            for group_rows, images in zip(members, _decoded(groups), strict=True):
                pictures |= zip(group_rows, images, strict=True)
            return MappedImages([pictures[row] for row in rows.tolist()], image_shape)

        return RawSplit(labels, load)

    checksum = _checksum([*train, *test], stamps=False)  # hashing the files themselves is slow
    return RawDataset(split(train), split(test), tuple(map(printable, class_names)), image_shape, checksum)


_verified: set[tuple[str, int, int]] = set()  # files whose checksum this process has checked


@dataclass(frozen=True)
class DecodedClass:
    """The image files of one class in the training or test set, and the one file they are decoded into."""

    store: Store
    files: Sequence[File]
    side: int | None
    image_shape: tuple[int, int, int]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.files), *self.image_shape)

    @cached_property
    def path(self) -> Path:
        """Named after the listing, so that an added, removed or changed file gives another name."""
        place = sha256(os.fsencode(self.store.root.resolve()))[:16] + "-" if self.store.shared else ""
        return self.store.cache / f"{place}{_checksum(self.files, stamps=True)[:32]}-{self.side or 'native'}.npy"

    def cached(self) -> Array | None:
        """Map the file into memory, copy-on-write; None if it is missing, damaged or of another version."""
        pixels = math.prod(self.shape)
        if not self.path.is_file():  # opening a pipe would block
            return None
        try:
            with self.path.open("rb") as file:
                npy.read_magic(file)
                header = npy.read_array_header_1_0(file)
                start = file.tell()
                file.seek(start + pixels)
                version, crc = TRAILER.unpack(file.read())
                if header != (self.shape, False, np.dtype(np.uint8)) or version != VERSION:
                    return None
                status, end = os.fstat(file.fileno()), file.tell()
                # numpy would keep one file per class open while it is mapped. torch takes UTF-8 paths only.
                name = str(self.path) if printable(self.path) == str(self.path) else f"/dev/fd/{file.fileno()}"
                whole = torch.from_file(name, shared=False, size=end, dtype=torch.uint8)
        except (OSError, ValueError, RuntimeError, struct.error):
            return None
        array = whole[start : start + pixels].view(self.shape).numpy()
        key = (str(self.path), status.st_ino, status.st_mtime_ns)
        if key not in _verified:
            if zlib.crc32(array.data) != crc:
                warn_once(f"the decoded images in {printable(self.path)} were altered; they are decoded again")
                return None
            _verified.add(key)
        return array

    def write(self, advance: Callable[[], None]) -> None:
        part, crc = self.path.with_suffix(f".{uuid.uuid4().hex}.part"), 0
        try:
            with part.open("xb") as file, ThreadPoolExecutor() as threads:
                npy.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": self.shape})
                for start in range(0, len(self.files), DECODED_AT_ONCE):
                    for picture in threads.map(self._decode, self.files[start : start + DECODED_AT_ONCE]):
                        content = picture.tobytes()
                        file.write(content)
                        crc = zlib.crc32(content, crc)
                        advance()
                file.write(TRAILER.pack(VERSION, crc))
            os.replace(part, self.path)
        finally:
            part.unlink(missing_ok=True)

    def _decode(self, file: File) -> Array:
        picture = self.store.decode(file.name, self.side)
        if picture.shape != self.image_shape:
            size, first = (f"{width}x{height}" for _, height, width in (picture.shape, self.image_shape))
            raise FlashbackError(f"{printable(file.name)} is {size} but the first image is {first}; make them equal")
        return picture


def _decoded(groups: Sequence[DecodedClass]) -> list[Array]:
    """The images of each class, after decoding those whose file is missing, damaged or of another version."""
    from flashback.progress_bar import TerminalProgress

    with ThreadPoolExecutor() as threads:
        arrays = list(threads.map(DecodedClass.cached, groups))
    missing = [number for number, array in enumerate(arrays) if array is None]
    images = sum(len(groups[number].files) for number in missing)
    cache = groups[0].store.cache
    try:
        with TerminalProgress(shown=images >= PROGRESS_FROM) as progress:
            bar = progress.add_task("decoding", total=images)
            for number in missing:
                cache.mkdir(parents=True, exist_ok=True)
                with _locked(cache):
                    if groups[number].cached() is None:  # another process may have been faster
                        groups[number].write(lambda: progress.advance(bar))
                arrays[number] = groups[number].cached()
    except OSError as problem:
        needed = sum(math.prod(groups[number].shape) for number in missing if arrays[number] is None)
        room = f"decoding needs {needed / 2**30:.1f} GiB in {printable(cache)}; free some space there"
        other = f"cannot write decoded images to {printable(cache)} ({problem.strerror})"
        raise FlashbackError(room if problem.errno in NO_SPACE else other) from None
    images_of_each = [array for array in arrays if array is not None]
    require(len(images_of_each) == len(groups), f"cannot read back the images in {printable(cache)}; check the disk")
    return images_of_each


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process decode at a time, with all cores; the system drops the lock of a process that died."""
    with open_to_append(cache / LOCK) as file:
        with suppress(OSError):  # on a file system without locks each process decodes for itself
            fcntl.flock(file, fcntl.LOCK_EX)
            for part in cache.glob("*.part"):  # a killed process left it
                part.unlink()
        yield


def read_folder(root: Path) -> RawDataset:
    """Read train/<class>/* and test/<class>/* (or val/): small images as they are, large ones cut to 256 pixels."""
    names = class_folders(root / "train")
    test = "test" if (root / "test").is_dir() else "val"
    if unknown := sorted(set(class_folders(root / test)) - set(names)):
        raise FlashbackError(
            f"{printable(root / test)} has a class '{printable(unknown[0])}' that {printable(root / 'train')} lacks; "
            "remove or rename it"
        )
    return _read_classes(root, test, names)


def read_imagenet100(train: Path) -> RawDataset:
    """Read train/<wnid>/* and val/<wnid>/*: the 100 classes that are there, or 100 of all 1000 (seed 1993)."""
    names = class_folders(train)
    if len(names) not in (100, 1000):
        raise FlashbackError(
            f"{train} has {len(names)} class folders; ImageNet-100 needs its 100 or all 1000 WordNet ids"
        )
    if len(names) == 1000:
        names = [names[position] for position in imagenet100_classes()]
    if missing := sorted(set(names) - set(class_folders(train.parent / "val"))):
        raise FlashbackError(
            f"{train.parent / 'val'} has no folder {missing[0]}; sort the validation images into one per WordNet id"
        )
    return _read_classes(train.parent, "val", names, LARGE_SIDE)


def class_folders(folder: Path) -> list[str]:
    require(
        folder.is_dir(),
        f"there is no folder {printable(folder)}; put images in train/<class>/ and test/<class>/ (or val/<class>/)",
    )
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _read_classes(root: Path, test: str, names: Sequence[str], side: int | None = None) -> RawDataset:
    parts: dict[str, list[File]] = {"train": [], test: []}
    ignored: Counter[str] = Counter()
    for part, files in parts.items():
        for label, name in enumerate(names):
            folder = root / part / name
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else ():
                if entry.name.startswith("."):
                    continue
                if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                    status = entry.stat()
                    stamp = f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"  # mtime stays in a rename
                    files.append(File(f"{part}/{name}/{entry.name}", label, status.st_size, stamp))
                else:
                    ignored["folders" if entry.is_dir() else Path(entry.name).suffix or "no ending"] += 1
    if ignored:
        kinds = ", ".join(f"{printable(kind)}: {count}" for kind, count in sorted(ignored.items()))
        total = ignored.total() + sum(map(len, parts.values()))
        images = f"images are {', '.join(SUFFIXES)} in train/<class>/ and test/<class>/"
        warn_once(f"{ignored.total()} of {total} files in {printable(root)} are ignored ({kinds}); {images}")
    store = _store(root, lambda name: (root / name).read_bytes(), root)
    return from_files(store, parts["train"], parts[test], names, side)


def _store(root: Path, read: Callable[[str], bytes], beside: Path) -> Store:
    """Decoded images go beside the data, unless that folder is read-only or a link leads elsewhere."""
    usable = os.access(beside, os.W_OK) and not (beside / CACHE).is_symlink()
    return Store(root, read, (beside if usable else data_folder(None)) / CACHE, shared=not usable)


def read_tinyimagenet(path: Path) -> RawDataset:
    """Read tiny-imagenet-200.zip: labels are the lines of wnids.txt, the validation images are the test set."""
    with reading(path):
        archive = zipfile.ZipFile(path)

        def read(name: str) -> bytes:
            size = archive.getinfo(name).file_size
            require(size <= LARGEST_MEMBER, f"{path}: {name} is too large; download the official archive again")
            return archive.read(name)

        def lines(name: str) -> list[list[str]]:
            return [line.split("\t") for line in read(f"{TINY}/{name}").decode().splitlines() if line.strip()]

        def file(name: str, label: int) -> File:
            info = archive.getinfo(name)
            return File(name, label, info.file_size, str(info.CRC))

        label = {fields[0]: number for number, fields in enumerate(lines("wnids.txt"))}
        words = {fields[0]: fields[1].split(",")[0] for fields in lines("words.txt")}
        matches = map(re.compile(rf"{TINY}/train/(\w+)/images/[^/]+\.JPEG").fullmatch, sorted(archive.namelist()))
        train = [file(match[0], label[match[1]]) for match in matches if match and match[1] in label]
        test = [file(f"{TINY}/val/images/{name}", label[wnid]) for name, wnid, *_ in lines("val/val_annotations.txt")]
    class_names = [words.get(wnid, wnid) for wnid in label]
    return from_files(_store(path, read, path.parent), train, test, class_names)
