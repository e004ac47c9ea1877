"""A folder of images is decoded once, whoever asks for it and however it is split; its images stay in the files."""

from __future__ import annotations

import copy
import errno
import hashlib
import io
import multiprocessing
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from flashback.benchmarks import image_files, load_benchmark, mapped_images
from flashback.benchmarks.mapped_images import MappedImages
from flashback.errors import FlashbackError

CLASSES, TRAIN, TEST = 6, 10, 2


def write_folder(root: Path, side: int = 5) -> Path:
    """The first pixel of an image tells its class, the second its number within it, and the third its part."""
    generator = np.random.default_rng(0)
    for part, count in (("train", TRAIN), ("test", TEST)):
        for label in range(CLASSES):
            place = root / part / f"class-{label}"
            place.mkdir(parents=True)
            for number in range(count):
                picture = generator.integers(0, 256, (side, side, 3), np.uint8)
                picture[0, :3, 0] = label, number, part == "train"
                Image.fromarray(picture).save(place / f"{number:03d}.png")
    return root


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "pictures")


def spelled(images: torch.Tensor) -> list[tuple[int, ...]]:
    return [tuple(row) for row in images[:, 0, 0, :3].tolist()]


def cached(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (root / ".flashback").glob("*.npy")}


SPLITS = [
    {"sizes": [3, 3]},
    {"sizes": [3, 3], "order": 1},
    {"sizes": [2, 2, 2], "order": 2},
    {"sizes": [1, 5], "order": "seed", "seed": 4},
    {"sizes": [3, 3], "validation": 0.2, "seed": 1},
    {"sizes": [2, 4], "validation": 0.4, "seed": 2, "order": 3},
]


