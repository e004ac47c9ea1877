"""Labelled images as they were read, before any split into tasks."""

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
class Pool:
    """The labels of a training or test set, and a way to take some of its images as uint8 [n, C, H, W]."""

    labels: Array  # int64 [n], original labels
    take: Callable[[Array], torch.Tensor]  # from row numbers


@dataclass(frozen=True, eq=False)
class Source:
    """A dataset as read: two pools, class names by label, the image shape and a checksum for the record."""

    train: Pool
    test: Pool
    class_names: tuple[str, ...]
    image: tuple[int, int, int]  # C, H, W
    checksum: str


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file provokes in a decoder into one sentence."""
    try:
        yield
    except FlashbackError:
        raise
    except FileNotFoundError:
        raise FlashbackError(f"there is no file {path}; check the path") from None
    except PermissionError:
        raise FlashbackError(f"{path} may not be read by this user; change its permissions") from None
    except Exception as problem:  # decoders of damaged input raise nearly every kind of exception
        reason = " ".join(str(problem).split()) or type(problem).__name__
        raise FlashbackError(
            f"cannot read {path}: the file is damaged, truncated or of another kind ({reason})"
        ) from None


def data_folder(data: str | Path | None) -> Path:
    """Where datasets lie: the folder given, else FLASHBACK_DATA, else the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "flashback"
    folder = Path(data or os.environ.get("FLASHBACK_DATA") or cache).expanduser()
    if folder.exists() and not folder.is_dir():
        raise FlashbackError(f"the data folder {folder} is a file; give the folder that holds the dataset")
    return folder
