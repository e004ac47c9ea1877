"""Find the files of a named dataset: an .npz, the official files, or a download with a verified checksum."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from flashback.benchmarks.arrays import read_npz
from flashback.benchmarks.raw_data import RawDataset, data_folder
from flashback.benchmarks.specs import Dataset
from flashback.errors import FlashbackError


def load_dataset(dataset: Dataset, data: str | Path | None, download: bool) -> RawDataset:
    """Read a dataset and check it against its description."""
    folder, files = data_folder(data), fetch_files(dataset, data, download)
    is_npz = files == folder / f"{dataset.name}.npz"
    raw = read_npz(files, dataset.classes) if is_npz else dataset.read(files)
    if raw.image_shape != dataset.image or len(raw.class_names) != dataset.classes:
        raise FlashbackError(
            f"the files of {dataset.name} in {folder} have {len(raw.class_names)} classes of images "
            f"{list(raw.image_shape)}, expected {dataset.classes} of {list(dataset.image)}; check the files"
        )
    if dataset.checksum not in (None, raw.checksum):
        raise FlashbackError(f"the data of {dataset.name} have a wrong checksum; install the package again")
    return raw


def find_files(dataset: Dataset, data: str | Path | None) -> Path | None:
    """The path of a dataset: the .npz of its name, else the official file or folder; None if there is neither."""
    folder = data_folder(data)
    paths = [folder / name for name in (f"{dataset.name}.npz", *dataset.files)]
    return next((path for path in paths if path.is_file() or path.is_dir()), None)


def fetch_files(dataset: Dataset, data: str | Path | None, download: bool = True) -> Path:
    """The same, downloaded if missing; an error if that is impossible."""
    return find_files(dataset, data) or _download(dataset, data_folder(data), allowed=download)


def missing_message(dataset: Dataset, data: str | Path | None) -> str:
    files = " or ".join((f"{dataset.name}.npz", *dataset.files))
    missing = f"the data of {dataset.name} are missing; put {files} into {data_folder(data)} (or name another folder)"
    pickled = sorted(data_folder(data).glob(f"{dataset.name.replace('cifar', 'cifar-')}-*py*"))  # torchvision's layout
    return missing + (f"; {pickled[0].name} is there, but pickled, and data are never unpickled" if pickled else "")


def _download(dataset: Dataset, folder: Path, allowed: bool) -> Path:
    import pooch

    missing = missing_message(dataset, folder)
    if not (allowed and dataset.url):
        raise FlashbackError(missing)
    pooch.get_logger().setLevel("WARNING")  # the progress bar shows the address and the size
    try:
        downloader = pooch.HTTPDownloader(progressbar=_Progress(dataset, folder), chunk_size=2**16)
        return Path(
            pooch.retrieve(dataset.url, f"md5:{dataset.md5}", dataset.files[0], path=folder, downloader=downloader)
        )
    except (OSError, ValueError) as problem:  # no network, no such address, no space, or a wrong checksum
        reason = str(problem) if isinstance(problem, ValueError) else type(problem).__name__
        raise FlashbackError(f"{missing}: downloading {dataset.url} failed ({reason})") from None


class _Progress:
    """The progress-bar interface of pooch, drawn by rich."""

    total = 0  # set by pooch when the server has answered; 0 if the size is unknown

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()]
        self._bar = Progress(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task(dataset.files[0], total=None)
        self._url, self._folder = dataset.url, folder

    def update(self, count: int) -> None:
        if not self._bar.live.is_started and count:
            amount = f"{self.total / 1e6:,.1f} MB" if self.total else "of unknown size"
            print(f"downloading {self._url}, {amount}, into {self._folder}", file=sys.stderr)
            self._bar.start()
        self._bar.update(self._task, advance=count, total=self.total or None)

    def reset(self) -> None:
        self._bar.reset(self._task)

    def close(self) -> None:
        self._bar.stop()
