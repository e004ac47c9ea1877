"""Bring a run folder from one machine to another while it is written, so that each copy can be resumed."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from flashback.errors import require
from flashback.files import LOCK, make_folder, write_atomically
from flashback.records import CHECKPOINT, LOG, RESULTS

Files = dict[str, bytes]  # contents by the path in the run folder


def rank(name: str) -> tuple[int, str]:
    """The order of writing: a checkpoint names the length of the log, a manifest its tensors, results come last."""
    is_manifest = name.startswith(f"{CHECKPOINT}/") and name.endswith(".json")
    return (0 if name == LOG else 3 if name == RESULTS else 2 if is_manifest else 1), name


class Changes:
    """What has changed in a run folder since the last call; all of it at first."""

    def __init__(self, folder: Path, known: bool = False) -> None:
        self.folder = folder
        self.seen = self.look() if known else {}

    def look(self) -> dict[str, tuple[int, int, int]]:
        states = {}
        for path in self.folder.rglob("*"):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and path.name != LOCK and path.suffix != ".part":
                    status = path.stat()
                    name = path.relative_to(self.folder).as_posix()
                    states[name] = status.st_ino, status.st_size, status.st_mtime_ns
        return states

    def take(self) -> tuple[Files, list[str]]:
        """The files that are new or differ, and the names of all files there are."""
        now, changed = self.look(), Files()
        for name in sorted(now, key=rank, reverse=True):  # the log last: it may be longer than a checkpoint says
            if now[name] != self.seen.get(name):
                try:
                    changed[name] = (self.folder / name).read_bytes()
                except OSError:  # replaced or removed meanwhile
                    del now[name]
        self.seen = now
        return changed, list(now)


def write_run_files(
    folder: Path, files: Mapping[str, bytes], names: Iterable[str] | None = None, lasting: bool = False
) -> None:
    """Write files into a run folder, and remove the checkpoints that are not among `names`.

    Only a folder that is `lasting` has to survive a power cut; writing it is slower.
    """
    make_folder(folder)
    for name in sorted(files, key=rank):
        path = folder / checked_relative_path(name)
        make_folder(path.parent)
        if lasting:
            write_atomically(path, files[name])
        else:
            path.write_bytes(files[name])
    if names is not None:
        names_to_keep = set(names)
        for path in (folder / CHECKPOINT).rglob("*"):
            if path.is_file() and path.relative_to(folder).as_posix() not in names_to_keep:
                path.unlink(missing_ok=True)


def checked_relative_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    require(not path.is_absolute() and ".." not in path.parts, f"{name} is not a path inside a folder")
    return path


def files_below(sources: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Every file of some files and folders, by the name it gets elsewhere."""
    for name, source in sources.items():
        for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if path.is_file():
                yield (name if path == source else f"{name}/{path.relative_to(source).as_posix()}"), path
