"""Labelled images as read from files, before they are split into tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch

from flashback.errors import FlashbackError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class RawSplit:
    """A training or test set: its labels, and a function that loads the images of given rows."""

    labels: Array  # int64 [n], original labels
    load: Callable[[Array], torch.Tensor]  # row numbers to uint8 [n, C, H, W]


@dataclass(frozen=True, eq=False)
class RawDataset:
    """A dataset as read from files."""

    train: RawSplit
    test: RawSplit
    class_names: tuple[str, ...]  # by label
    image_shape: tuple[int, int, int]  # C, H, W
    checksum: str


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any exception that a damaged file causes in a decoder into one sentence."""
    try:
        yield
    except FlashbackError:
        raise
    except FileNotFoundError:
        raise FlashbackError(f"there is no file {printable(path)}; check the path") from None
    except PermissionError:
        raise FlashbackError(f"{printable(path)} may not be read by this user; change its permissions") from None
    except Exception as problem:  # decoders of damaged input raise nearly every kind of exception
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise FlashbackError(
            f"cannot read {printable(path)}: the file is damaged, truncated or of another kind ({reason})"
        ) from None


def printable(name: str | Path) -> str:
    r"""Escape what is not UTF-8 in a file name, so that it can be printed and written: `caf\udce9`."""
    return str(name).encode("utf-8", "backslashreplace").decode()


def data_folder(data: str | Path | None) -> Path:
    """The folder of datasets: the one given, else FLASHBACK_DATA, else the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "flashback"
    folder = Path(data or os.environ.get("FLASHBACK_DATA") or cache).expanduser()
    if folder.exists() and not folder.is_dir():
        raise FlashbackError(f"the data folder {folder} is a file; give the folder that contains the dataset")
    return folder
