"""Read and write files safely: atomically, never through links, and never more than a stated size."""

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from flashback.errors import FlashbackError, require

LOCK = ".lock"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.ENOLCK: "use a folder on a file system with locks",
}
LARGEST_CONFIG, LARGEST_RECORD = 2**20, 2**28  # bytes; real files are far smaller
ANOTHER_FOLDER = "choose another folder (out, --out on the command line)"


class CannotWriteError(FlashbackError, OSError):
    """A file cannot be written; the message names it and says what to do."""

    def __init__(self, message: str, number: int | None) -> None:
        super().__init__(message)
        self.errno = number


@contextmanager
def explaining_failure(path: Path, action: str = "written") -> Iterator[None]:
    """Name a file in the error if it cannot be written, locked or removed."""
    try:
        yield
    except CannotWriteError:
        raise
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "check the disk and the permissions")
        reason = f"{action} ({error.strerror or error})"
        message = f"{path} cannot be {reason}; {remedy}, then repeat the command"
        raise CannotWriteError(message, error.errno) from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers see the old content or the new one, whenever the machine stops.

    A link is replaced, not written through; a pipe or a device, such as /dev/stdout, is refused.
    """
    require(not is_pipe_or_device(path), f"{path} is a pipe or a device; name a file")
    temporary = path.with_name(f".{uuid4().hex[:8]}.{path.name}.part")  # unique, in case two processes write
    with explaining_failure(path):
        try:
            with temporary.open("xb") as file:
                file.write(content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    with suppress(OSError):  # make the rename survive a power cut, where the file system supports it
        descriptor = os.open(path.parent, os.O_RDONLY)
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


def sha256(content: str | bytes) -> str:
    """The SHA-256 of a content, in hexadecimal; of a text, that of its UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def open_to_append(path: Path) -> BinaryIO:
    """Open a file to change it in place; links, which lead elsewhere, and pipes, which block, are refused."""
    refuse_special(path)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666))


def refuse_special(path: Path, below: Path | None = None) -> None:
    """Refuse to write through a link, or into a pipe or device, at a path or between it and a folder above it."""
    parents = [] if below is None else [below / parent for parent in path.relative_to(below).parents[:-1]]
    for each in (path, *parents):
        require(
            not each.is_symlink(),
            f"{each} is a symbolic link, and a run writes only inside its own folder; remove it",
        )
        require(
            not is_pipe_or_device(each),
            f"{each} is a pipe or a device, not a file; remove it",
        )


def remove_folder(path: Path) -> None:
    """Remove a folder with what is in it. A link, a file or a pipe in its place is removed without what it leads to."""
    with explaining_failure(path, "removed"):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
        else:
            shutil.rmtree(path)


def remove_cache(path: Path) -> None:
    """Remove a folder that nothing depends on; whatever cannot be removed, or is not a folder, stays."""
    if path.is_dir():  # opening a pipe would block
        shutil.rmtree(path, ignore_errors=True)


def is_pipe_or_device(path: Path) -> bool:
    return path.exists() and not path.is_file() and not path.is_dir()


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{path} cannot be used as a folder ({error.strerror}); {ANOTHER_FOLDER}"
        raise CannotWriteError(message, error.errno) from None
