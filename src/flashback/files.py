"""Read and write files safely: atomically, never through links, and never more than a stated size."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from flashback.errors import FlashbackError

LOCK = ".lock"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
LARGEST_CONFIG, LARGEST_RECORD = 2**20, 2**28  # bytes; real files are far smaller
ANOTHER_FOLDER = "choose another folder (out, --out on the command line)"


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new one, whenever the machine stops."""
    temporary = path.with_name(f".{uuid4().hex[:8]}.{path.name}.part")  # unique, in case two processes write
    try:
        with temporary.open("xb") as file:
            file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def sync_folder(path: Path) -> None:
    """Make a rename survive a power cut, where the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_file(path: Path, largest: int) -> bytes:
    """Read a regular file of at most `largest` bytes; pipes and devices, which may never end, are refused."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
        raise ValueError(f"{path} is not a regular file of at most {largest} bytes")
    return path.read_bytes()


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to change it in place; links, which lead elsewhere, and pipes, which block, are refused."""
    return open(path, "ab", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link; a pipe that nobody reads
            raise
        refuse_special(Path(path))
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        refuse_special(Path(path))
        raise FlashbackError(f"{path} is not a regular file; remove it")
    return descriptor


def refuse_special(path: Path, below: Path | None = None) -> None:
    """Refuse to write through a link, or into a pipe or device, at a path or between it and a folder above it."""
    parents = list(path.relative_to(below).parents)[:-1] if below is not None else []
    for each in (path, *(below / parent for parent in parents if below is not None)):
        if each.is_symlink():
            raise FlashbackError(f"{each} is a symbolic link, and a run writes only inside its own folder; remove it")
        if each.exists() and not (each.is_file() or each.is_dir()):
            raise FlashbackError(f"{each} is a pipe or a device, not a file; remove it")


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FlashbackError(f"{path} cannot be used as a folder ({error.strerror}); {ANOTHER_FOLDER}") from None


@contextmanager
def explaining_no_space(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        raise FlashbackError(
            f"no space is left in {folder}; free some, then repeat the command to continue from the last checkpoint"
        ) from None
