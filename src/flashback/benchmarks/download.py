"""Finding a named dataset: an .npz, the official files, or a download whose checksum is verified."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flashback.benchmarks.arrays import read_npz
from flashback.benchmarks.raw_data import Source, data_folder
from flashback.benchmarks.specs import Dataset
from flashback.errors import FlashbackError


def load_dataset(dataset: Dataset, data: str | Path | None, download: bool) -> Source:
    """The dataset as read, checked against what is known of it."""
    folder, files = data_folder(data), fetch_files(dataset, data, download)
    arrays = files == folder / f"{dataset.name}.npz"
    source = read_npz(files, dataset.classes) if arrays else dataset.read(files)
    if source.image != dataset.image or len(source.class_names) != dataset.classes:
        raise FlashbackError(
            f"the files of {dataset.name} in {folder} hold {len(source.class_names)} classes of images "
            f"{list(source.image)}, expected {dataset.classes} of {list(dataset.image)}; they are of another dataset"
        )
    if dataset.checksum not in (None, source.checksum):
        raise FlashbackError(f"the data of {dataset.name} have a wrong checksum; install the package again")
    return source


def find_files(dataset: Dataset, data: str | Path | None) -> Path | None:
    """Where a dataset lies: the .npz of its name, else the official file or folder; None where there is neither."""
    folder = data_folder(data)
    return next((path for name in (f"{dataset.name}.npz", *dataset.files) if (path := folder / name).exists()), None)


def fetch_files(dataset: Dataset, data: str | Path | None, download: bool = True) -> Path:
    """The same, downloaded where they are missing; a sentence where they cannot be had."""
    return find_files(dataset, data) or _download(dataset, data_folder(data), allowed=download)


def say_missing(dataset: Dataset, data: str | Path | None) -> str:
    files = " or ".join((f"{dataset.name}.npz", *dataset.files))
    missing = f"the data of {dataset.name} are missing; put {files} into {data_folder(data)} (or name another folder)"
    pickled = sorted(data_folder(data).glob(f"{dataset.name.replace('cifar', 'cifar-')}-*py*"))  # torchvision's layout
    return missing + (f"; {pickled[0].name} is there, but pickled, and nothing is unpickled here" if pickled else "")


def _download(dataset: Dataset, folder: Path, allowed: bool) -> Path:
    import pooch

    missing = say_missing(dataset, folder)
    if not (allowed and dataset.url):
        raise FlashbackError(missing)
    pooch.get_logger().setLevel("WARNING")  # the progress says where from and how much
    try:
        downloader = pooch.HTTPDownloader(progressbar=_Progress(dataset, folder), chunk_size=2**16)
        return Path(
            pooch.retrieve(dataset.url, f"md5:{dataset.md5}", dataset.files[0], path=folder, downloader=downloader)
        )
    except (OSError, ValueError) as problem:  # no network, no such address, no room, or a wrong checksum
        reason = str(problem) if isinstance(problem, ValueError) else type(problem).__name__
        raise FlashbackError(f"{missing}: downloading {dataset.url} failed ({reason})") from None


class _Progress:
    """What pooch asks of a progress bar, drawn by rich, with a line before it that says what is fetched."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(dataset.files[0], total=None)
        self._dataset, self._folder, self._total = dataset, folder, 0

    @property
    def total(self) -> int:
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        """Set once the server has answered, before the first byte is kept; 0 where it does not tell the size."""
        self._total = size
        amount = f"{size / 1e6:,.1f} MB" if size else "of unknown size"
        print(f"fetching {self._dataset.url}, {amount}, into {self._folder}", file=sys.stderr)

    def update(self, count: int) -> None:
        self._bar.start()
        self._bar.update(self._task, advance=count, total=self._total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        self._bar.stop()
