"""Finding a named dataset: an .npz, the official files, or a download whose checksum is verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flashback.benchmarks.arrays import read_npz
from flashback.benchmarks.pools import Source, data_folder
from flashback.benchmarks.specs import Dataset
from flashback.errors import FlashbackError


def find_source(dataset: Dataset, data: str | Path | None, download: bool) -> Source:
    """The dataset as read, checked against what is known of it."""
    folder = data_folder(data)
    arrays = folder / f"{dataset.name}.npz"
    if arrays.exists():
        source = read_npz(arrays, dataset.classes)
    else:
        official = next((path for name in dataset.files if (path := folder / name).exists()), None)
        source = dataset.read(official or _download(dataset, folder, allowed=download))
    if source.image != dataset.image or len(source.class_names) != dataset.classes:
        raise FlashbackError(
            f"the files of {dataset.name} in {folder} hold {len(source.class_names)} classes of images "
            f"{list(source.image)}, expected {dataset.classes} of {list(dataset.image)}; they are of another dataset"
        )
    if dataset.checksum not in (None, source.checksum):
        raise FlashbackError(f"the data of {dataset.name} have a wrong checksum; install the package again")
    return source


def _download(dataset: Dataset, folder: Path, allowed: bool) -> Path:
    import pooch

    files = " or ".join((f"{dataset.name}.npz", *dataset.files))
    missing = f"the data of {dataset.name} are missing; put {files} into {folder} (or name another folder)"
    if not (allowed and dataset.url):
        raise FlashbackError(missing)
    try:
        downloader = pooch.HTTPDownloader(progressbar=_Progress(dataset.files[0]), chunk_size=2**16)
        return Path(
            pooch.retrieve(dataset.url, f"md5:{dataset.md5}", dataset.files[0], path=folder, downloader=downloader)
        )
    except (OSError, ValueError) as problem:  # no network, no such address, no room, or a wrong checksum
        reason = str(problem) if isinstance(problem, ValueError) else type(problem).__name__
        raise FlashbackError(f"{missing}: downloading {dataset.url} failed ({reason})") from None


class _Progress:
    """What pooch asks of a progress bar, drawn by rich."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(name, total=None)
        self.total = 0

    def update(self, count: int) -> None:
        self._bar.start()
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        self._bar.stop()
