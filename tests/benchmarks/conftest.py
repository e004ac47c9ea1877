"""Small made datasets. The first two pixels of an image spell its row, so that every image can be traced."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def numbered(count: int, *shape: int, start: int = 0) -> np.ndarray:
    x = np.zeros((count, *shape), np.uint8)
    flat = x.reshape(count, -1)
    rows = np.arange(start, start + count)
    flat[:, 0], flat[:, 1] = rows // 256, rows % 256
    return x


def made_arrays(
    classes: int, train: int = 6, test: int = 2, shape: tuple[int, ...] = (4, 4, 3)
) -> dict[str, np.ndarray]:
    """Labels in a shuffled order, `train` and `test` images a class; test rows are numbered after training rows."""
    draw = np.random.default_rng(0).permutation
    y_train, y_test = (draw(np.repeat(np.arange(classes), count)) for count in (train, test))
    x_train, x_test = numbered(len(y_train), *shape), numbered(len(y_test), *shape, start=len(y_train))
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


@pytest.fixture
def arrays() -> Callable[..., dict[str, np.ndarray]]:
    return made_arrays


@pytest.fixture
def npz(tmp_path: Path) -> Callable[..., Path]:
    """Writes made arrays as an .npz, some of them replaced (or left out, by None)."""

    def write(name: str = "made", classes: int = 6, shape: tuple[int, ...] = (4, 4, 3), **changes: object) -> Path:
        entries = {**made_arrays(classes, shape=shape), **changes}
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: value for key, value in entries.items() if value is not None})
        return path

    return write


@pytest.fixture
def image() -> Callable[..., bytes]:
    """An image file of one colour, or of the pixels given."""

    def encode(colour: tuple[int, int, int] | np.ndarray, size: tuple[int, int] = (4, 4), kind: str = "PNG") -> bytes:
        picture = Image.fromarray(colour) if isinstance(colour, np.ndarray) else Image.new("RGB", size, colour)
        stream = io.BytesIO()
        picture.save(stream, kind, **({"quality": 100, "subsampling": 0} if kind == "JPEG" else {}))
        return stream.getvalue()

    return encode


@pytest.fixture
def tar(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, members: dict[str, bytes]) -> Path:
        path = tmp_path / name
        with tarfile.open(path, "w:gz") as archive:
            for member, content in members.items():
                info = tarfile.TarInfo(member)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
        return path

    return write