def test_any_order_split_and_sizes_share_one_copy(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_benchmark(pictures, **SPLITS[0])
    first = cached(pictures)
    assert len(first) == 2 * CLASSES
    pixels = CLASSES * (TRAIN + TEST) * 3 * 5 * 5
    assert pixels < sum(first.values()) <= pixels + 2 * CLASSES * (128 + 8)  # header, and version with checksum
    monkeypatch.setattr(image_files.DecodedClass, "write", lambda *arguments: pytest.fail("decoded again"))
    for split in SPLITS[1:]:
        load_benchmark(pictures, **split)
        assert cached(pictures) == first


@pytest.mark.parametrize("split", SPLITS)
def test_rows_come_from_their_files_in_the_order_of_the_listing(pictures: Path, split: dict[str, object]) -> None:
    benchmark = load_benchmark(pictures, **split)
    seen = []
    for task in benchmark.tasks:
        for images in (task.train, task.test):
            actual = spelled(images.x)
            assert actual == sorted(actual, key=lambda row: row[:2]), "by class, then by name"
            assert [row[0] for row in actual] == [benchmark.order[label] for label in images.y.tolist()]
            assert isinstance(images.x, MappedImages)
            seen += actual
    parts = [1] * TRAIN if split.get("validation") else [1] * TRAIN + [0] * TEST
    numbers = [*range(TRAIN), *range(TEST)][: len(parts)]
    rows = [(label, number, part) for label in range(CLASSES) for number, part in zip(numbers, parts, strict=True)]
    assert sorted(seen) == sorted(rows)


def test_only_the_classes_of_the_tasks_asked_for_are_decoded(pictures: Path) -> None:
    load_benchmark(pictures, sizes=[2, 4], tasks=1)
    assert len(cached(pictures)) == 2 * 2


def test_a_changed_class_alone_is_decoded_again(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_benchmark(pictures, sizes=[6])
    path = pictures / "train" / "class-3" / "004.png"
    os.utime(path, ns=(1, 1))
    written: list[str] = []
    write = image_files.DecodedClass.write
    monkeypatch.setattr(
        image_files.DecodedClass, "write", lambda self, tell: written.append(self.files[0].name) or write(self, tell)
    )
    load_benchmark(pictures, sizes=[6])
    assert written == ["train/class-3/000.png"]


def test_swapped_class_folders_are_decoded_again(tmp_path: Path) -> None:
    """Their files have equal names, sizes and times."""
    for part in ("train", "test"):
        for name, shade in (("cat", 40), ("dog", 200)):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for number in range(2):
                Image.new("RGB", (5, 5), (shade,) * 3).save(folder / f"{number}.bmp")
                os.utime(folder / f"{number}.bmp", ns=(1, 1))
    root = tmp_path / "pictures"
    assert load_benchmark(root, sizes=[2]).tasks[0].train.x[:, 0, 0, 0].tolist() == [40, 40, 200, 200]
    train = root / "train"
    for old, new in (("cat", "other"), ("dog", "cat"), ("other", "dog")):
        (train / old).rename(train / new)
    (task,) = load_benchmark(root, sizes=[2]).tasks
    assert task.train.x[:, 0, 0, 0].tolist() == [200, 200, 40, 40]
    assert task.test.x[:, 0, 0, 0].tolist() == [40, 40, 200, 200]


def test_a_file_overwritten_with_its_old_time_is_decoded_again(pictures: Path) -> None:
    path, replacement = pictures / "train" / "class-0" / "000.png", pictures / "train" / "class-1" / "000.png"
    size = max(file.stat().st_size for file in (path, replacement))
    for file in (path, replacement):
        file.write_bytes(file.read_bytes().ljust(size, b"\0"))
    load_benchmark(pictures, sizes=[6])
    status = path.stat()
    path.write_bytes(replacement.read_bytes())
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert spelled(load_benchmark(pictures, sizes=[6]).tasks[0].train.x[:1]) == [(1, 0, 1)]


def test_a_moved_folder_keeps_its_decoded_images(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_benchmark(pictures, sizes=[6])
    moved = pictures.rename(pictures.with_name("moved"))
    monkeypatch.setattr(image_files.DecodedClass, "write", lambda *arguments: pytest.fail("decoded again"))
    load_benchmark(moved, sizes=[6])


def test_datasets_that_cannot_be_written_do_not_share_decoded_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if their listings are equal, as those of two mounted disk images."""
    monkeypatch.setenv("FLASHBACK_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(image_files.os, "access", lambda path, mode: False)
    monkeypatch.setattr(image_files, "_checksum", lambda files, *, stamps: "0" * 64)
    for shade, name in enumerate(("first", "second")):
        for part in ("train", "test"):
            (tmp_path / name / part / "ant").mkdir(parents=True)
            Image.new("RGB", (5, 5), (shade,) * 3).save(tmp_path / name / part / "ant" / "0.bmp")
        assert load_benchmark(tmp_path / name, sizes=[1]).tasks[0].train.x.unique().tolist() == [shade]


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process has verified."""
    monkeypatch.setattr(image_files, "_verified", set())


def alter(path: Path, position: int) -> None:
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("position", [128, 140, -9, -1, -8])
def test_altered_decoded_images_are_decoded_again(
    pictures: Path, position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = load_benchmark(pictures, sizes=[6]).tasks[0].train.x.clone()
    path = sorted((pictures / ".flashback").glob("*.npy"))[3]
    content = path.read_bytes()
    alter(path, position % len(content))
    monkeypatch.setattr(image_files, "_verified", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        after = load_benchmark(pictures, sizes=[6])
    assert torch.equal(after.tasks[0].train.x[:], before)
    assert path.read_bytes() == content
    another_version = position == -8
    assert [path.name in str(warning.message) for warning in caught] == [True] * (not another_version)


@pytest.mark.usefixtures("fresh_process")
def test_a_checksum_is_checked_once_per_process(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_benchmark(pictures, sizes=[6])
    monkeypatch.setattr(image_files, "zlib", SimpleNamespace(crc32=lambda data: pytest.fail("checked again")))
    load_benchmark(pictures, sizes=[2, 4])


def test_many_classes_hold_no_files_open(pictures: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    benchmark = load_benchmark(pictures, sizes=[6])
    assert before is None or len(os.listdir("/proc/self/fd")) == before
    assert benchmark.tasks[0].train.x.any()


def load_and_count(root: Path, order: int, start: object, counts: object) -> None:
    decode, decoded = image_files.Store.decode, list[str]()

    def counted(self: image_files.Store, name: str, side: int | None) -> np.ndarray:
        decoded.append(name)
        return decode(self, name, side)

    image_files.Store.decode = counted
    start.wait()
    benchmark = load_benchmark(root, sizes=[2, 2, 2], order=order)
    assert all(task.train.x.any() for task in benchmark.tasks)
    counts.put(len(decoded) - 1)  # the first image is looked at for the size


def test_processes_share_the_decoding(tmp_path: Path) -> None:
    """Whatever they ask for first: what one decodes the others find."""
    root = write_folder(tmp_path / "pictures", side=24)
    context = multiprocessing.get_context("fork")
    start, counts = context.Barrier(3), context.Queue()
    workers = [context.Process(target=load_and_count, args=(root, order, start, counts)) for order in (0, 0, 1)]
    for worker in workers:
        worker.start()
    decoded = [counts.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert sum(decoded) == CLASSES * (TRAIN + TEST), decoded
    assert not list((root / ".flashback").glob("*.part"))


@pytest.mark.parametrize(
    ("make", "kind"),
    [(lambda path: path.symlink_to(path.parent / "elsewhere"), "a symbolic link"), (os.mkfifo, "a pipe or a device")],
)
def test_a_lock_that_is_no_file_is_refused(pictures: Path, make: Callable[[Path], None], kind: str) -> None:
    (pictures / ".flashback").mkdir()
    make(pictures / ".flashback" / ".lock")
    with pytest.raises(FlashbackError, match=rf"\.flashback/\.lock is {kind}, .*; remove it$"):
        load_benchmark(pictures, sizes=[6])
    assert [path.name for path in (pictures / ".flashback").iterdir()] == [".lock"]


def test_a_file_system_without_locks(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(image_files.fcntl, "flock", refuse)
    assert len(load_benchmark(pictures, sizes=[6]).tasks[0].train) == CLASSES * TRAIN


# ---------------------------------------------------------------- room


def test_what_a_killed_process_left_is_removed(pictures: Path) -> None:
    (pictures / ".flashback").mkdir()
    (pictures / ".flashback" / "0123-native.4567.part").write_bytes(b"half a class")
    load_benchmark(pictures, sizes=[6])
    assert not list((pictures / ".flashback").glob("*.part"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_what_fits(pictures: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Four of six classes fit; those stay, and the sentence names what the rest of the task needs."""
    replace, renamed = os.replace, list[int]()

    def full(part: Path, path: Path) -> None:
        if len(renamed) == 4:
            raise OSError(number, os.strerror(number))
        renamed.append(part.stat().st_size)
        replace(part, path)

    monkeypatch.setattr(image_files.os, "replace", full)
    with pytest.raises(FlashbackError, match=r"^decoding needs 0.0 GiB in .*\.flashback; free some space there$"):
        load_benchmark(pictures, sizes=[6])
    assert list(cached(pictures).values()) == renamed
    assert not list((pictures / ".flashback").glob("*.part"))


# ---------------------------------------------------------------- a tensor over many files


@pytest.fixture
def both() -> tuple[MappedImages, torch.Tensor]:
    array = np.random.default_rng(0).integers(0, 256, (10, 3, 4, 4), np.uint8)
    return MappedImages(list(array), (3, 4, 4)), torch.from_numpy(array)


ROWS = torch.tensor([3, 1, -1, 1])
NO_MOVE = "to where it is"
USES: dict[str, tuple[Callable[[torch.Tensor], object], int]] = {  # and how many images it reads
    "length": (len, 0),
    "bytes": (lambda x: x.nbytes, 0),
    "shape": (lambda x: (x.shape, x.dtype, x.device, x.is_contiguous()), 0),
    "slice": (lambda x: x[2:5].shape, 0),
    "pieces": (lambda x: [piece.shape for piece in torch.split(x, 4)], 0),
    NO_MOVE: (lambda x: x.to("cpu").cpu().contiguous().detach().shape, 0),
    "one": (lambda x: x[-1], 1),
    "one value": (lambda x: x[4, 2, 1, 1].item(), 1),
    "rows": (lambda x: x[ROWS], 4),
    "a list": (lambda x: x[[1, 2]], 2),
    "no rows": (lambda x: x[ROWS[:0]], 0),
    "a mask": (lambda x: x[torch.arange(10) > 5], 4),
    "index_select": (lambda x: torch.index_select(x, 0, ROWS.abs()), 4),
    "every third": (lambda x: x[::3].float(), 4),
    "one piece": (lambda x: torch.split(x, 4)[2] + 1, 2),
    "part of a part": (lambda x: x[2:8][1:3].clone(), 2),
    "corner of a part": (lambda x: x[2:4, :, 1:3, 1], 2),
    "into another": (lambda x: torch.zeros(3, 3, 4, 4, dtype=torch.uint8).copy_(x[:3]), 3),
    "walked through": (lambda x: torch.stack(list(x)), 10),
    "all": (lambda x: x.float().mean(), 10),
    "one channel": (lambda x: x[:, 1], 10),
    "one column": (lambda x: x.select(-1, 2), 10),
    "one column by keyword": (lambda x: torch.select(x, dim=-1, index=2), 10),
    "columns": (lambda x: x.narrow(-1, 1, 2), 10),
    "columns apart": (lambda x: torch.stack(x.unbind(-1)), 10),
    "pieces of rows of pixels": (lambda x: torch.stack(x.split(2, -2)), 10),
    "chunks of columns": (lambda x: torch.stack(x.chunk(2, dim=-1)), 10),
    "chosen columns": (lambda x: x.index_select(-1, ROWS.abs()), 10),
    "one of the last channel": (lambda x: x.select(-3, 2), 10),
    "one by a negative dimension": (lambda x: x.select(-4, 2), 1),
    "one by keyword": (lambda x: torch.select(x, dim=0, index=2), 1),
    "a piece by a negative dimension": (lambda x: x.split(4, dim=-4)[1].clone(), 4),
    "rows and channels": (lambda x: x[ROWS, torch.tensor([0, 1, 2, 0])], 10),
    "joined": (lambda x: torch.cat([x, torch.ones(1, 3, 4, 4, dtype=torch.uint8)]), 10),
    "list": (lambda x: x.tolist(), 10),
    "array": (lambda x: torch.from_numpy(np.asarray(x)), 10),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("use", USES)
def test_it_is_used_as_a_tensor_and_reads_what_it_must(
    both: tuple[MappedImages, torch.Tensor], use: str, inference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, needed = USES[use]
    read, rows_read = mapped_images._read, list[int]()
    monkeypatch.setattr(mapped_images, "_read", lambda x, rows: rows_read.extend(rows) or read(x, rows))
    with torch.inference_mode(inference):
        actual, expected = (act(x) for x in both)
    assert torch.equal(actual, expected) if isinstance(actual, torch.Tensor) else actual == expected
    assert type(actual) is type(expected)
    assert len(rows_read) == needed or (inference and use == NO_MOVE)  # there `to` is not looked into


def test_it_is_copied_and_saved(both: tuple[MappedImages, torch.Tensor]) -> None:
    x, expected = both
    assert torch.equal(copy.deepcopy({"x": x})["x"], expected)
    stream = io.BytesIO()
    torch.save(x, stream)
    stream.seek(0)
    assert torch.equal(torch.load(stream, weights_only=True), expected)
    assert repr(x) == "MappedImages([10, 3, 4, 4])"


@pytest.mark.parametrize(
    "change", [lambda x: x.zero_(), lambda x: x.__setitem__(0, 1), lambda x: x[2:4].add_(1), lambda x: x[2:4].fill_(0)]
)
def test_it_cannot_be_changed(both: tuple[MappedImages, torch.Tensor], change: Callable[[torch.Tensor], None]) -> None:
    x, expected = both
    with pytest.raises(FlashbackError, match=r"mapped from files and read-only; change a copy of them"):
        change(x)
    assert torch.equal(x, expected)


def test_rows_outside_are_refused(both: tuple[MappedImages, torch.Tensor]) -> None:
    for x in both:
        with pytest.raises(IndexError):
            x[torch.tensor([10])]
        with pytest.raises(IndexError):
            x[torch.ones(9, dtype=torch.bool)]


def test_the_checksum_is_that_of_the_listing(pictures: Path) -> None:
    """Names and sizes of all files, training images first: the same for every order and split."""
    files = [path for part in ("train", "test") for path in sorted((pictures / part).rglob("*.png"))]
    lines = "".join(f"{path.relative_to(pictures).as_posix()}\t{path.stat().st_size}\t\n" for path in files)
    for split in SPLITS:
        assert load_benchmark(pictures, **split).checksum == hashlib.sha256(lines.encode()).hexdigest()


@pytest.mark.parametrize(("pixels", "suffix"), [(np.uint16, "png"), (np.int32, "tif"), (np.float32, "tif")])
def test_images_of_more_than_eight_bits_are_refused_and_not_clipped(
    pictures: Path, pixels: type[np.generic], suffix: str
) -> None:
    odd = pictures / "train" / "class-3" / f"odd.{suffix}"
    Image.fromarray(np.full((5, 5), 300).astype(pixels)).save(odd)
    with pytest.raises(FlashbackError, match=rf"odd\.{suffix}.*more than 8 bits a channel; write it with 8"):
        load_benchmark(pictures, sizes=[3, 3])
