"""Datasets of image files: folders, ImageNet-100 and Tiny ImageNet, decoded once into one mapped .npy file per class.

All class orders, splits and task sizes share those files, and a large dataset need not fit in memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import math
import os
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
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.lib import format as npy

from flashback.benchmarks.mapped_images import MappedImages
from flashback.benchmarks.splits import imagenet100_classes
from flashback.benchmarks.tasks import SMALL_SIDE, Array, RawDataset, RawSplit, data_folder, printable, reading
from flashback.errors import FlashbackError, warn_once
from flashback.files import LOCK, NO_SPACE

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "TIFF", "GIF")  # of animations and multi-page files, the first frame
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".gif")
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
    """One image file of a listing."""

    name: str  # relative to the root, or inside the archive
    label: int
    size: int
    stamp: int  # changes with the content: modification time, or CRC in an archive


@dataclass(frozen=True)
class Store:
    """Where image files are read from, and the folder for decoded ones."""

    root: Path
    read: Callable[[str], bytes]
    cache: Path

    def decode(self, name: str, side: int | None) -> Array:
        """Decode an image to uint8 [3, H, W]: all of it, or its central square resized to `side` pixels."""
        from PIL import Image, UnidentifiedImageError

        with reading(self.root / name):
            content = self.read(name)
            try:
                file = Image.open(io.BytesIO(content), formats=FORMATS)
            except UnidentifiedImageError:  # its message names the buffer
                raise ValueError("no image of a known format") from None
            with file:
                if file.mode[0] in "IF":  # a conversion would clip values at 255
                    raise ValueError("more than 8 bits a channel; write it with 8")
                picture = _upright(file).convert("RGB")
            if side is not None:  # as resizing the short side to `side` and cutting out the centre
                left, top = ((length - min(picture.size)) / 2 for length in picture.size)
                square = (left, top, left + min(picture.size), top + min(picture.size))
                picture = picture.resize((side, side), Image.Resampling.BILINEAR, box=square)
            return np.asarray(picture).transpose(2, 0, 1)


def _upright(picture: Image.Image) -> Image.Image:
    """Apply the EXIF orientation, as image viewers do; unreadable EXIF data are ignored."""
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # damaged pixels raise again when they are converted
        return picture


def _checksum(files: Iterable[File], *, stamps: bool) -> str:
    lines = (f"{file.name}\t{file.size}\t{file.stamp if stamps else ''}\n" for file in files)
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def from_files(
    store: Store, train: Sequence[File], test: Sequence[File], class_names: Sequence[str], side: int | None
) -> RawDataset:
    """Make a dataset of image files. Its checksum covers names and sizes only, since hashing all files is slow."""
    if not train or not test:
        raise FlashbackError(
            f"{store.root} has no {'test' if train else 'training'} images; put {', '.join(SUFFIXES)} files there"
        )
    _, height, width = store.decode(train[0].name, side).shape
    image_shape = (3, height, width)

    def split(files: Sequence[File]) -> RawSplit:
        labels = np.array([file.label for file in files], np.int64)

        def load(rows: Array) -> torch.Tensor:
            members = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels[rows])]
            groups = [DecodedClass(store, [files[row] for row in group], side, image_shape) for group in members]
            _decode_missing(groups)
            pictures: dict[int, Array] = {}
            for group_rows, group in zip(members, groups, strict=True):
                pictures |= zip(group_rows, group.images(), strict=True)
            return MappedImages([pictures[row] for row in rows.tolist()], image_shape)

        return RawSplit(labels, load)

    checksum = _checksum([*train, *test], stamps=False)
    return RawDataset(split(train), split(test), tuple(class_names), image_shape, checksum)


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
        return self.store.cache / f"{_checksum(self.files, stamps=True)[:32]}-{self.side or 'native'}.npy"

    def images(self) -> Array:
        array = self.cached()
        if array is None:
            raise FlashbackError(f"cannot read back {self.path}; check the disk")
        return array

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
        """Decode into a temporary file, which is renamed when complete."""
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


def _decode_missing(groups: Sequence[DecodedClass]) -> None:
    from rich.console import Console
    from rich.progress import Progress

    with ThreadPoolExecutor() as threads:
        usable = list(threads.map(lambda group: group.cached() is not None, groups))
    missing = [group for group, is_usable in zip(groups, usable, strict=True) if not is_usable]
    if not missing:
        return
    cache, images = missing[0].store.cache, sum(len(group.files) for group in missing)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with Progress(console=Console(stderr=True), disable=images < PROGRESS_FROM) as progress:
            bar = progress.add_task("decoding", total=images)
            for number, group in enumerate(missing):
                with _locked(cache):
                    if group.cached() is None:  # another process may have been faster
                        group.write(lambda: progress.advance(bar))
                progress.update(bar, completed=sum(len(done.files) for done in missing[: number + 1]))
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise FlashbackError(f"cannot write decoded images to {cache} ({problem.strerror})") from None
        needed = sum(math.prod(group.shape) for group in missing if group.cached() is None)
        raise FlashbackError(f"decoding needs {needed / 2**30:.1f} GiB in {cache}; free some space there") from None


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process decode at a time, with all cores; the system drops the lock of a process that died."""
    descriptor = os.open(cache / LOCK, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        with suppress(OSError):  # on a file system without locks each process decodes for itself
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_folder(root: Path) -> RawDataset:
    """Read train/<class>/* and test/<class>/* (or val/): small images as they are, large ones cut to 256 pixels."""
    names = class_folders(root / "train")
    test = "test" if (root / "test").is_dir() else "val"
    if unknown := sorted(set(class_folders(root / test)) - set(names)):
        raise FlashbackError(
            f"{root / test} has a class '{printable(unknown[0])}' that {root / 'train'} lacks; remove or rename it"
        )
    train_files, test_files = _files(root, "train", names), _files(root, test, names)
    _warn_of_ignored_files(root, ("train", test), names)
    store = _store(root)
    large = bool(train_files) and max(store.decode(train_files[0].name, None).shape) > SMALL_SIDE
    return from_files(store, train_files, test_files, tuple(map(printable, names)), LARGE_SIDE if large else None)


def read_imagenet100(train: Path) -> RawDataset:
    """Read train/<wnid>/* and val/<wnid>/*: the 100 classes that are there, or 100 of all 1000 (seed 1993)."""
    names = class_folders(train)
    if len(names) not in (100, 1000):
        raise FlashbackError(
            f"{train} has {len(names)} class folders; ImageNet-100 needs its 100 or all 1000 WordNet ids"
        )
    if len(names) == 1000:
        names = [names[position] for position in imagenet100_classes()]
    root = train.parent
    if missing := sorted(set(names) - set(class_folders(root / "val"))):
        raise FlashbackError(
            f"{root / 'val'} has no folder {missing[0]}; sort the validation images into one per WordNet id"
        )
    return from_files(_store(root), _files(root, "train", names), _files(root, "val", names), names, LARGE_SIDE)


def _store(root: Path) -> Store:
    return Store(root, lambda name: (root / name).read_bytes(), _cache(root))


def _cache(beside: Path) -> Path:
    """Beside the data, unless that folder is read-only or a link leads elsewhere."""
    usable = os.access(beside, os.W_OK) and not (beside / CACHE).is_symlink()
    return (beside if usable else data_folder(None)) / CACHE


def class_folders(folder: Path) -> list[str]:
    """The names of the class folders in train/ or test/, sorted."""
    if not folder.is_dir():
        raise FlashbackError(
            f"there is no folder {folder}; put images in train/<class>/ and test/<class>/ (or val/<class>/)"
        )
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(root: Path, part: str, names: Sequence[str]) -> list[File]:
    files = []
    for label, name in enumerate(names):
        folder = root / part / name
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if folder.is_dir() else ():
            if entry.name.lower().endswith(SUFFIXES) and entry.is_file():
                status = entry.stat()
                files.append(File(f"{part}/{name}/{entry.name}", label, status.st_size, status.st_mtime_ns))
    return files


def _warn_of_ignored_files(root: Path, parts: Sequence[str], names: Sequence[str]) -> None:
    folders = [root / part / name for part in parts for name in names if (root / part / name).is_dir()]
    entries = [entry for folder in folders for entry in os.scandir(folder) if not entry.name.startswith(".")]
    others = [entry for entry in entries if not (entry.is_file() and entry.name.lower().endswith(SUFFIXES))]
    kinds = Counter("folders" if entry.is_dir() else Path(entry.name).suffix or "no ending" for entry in others)
    if kinds:
        ignored = ", ".join(f"{printable(kind)}: {count}" for kind, count in sorted(kinds.items()))
        images = f"images are {', '.join(SUFFIXES)} in train/<class>/ and test/<class>/"
        warn_once(f"{len(others)} of {len(entries)} files in {root} are ignored ({ignored}); {images}")


def read_tinyimagenet(path: Path) -> RawDataset:
    """Read tiny-imagenet-200.zip: labels are the lines of wnids.txt, the validation images are the test set."""
    with reading(path):
        archive = zipfile.ZipFile(path)
        members = {info.filename: info for info in archive.infolist()}

        def read(name: str) -> bytes:
            if members[name].file_size > LARGEST_MEMBER:
                raise FlashbackError(f"{path}: {name} is too large; download the official archive again")
            return archive.read(name)

        def lines(name: str) -> list[list[str]]:
            return [line.split("\t") for line in read(f"{TINY}/{name}").decode().splitlines() if line.strip()]

        def file(name: str, label: int) -> File:
            return File(name, label, members[name].file_size, members[name].CRC)

        label = {fields[0]: number for number, fields in enumerate(lines("wnids.txt"))}
        words = {fields[0]: fields[1].split(",")[0] for fields in lines("words.txt")}
        parts = [name.split("/") for name in sorted(members) if name.endswith(".JPEG")]
        train = [
            file("/".join(part), label[part[2]])
            for part in parts
            if len(part) == 5 and part[:2] == [TINY, "train"] and part[2] in label
        ]
        test = [file(f"{TINY}/val/images/{name}", label[wnid]) for name, wnid, *_ in lines("val/val_annotations.txt")]
    class_names = [words.get(wnid, wnid) for wnid in label]
    return from_files(Store(path, read, _cache(path.parent)), train, test, class_names, side=None)
