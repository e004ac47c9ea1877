#!/usr/bin/env python3
"""Makes the embedded dataset: the first images of each class of Fashion-MNIST.

    python tools/make_fashion_mini.py                 from Debian's package dataset-fashion-mnist (needs apt-get)
    python tools/make_fashion_mini.py --source DIR    from the four official IDX files in DIR

It prints the checksum that `flashback/benchmarks/specs.py` records.
"""

from __future__ import annotations

import argparse
import gzip
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from flashback.benchmarks.arrays import KEYS, checksum
from flashback.benchmarks.specs import PACKAGE
from flashback.benchmarks.tasks import Array

TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100
LIMIT = 3_000_000  # bytes


def idx(folder: Path, name: str) -> Array:
    """An IDX file: two zero bytes, the type, the number of axes, big-endian lengths, then the bytes."""
    path = next(folder.rglob(f"{name}*"))
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def first_of_each_class(x: Array, y: Array, count: int) -> tuple[Array, Array]:
    """The first `count` images of every class, in the order of the file."""
    rows = np.sort(np.concatenate([np.flatnonzero(y == label)[:count] for label in range(10)]))
    return x[rows][..., None], y[rows].astype(np.int64)


def make(folder: Path) -> None:
    train = first_of_each_class(idx(folder, "train-images"), idx(folder, "train-labels"), TRAIN_PER_CLASS)
    test = first_of_each_class(idx(folder, "t10k-images"), idx(folder, "t10k-labels"), TEST_PER_CLASS)
    path = PACKAGE / "data" / "fashion_mini.npz"
    arrays: dict[str, Any] = dict(zip(KEYS, (*train, *test), strict=True))
    np.savez_compressed(path, **arrays)
    size = path.stat().st_size
    print(f"{path}: {len(train[0])} + {len(test[0])} images, {size} bytes, checksum {checksum((*train, *test))}")
    if size > LIMIT:
        raise SystemExit(f"the file is larger than {LIMIT} bytes; lower TRAIN_PER_CLASS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, help="folder of the IDX files, plain or gzipped")
    source = parser.parse_args().source
    if source:
        make(source)
        return
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "dataset-fashion-mnist"], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", next(Path(folder).glob("*.deb")), folder], check=True)
        make(Path(folder))


if __name__ == "__main__":
    main()
