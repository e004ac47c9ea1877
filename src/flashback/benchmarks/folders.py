"""Datasets of image files: any folder of images, ImageNet-100 and the Tiny ImageNet archive."""

from __future__ import annotations

import os
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from flashback.benchmarks.decoding import CACHE, SUFFIXES, File, Store, from_files
from flashback.benchmarks.splits import imagenet100_classes
from flashback.benchmarks.tasks import SMALL_SIDE, RawDataset, data_folder, printable, reading
from flashback.errors import FlashbackError, warn_once

LARGE_SIDE = 256  # large images are stored as their central square of 256 pixels, from which crops of 224 are cut
TINY = "tiny-imagenet-200"
LARGEST_MEMBER = 64 * 2**20


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
