from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flashback import configure, run
from flashback.benchmarks import BENCHMARKS, image_files, imagenet100_classes, load_benchmark
from flashback.benchmarks.load import load_dataset
from flashback.errors import FlashbackError
from flashback.records import read_record

RED, GREEN, BLUE = (250, 0, 0), (0, 250, 0), (0, 0, 250)

pytestmark = pytest.mark.filterwarnings("ignore:.* are ignored")  # the folder holds notes too


def records(x: np.ndarray, *labels: np.ndarray) -> bytes:
    """The binary CIFAR layout: label bytes, then the red, green and blue planes."""
    pixels = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    return np.concatenate([*(label.astype(np.uint8)[:, None] for label in labels), pixels], 1).tobytes()


def cifar10_members(data: dict[str, np.ndarray]) -> dict[str, bytes]:
    members = {"../evil.txt": b"never written", "cifar-10-batches-bin/batches.meta.txt": b"names"}
    for number, rows in enumerate(np.array_split(np.arange(len(data["y_train"])), 5), 1):
        members[f"cifar-10-batches-bin/data_batch_{number}.bin"] = records(data["x_train"][rows], data["y_train"][rows])
    members["cifar-10-batches-bin/test_batch.bin"] = records(data["x_test"], data["y_test"])
    return members


def cifar100_members(data: dict[str, np.ndarray]) -> dict[str, bytes]:
    coarse = {part: data[f"y_{part}"] // 5 + 100 for part in ("train", "test")}  # out of range if it were used
    return {
        f"cifar-100-binary/{part}.bin": records(data[f"x_{part}"], coarse[part], data[f"y_{part}"])
        for part in ("train", "test")
    }


@pytest.mark.parametrize(
    ("dataset", "classes", "members"), [("cifar10", 10, cifar10_members), ("cifar100", 100, cifar100_members)]
)
def test_binary_archives_and_npz_give_the_same(
    tmp_path: Path, npz: Callable, tar: Callable, arrays: Callable, dataset: str, classes: int, members: Callable
) -> None:
    data = arrays(classes, shape=(32, 32, 3))
    data["x_train"][..., 5:, 5:, :] = np.random.default_rng(1).integers(0, 256, (27, 27, 3))
    archive = tar(f"cifar-{classes}-binary.tar.gz", members(data))
    from_archive = load_benchmark(f"split-{dataset}", data=tmp_path, order=4, download=False)
    archive.unlink()
    npz(dataset, **data)
    from_npz = load_benchmark(f"split-{dataset}", data=tmp_path, order=4, download=False)
    assert from_archive.checksum == from_npz.checksum
    assert from_archive.class_names == from_npz.class_names
    for one, other in zip(from_archive.tasks, from_npz.tasks, strict=True):
        for a, b in ((one.train, other.train), (one.test, other.test)):
            assert torch.equal(a.x, b.x)
            assert torch.equal(a.y, b.y)
    assert not (tmp_path.parent / "evil.txt").exists()


def test_a_copy_with_classes_in_another_order_is_refused(tmp_path: Path, npz: Callable) -> None:
    names = list(BENCHMARKS["split-cifar10"].dataset.class_names)
    npz("cifar10", classes=10, shape=(32, 32, 3), class_names=names)
    assert load_benchmark("split-cifar10", data=tmp_path, tasks=1).class_names == tuple(names)
    names[2:4] = reversed(names[2:4])
    npz("cifar10", classes=10, shape=(32, 32, 3), class_names=names)
    with pytest.raises(
        FlashbackError, match=r"cifar10\.npz: label 2 is 'cat', but 'bird' in cifar10; number the classes"
    ):
        load_benchmark("split-cifar10", data=tmp_path, tasks=1)


def test_the_checksum_is_sha256_of_the_arrays(npz: Callable, arrays: Callable) -> None:
    data = arrays(6)
    raw = b"".join(data[key].tobytes() for key in ("x_train", "y_train", "x_test", "y_test"))
    assert load_benchmark(str(npz()), sizes=[6]).checksum == hashlib.sha256(raw).hexdigest()


def test_an_npz_comes_before_the_archive_and_the_environment_names_the_folder(
    tmp_path: Path, npz: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"not read")
    npz("cifar10", classes=10, shape=(32, 32, 3))
    monkeypatch.setenv("FLASHBACK_DATA", str(tmp_path))
    assert load_benchmark("split-cifar10", tasks=1).dataset == "cifar10"


def write_tiny(path: Path, image: Callable, wnids: list[str]) -> None:
    """The official layout, two images a class; the colour tells the class: its position among the sorted ids."""
    rank = {wnid: position for position, wnid in enumerate(sorted(wnids))}
    root = "tiny-imagenet-200"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/wnids.txt", "".join(f"{wnid}\n" for wnid in wnids))
        archive.writestr(f"{root}/words.txt", "".join(f"{wnid}\tname of {wnid}, other\n" for wnid in sorted(wnids)))
        annotations = []
        for wnid in sorted(wnids):
            jpeg = image((rank[wnid], 0, 0), (64, 64), "JPEG")
            for number in range(2):
                archive.writestr(f"{root}/train/{wnid}/images/{wnid}_{number}.JPEG", jpeg)
            archive.writestr(f"{root}/train/{wnid}/{wnid}_boxes.txt", "boxes")
            archive.writestr(f"{root}/val/images/val_{rank[wnid]}.JPEG", jpeg)
            annotations.append(f"val_{rank[wnid]}.JPEG\t{wnid}\t0\t0\t62\t62\n")
        archive.writestr(f"{root}/val/val_annotations.txt", "".join(annotations))
        archive.writestr(f"{root}/test/images/test_0.JPEG", jpeg)


def test_tiny_imagenet_numbers_classes_by_wnids_txt(tmp_path: Path, image: Callable) -> None:
    wnids = [f"n{number:08d}" for number in np.random.default_rng(0).permutation(200)]
    write_tiny(tmp_path / "tiny-imagenet-200.zip", image, wnids)
    benchmark = load_benchmark("split-tinyimagenet", data=tmp_path, tasks=2, download=False)
    assert (benchmark.sizes, benchmark.image_shape, len(benchmark.class_names)) == ([20, 20], (3, 64, 64), 200)
    assert benchmark.class_names[0] == f"name of {wnids[0]}"
    for task in benchmark.tasks:
        for images, per_class in ((task.train, 2), (task.test, 1)):
            assert sorted(images.y.tolist()) == sorted(list(task.classes) * per_class)
            for picture, label in zip(images.x, images.y.tolist(), strict=True):
                assert abs(int(picture[0, 30, 30]) - int(wnids[label][1:])) <= 1


@pytest.mark.parametrize("member", ["wnids.txt", "val/val_annotations.txt", "val/images/val_3.JPEG"])
def test_a_tiny_archive_without_its_parts_is_refused(tmp_path: Path, image: Callable, member: str) -> None:
    whole, path = tmp_path / "whole.zip", tmp_path / "tiny-imagenet-200.zip"
    write_tiny(whole, image, [f"n{number:08d}" for number in range(200)])
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            if name != f"tiny-imagenet-200/{member}":
                target.writestr(name, source.read(name))
    with pytest.raises(FlashbackError, match=rf"cannot read .*tiny-imagenet-200.zip.*{member}"):
        load_benchmark("split-tinyimagenet", data=tmp_path, tasks=1, download=False)


@pytest.fixture
def folder(tmp_path: Path, image: Callable) -> Path:
    """Three classes; the colour tells the class. Labels are positions among the sorted names."""
    root = tmp_path / "pictures"
    for part, count in (("train", 3), ("val", 1)):
        for name, colour in (("cat", GREEN), ("ant", RED), ("dog", BLUE)):
            place = root / part / name
            place.mkdir(parents=True)
            for number in range(count):
                (place / f"{number}.PNG").write_bytes(image(colour, (6, 4)).ljust(200, b"\0"))
            (place / "notes.txt").write_text("no image")
    return root


def test_a_folder_of_images(folder: Path) -> None:
    benchmark = load_benchmark(str(folder), sizes=[1, 2], order=[2, 0, 1])
    assert benchmark.class_names == ("dog", "ant", "cat")
    assert (benchmark.name, benchmark.image_shape) == ("pictures", (3, 4, 6))
    for images, count in (("train", 3), ("test", 1)):
        first, second = (getattr(task, images) for task in benchmark.tasks)
        assert (first.y.tolist(), second.y.tolist()) == ([0] * count, [1] * count + [2] * count)
        assert first.x[:, :, 1, 1].tolist() == [list(BLUE)] * count
        assert second.x[:, :, 3, 5].tolist() == [list(RED)] * count + [list(GREEN)] * count


def test_images_are_decoded_once_and_again_when_a_file_changes(
    folder: Path, image: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    decode = image_files.Store.decode
    monkeypatch.setattr(
        image_files.Store, "decode", lambda self, name, side: decoded.append(name) or decode(self, name, side)
    )
    first = load_benchmark(str(folder), sizes=[1, 2])
    assert len(set(decoded)) == 12
    decoded.clear()
    again = load_benchmark(str(folder), sizes=[1, 2])
    assert set(decoded) == {"train/ant/0.PNG"}, "only the image that tells the size"
    assert all(torch.equal(a.train.x, b.train.x) for a, b in zip(first.tasks, again.tasks, strict=True))
    maps = Path("/proc/self/maps")
    assert not maps.exists() or str(folder / ".flashback") in maps.read_text(), "images stay in the file"
    again.tasks[0].train.x.pictures[0][:] = 0
    assert load_benchmark(str(folder), sizes=[1, 2]).tasks[0].train.x[0].any(), "the cached file cannot be changed"

    decoded.clear()
    (folder / "train" / "dog" / "1.PNG").write_bytes(image(GREEN, (6, 4)).ljust(200, b"\0"))  # of the same size
    changed = load_benchmark(str(folder), sizes=[1, 2])
    assert changed.tasks[1].train.x[4, :, 0, 0].tolist() == list(GREEN)
    assert "val/dog/0.PNG" not in decoded
    assert not list((folder / ".flashback").glob("*.part"))


def test_a_damaged_cache_is_made_again(folder: Path) -> None:
    load_benchmark(str(folder), sizes=[3])
    for number, path in enumerate(sorted((folder / ".flashback").iterdir())):
        path.write_bytes(path.read_bytes()[:-3] if number else b"")
    assert load_benchmark(str(folder), sizes=[3]).tasks[0].train.x[0, :, 0, 0].tolist() == list(RED)


def test_large_images_keep_their_central_square(folder: Path, image: Callable) -> None:
    wide = np.zeros((100, 200, 3), np.uint8)
    wide[:, :50], wide[:, 50:150], wide[:, 150:] = RED, GREEN, BLUE
    upright = wide.transpose(1, 0, 2).copy()
    for path in folder.rglob("*.PNG"):
        path.write_bytes(image(wide if path.parent.name == "ant" else upright))
    benchmark = load_benchmark(str(folder), sizes=[3])
    assert benchmark.image_shape == (3, 256, 256)
    resized = np.asarray(Image.fromarray(wide).resize((512, 256), Image.Resampling.BILINEAR))
    expected = torch.from_numpy(resized[:, 128:384].transpose(2, 0, 1).copy())
    for picture in benchmark.tasks[0].train.x[:3]:
        assert torch.equal(picture, expected)
    for picture in benchmark.tasks[0].train.x[3:]:
        assert torch.equal(picture, expected.transpose(1, 2))


def test_small_images_must_be_equal_in_size(folder: Path, image: Callable) -> None:
    (folder / "train" / "cat" / "2.PNG").write_bytes(image(RED, (5, 4)))
    with pytest.raises(FlashbackError, match=r"train/cat/2.PNG is 5x4 but the first image is 6x4; make them equal"):
        load_benchmark(str(folder), sizes=[3])
    assert not list((folder / ".flashback").glob("*.part"))


def test_a_damaged_image_is_named(folder: Path) -> None:
    damaged = folder / "train" / "dog" / "1.PNG"
    damaged.write_bytes(damaged.read_bytes()[:40])
    with pytest.raises(FlashbackError, match=r"cannot read .*train/dog/1.PNG: the file is damaged, truncated"):
        load_benchmark(str(folder), sizes=[3])


def test_what_is_no_image_at_all_is_named_by_its_file(folder: Path) -> None:
    (folder / "train" / "dog" / "1.PNG").write_bytes(b"no image")
    with pytest.raises(FlashbackError, match=r"train/dog/1.PNG: .* \(no image of a known format\)$"):
        load_benchmark(str(folder), sizes=[3])


@pytest.mark.parametrize("form", ["bmp", "webp", "tif", "tiff", "gif"])
def test_other_formats_are_read(folder: Path, form: str) -> None:
    expected = load_benchmark(str(folder), sizes=[3]).tasks[0].train
    for path in folder.rglob("*.PNG"):
        with Image.open(path) as picture:
            lossless = {"lossless": True} if form == "webp" else {}
            picture.convert("RGB").save(path.with_suffix(f".{form}"), **lossless)
        path.unlink()
    loaded = load_benchmark(str(folder), sizes=[3]).tasks[0].train
    assert torch.equal(loaded.y, expected.y)
    assert (loaded.x.read().int() - expected.x.read().int()).abs().max() <= (0 if form != "gif" else 8)  # a palette


def test_of_what_moves_the_first_picture_is_taken(folder: Path) -> None:
    colours = [Image.new("RGB", (6, 4), colour) for colour in ("black", "white")]
    colours[0].save(folder / "train" / "ant" / "#.gif", save_all=True, append_images=colours[1:])
    assert int(load_benchmark(str(folder), sizes=[3]).tasks[0].train.x[0].max()) == 0


def test_files_that_are_left_out_are_told_once(folder: Path) -> None:
    for name in ("a.heic", "b.heic", "c.txt", ".hidden", "LICENCE"):
        (folder / "train" / "cat" / name).write_text("something")
    (folder / "val" / "cat" / "more").mkdir()
    kinds = r"\(\.heic: 2, \.txt: 7, folders: 1, no ending: 1\)"
    message = rf"^11 of 23 files in .*pictures are ignored {kinds}; images are \.png"
    with pytest.warns(UserWarning, match=message) as record:
        first, _ = (load_benchmark(str(folder), sizes=[3]) for _ in range(2))
    assert len(first.tasks[0].train) == 9
    assert len(record) == 1


def test_hidden_images_are_skipped(folder: Path, image: Callable) -> None:
    expected = load_benchmark(str(folder), sizes=[3])
    for name in (".deleted.png", "._0.PNG"):
        (folder / "train" / "ant" / name).write_bytes(image(BLUE, (6, 4)))
    benchmark = load_benchmark(str(folder), sizes=[3])
    assert len(benchmark.tasks[0].train) == 9
    assert benchmark.checksum == expected.checksum


def test_a_class_without_test_images_is_named_once(folder: Path) -> None:
    for path in (folder / "val" / "cat").iterdir():
        path.unlink()
    with pytest.warns(UserWarning, match=r"^task 1 has no test images of 'cat', so") as record:
        _ = [load_benchmark(str(folder), sizes=[3]) for _ in range(2)]
    assert sum("no test images" in str(each.message) for each in record) == 1


def test_so_is_one_of_an_array() -> None:
    x, y = np.zeros((8, 4, 4), np.uint8), np.arange(8) % 4
    names = ["ash", "birch", "cedar", "elm in arrays"]
    arrays = {"x_train": x, "y_train": y, "x_test": x[:3], "y_test": y[:3], "class_names": names}
    with pytest.warns(UserWarning, match=r"^task 2 has no test images of 'elm in arrays', so"):
        load_benchmark(arrays, sizes=2)


def test_a_folder_with_another_layout_is_refused(folder: Path) -> None:
    (folder / "val" / "emu").mkdir()
    with pytest.raises(FlashbackError, match=r"has a class 'emu' that .*train lacks; remove or rename it"):
        load_benchmark(str(folder), sizes=[3])
    (folder / "val" / "emu").rmdir()
    (folder / "val").rename(folder / "other")
    with pytest.raises(FlashbackError, match=r"there is no folder .*val; put images in train/<class>/"):
        load_benchmark(str(folder), sizes=[3])
    (folder / "other").rename(folder / "test")
    assert len(load_benchmark(str(folder), sizes=[3]).tasks[0].test) == 3
    for path in (folder / "test").rglob("*.PNG"):
        path.unlink()
    with pytest.raises(FlashbackError, match=r"pictures has no test images; put .png, .jpg, .*, .gif files there"):
        load_benchmark(str(folder), sizes=[3])


def test_a_folder_that_cannot_be_written_is_cached_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBACK_DATA", str(folder.parent / "cache"))
    monkeypatch.setattr("flashback.benchmarks.image_files.os.access", lambda path, mode: path != folder)
    assert len(load_benchmark(str(folder), sizes=[3]).tasks[0].train) == 9
    assert not (folder / ".flashback").exists()
    assert len(list((folder.parent / "cache" / ".flashback").glob("*.npy"))) == 6


def write_imagenet(root: Path, image: Callable, count: int, filled: list[int]) -> None:
    for part in ("train", "val"):
        for number in range(count):
            (root / part / f"n{number:08d}").mkdir(parents=True)
        for number in filled:
            colour = (number // 256, number % 256, 0)
            (root / part / f"n{number:08d}" / "1.JPEG").write_bytes(image(colour, (9, 8)))


@pytest.mark.parametrize("place", ["imagenet", "."])
@pytest.mark.parametrize("count", [100, 1000])
def test_imagenet100_takes_its_classes_by_rule(tmp_path: Path, image: Callable, count: int, place: str) -> None:
    classes = list(range(100)) if count == 100 else imagenet100_classes()
    first_ten = [classes[label] for label in (68, 56, 78, 8, 23, 84, 90, 65, 74, 76)]
    write_imagenet(tmp_path / place, image, count, first_ten)
    benchmark = load_benchmark("imagenet100-b0-10", data=tmp_path, tasks=1)
    assert benchmark.image_shape == (3, 256, 256)
    assert benchmark.class_names[:10] == tuple(f"n{number:08d}" for number in first_ten)
    for images in (benchmark.tasks[0].train, benchmark.tasks[0].test):
        loaded = {int(y): int(x[0, 0, 0]) * 256 + int(x[1, 0, 0]) for x, y in zip(images.x, images.y, strict=True)}
        assert [loaded[label] for label in range(10)] == first_ten


def test_imagenet100_with_wrong_folders_is_refused(tmp_path: Path, image: Callable) -> None:
    write_imagenet(tmp_path / "imagenet", image, 100, [])
    (tmp_path / "imagenet" / "val" / "n00000007").rmdir()
    with pytest.raises(FlashbackError, match=r"val has no folder n00000007; sort the validation images into one per"):
        load_benchmark("imagenet100-b0-10", data=tmp_path)
    (tmp_path / "imagenet" / "train" / "n00000007").rmdir()
    with pytest.raises(FlashbackError, match="train has 99 class folders; ImageNet-100 needs its 100 or all 1000"):
        load_benchmark("imagenet100-b0-10", data=tmp_path)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A web server of a folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{web.server_port}", folder
        web.shutdown()


def test_archives_are_fetched_and_their_checksum_verified(
    tmp_path: Path, server: tuple[str, Path], tar: Callable, arrays: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address, folder = server
    content = arrays(10, shape=(32, 32, 3))
    archive = tar("cifar-10-binary.tar.gz", cifar10_members(content)).rename(folder / "cifar-10-binary.tar.gz")
    official = BENCHMARKS["split-cifar10"].dataset
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    dataset = dataclasses.replace(official, url=f"{address}/{archive.name}", md5=md5)
    data = tmp_path / "data"
    source = load_dataset(dataset, data, download=True)
    assert (source.train.labels == content["y_train"]).all()
    assert (data / archive.name).read_bytes() == archive.read_bytes()
    for changes, reason in (({"md5": official.md5}, "hash"), ({"url": f"{address}/none"}, "HTTPError")):
        wrong = dataclasses.replace(dataset, **changes)
        with pytest.raises(
            FlashbackError, match=rf"put cifar10.npz or cifar-10-binary.tar.gz into .*failed \(.*{reason}"
        ):
            load_dataset(wrong, tmp_path / "elsewhere", download=True)
        assert not list((tmp_path / "elsewhere").glob("*"))


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("split-cifar10", "cifar10.npz or cifar-10-binary.tar.gz"),
        ("cifar100-b50-2", "cifar100.npz or cifar-100-binary.tar.gz"),
        ("split-tinyimagenet", "tinyimagenet.npz or tiny-imagenet-200.zip"),
        ("imagenet100-b0-10", "imagenet100.npz or imagenet/train or imagenet100/train or train"),
    ],
)
def test_missing_data_are_named(tmp_path: Path, name: str, files: str) -> None:
    with pytest.raises(FlashbackError, match=f"are missing; put {files} into {tmp_path}"):
        load_benchmark(name, data=tmp_path, download=False)
    with pytest.raises(FlashbackError, match="is a file; give the folder that contains the dataset"):
        load_benchmark(name, data=__file__)


@pytest.mark.parametrize(
    ("name", "there", "expected"),
    [
        ("split-cifar100", "cifar-100-python", True),
        ("split-cifar10", "cifar-10-python.tar.gz", True),
        ("split-cifar10", "cifar-10-batches-py", True),
        ("split-cifar10", "cifar-100-python", False),
        ("split-tinyimagenet", "cifar-100-python", False),
    ],
)
def test_a_pickled_copy_is_seen_and_not_used(tmp_path: Path, name: str, there: str, expected: bool) -> None:
    (tmp_path / there).touch()
    with pytest.raises(FlashbackError) as error:
        load_benchmark(name, data=tmp_path, download=False)
    assert (f"{there} is there, but pickled" in str(error.value)) is expected


def write_names_that_are_no_utf8(root: bytes) -> None:
    for part in (b"train", b"test"):
        for shade, name in enumerate((b"caf\xe9", b"plain")):
            folder = os.path.join(root, part, name)
            os.makedirs(folder)
            with open(os.path.join(folder, b"\xff.png"), "wb") as file:
                Image.new("RGB", (12, 12), (50 * shade, 0, 0)).save(file, "PNG")


def test_names_that_are_no_utf8_are_read_and_written_escaped(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/pi\xe9ces"
    write_names_that_are_no_utf8(root)
    benchmark = load_benchmark(os.fsdecode(root), sizes=[1, 1])
    assert benchmark.class_names == (r"caf\udce9", "plain")
    assert benchmark.tasks[1].train.x[:].flatten(2)[0, 0].unique().tolist() == [50]
    for text in (benchmark.class_names[0], repr(benchmark.class_names)):
        text.encode()
    assert load_benchmark(os.fsdecode(root), sizes=[1, 1], order=["plain", r"caf\udce9"]).order == (1, 0)


def test_a_damaged_file_whose_name_is_no_utf8_is_named(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "pictures")
    write_names_that_are_no_utf8(root)
    with open(root + b"/train/caf\xe9/\xff.png", "wb") as file:
        file.write(b"no image")
    with pytest.raises(FlashbackError, match=r"caf\\udce9/\\udcff\.png") as caught:
        load_benchmark(os.fsdecode(root), sizes=[1, 1])
    str(caught.value).encode()


def test_a_run_on_names_that_are_no_utf8_is_recorded(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path) + b"/pi\xe9ces"
    write_names_that_are_no_utf8(root)
    settings = {"benchmark.sizes": [1, 1], "training.epochs": 1}
    run(configure("finetune", os.fsdecode(root), settings=settings), out=tmp_path / "run")
    record = read_record(tmp_path / "run")
    assert record.run["data"]["class_names"] == [r"caf\udce9", "plain"]
