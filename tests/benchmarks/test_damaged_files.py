"""Damaged or hostile input ends in one sentence, before any training."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashback.benchmarks import BENCHMARKS, load_benchmark
from flashback.benchmarks.load import fetch_data, missing_data
from flashback.errors import FlashbackError


class Trap:
    """Unpickling it would be noticed."""

    def __reduce__(self) -> tuple[Callable, tuple[str]]:
        return pytest.fail, ("a pickle was loaded",)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x_test": None}, "has no array 'x_test'; it needs x_train, y_train, x_test, y_test"),
        ({"x_train": np.zeros((36, 4, 4, 3))}, r"'x_train' is float64 \[36, 4, 4, 3\]; it must be uint8 \[n, height"),
        ({"x_train": np.zeros((36, 3, 4, 4), np.uint8)}, r"'x_train' is uint8 \[36, 3, 4, 4\]; it must be uint8"),
        ({"x_train": np.zeros((36, 48), np.uint8)}, r"'x_train' is uint8 \[36, 48\]; it must be"),
        ({"x_train": np.zeros((0, 4, 4, 3), np.uint8)}, "and not empty"),
        ({"x_test": np.zeros((12, 5, 4, 3), np.uint8)}, r"training images are \[4, 4, 3\] but test images \[5, 4, 3\]"),
        ({"y_train": np.zeros(36)}, r"'y_train' is float64 \[36\]; it must be integers \[n\]"),
        ({"y_train": np.zeros((36, 1), int)}, r"'y_train' is int64 \[36, 1\]; it must be integers \[n\]"),
        ({"y_train": np.array(3)}, r"'y_train' is int64 \[\]; it must be integers"),
        ({"y_train": np.arange(35) % 6}, "x_train has 36 images but y_train 35 labels; they must match"),
        ({"y_train": np.arange(36) % 6 - 1}, "y_train has labels from -1 to 4; 6 classes have labels 0 to 5"),
        ({"y_train": np.arange(36) % 6 * 2}, "y_train has labels from 0 to 10; 6 classes have labels 0 to 5, each"),
        ({"y_test": np.full(12, 6)}, "y_test has labels from 6 to 6; 6 classes have labels 0 to 5"),
        ({"y_test": np.full(12, 2**63, np.uint64)}, "y_test has labels from 9223372036854775808 to"),
        ({"y_test": np.full(12, Trap())}, r"'y_test' is object \[12\]; it must be integers \[n\]"),
        ({"x_test": np.full((12, 4, 4, 3), Trap())}, r"'x_test' is object \[12, 4, 4, 3\]; it must be uint8"),
    ],
)
def test_arrays_of_another_kind_are_refused(npz: Callable, changes: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(FlashbackError, match=sentence):
        load_benchmark(str(npz(**changes)), sizes=[3, 3])


def test_labels_of_any_integer_type_and_images_in_any_layout(npz: Callable, arrays: Callable) -> None:
    data = arrays(6)
    changes = {"y_train": data["y_train"].astype(">u2"), "x_train": np.asfortranarray(data["x_train"])}
    expected, loaded = (load_benchmark(str(npz(**arguments)), sizes=[6]) for arguments in ({}, changes))
    assert loaded.checksum == expected.checksum
    assert loaded.tasks[0].train.x.equal(expected.tasks[0].train.x)


def test_a_named_dataset_of_another_kind_is_refused(tmp_path: Path, npz: Callable) -> None:
    npz("cifar10", classes=10)
    with pytest.raises(FlashbackError, match=r"have 10 classes of images \[3, 4, 4\], expected 10 of \[3, 32, 32\]"):
        load_benchmark("split-cifar10", data=tmp_path)
    npz("cifar10", classes=11, shape=(32, 32, 3))
    with pytest.raises(FlashbackError, match="y_train has labels from 0 to 10; 10 classes have labels 0 to 9"):
        load_benchmark("split-cifar10", data=tmp_path)
    npz("fashion_mini", classes=10, shape=(28, 28))
    with pytest.raises(FlashbackError, match="the data of fashion_mini have a wrong checksum"):
        load_benchmark("split-fashion-mini", data=tmp_path)


def test_a_class_or_a_task_without_images_is_refused(tmp_path: Path, npz: Callable, arrays: Callable) -> None:
    data = arrays(10, shape=(32, 32, 3))
    no_cats = np.where(data["y_train"] == 3, 2, data["y_train"])
    npz("cifar10", **{**data, "y_train": no_cats})
    with pytest.raises(FlashbackError, match="task 2 has no training images of class 'cat'; add some"):
        load_benchmark("split-cifar10", data=tmp_path)
    npz("cifar10", **{**data, "y_test": data["y_test"] % 4})
    with pytest.raises(FlashbackError, match="task 3 has no test images; add some or give other sizes"):
        load_benchmark("split-cifar10", data=tmp_path)


def test_names_and_sizes_that_are_wrong(tmp_path: Path, npz: Callable) -> None:
    with pytest.raises(FlashbackError, match="unknown benchmark 'split-cifar-10'; did you mean 'split-cifar10'"):
        load_benchmark("split-cifar-10")
    with pytest.raises(FlashbackError, match=r"there is no file .*none.npz; check the path"):
        load_benchmark(str(tmp_path / "none.npz"))
    with pytest.raises(FlashbackError, match=r"there is no folder .*none; check the path"):
        load_benchmark(str(tmp_path / "none"))
    with pytest.raises(FlashbackError, match=r"there is no folder .*/train; put images in"):
        load_benchmark(str(tmp_path), sizes=[2])
    with pytest.raises(FlashbackError, match=r"made.npz has no information about tasks; .* --set benchmark.sizes=2 "):
        load_benchmark(str(npz()))
    with pytest.raises(FlashbackError, match=r"the task sizes \[2, 2\] sum to 4, but the dataset has 6 classes"):
        load_benchmark(str(npz()), sizes=[2, 2])
    with pytest.raises(FlashbackError, match="it lacks label 2 and 3 more"):
        load_benchmark(str(npz()), sizes=[6], order=[0, 1])


def test_a_path_is_looked_for_in_the_data_folder_too(
    tmp_path: Path, npz: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, expected = npz(), load_benchmark(npz(), sizes=[6])
    (tmp_path / "data" / "sub").mkdir(parents=True)
    path.rename(tmp_path / "data" / "sub" / "made.npz")
    monkeypatch.chdir(tmp_path)
    for name, folder in (("sub/made.npz", "data"), ("made.npz", "data/sub"), ("/gone/made.npz", "data/sub")):
        loaded = load_benchmark(name, data=folder, sizes=[6])
        assert (loaded.name, loaded.checksum) == ("made", expected.checksum)
        assert missing_data(name, folder) is None
        assert fetch_data(name, folder).samefile("data/sub/made.npz")
        with pytest.raises(FlashbackError, match=r"made.npz; check the path, or name the folder it is in"):
            load_benchmark(name, sizes=[6])
    monkeypatch.setenv("FLASHBACK_DATA", "data/sub")
    assert load_benchmark("made.npz", sizes=[6]).checksum == expected.checksum
    npz(y_test=np.zeros(12, int)).rename(tmp_path / "made.npz")
    assert load_benchmark("made.npz", sizes=[6]).checksum != expected.checksum, "the working directory comes first"


def test_a_file_that_may_not_be_read_is_not_called_damaged(npz: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path = npz()
    monkeypatch.setattr(zipfile, "ZipFile", refuse)
    with pytest.raises(FlashbackError, match=r"made.npz may not be read by this user; change its permissions$"):
        load_benchmark(path, sizes=[6])


def test_a_class_name_that_is_no_text_is_refused(npz: Callable) -> None:
    path = rezip(npz(), "class_names", npy_bytes("(6,)", b"\xff\xff\xff\x7f" * 6, "'<U1'"))
    with pytest.raises(FlashbackError, match=r"made\.npz: the file is damaged"):
        load_benchmark(path, sizes=[6])


def test_wrong_plans_are_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(FlashbackError, match="the task sizes"):
        load_benchmark("split-cifar10", data=tmp_path, sizes=[3])
    with pytest.raises(FlashbackError, match="has 1 of 10 classes; it lacks 'airplane'"):
        load_benchmark("split-cifar10", data=tmp_path, order=[3])


def npy_bytes(shape: str, data: bytes, descr: str = "'|u1'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def rezip(path: Path, key: str, content: bytes) -> Path:
    """The same .npz with one member's bytes replaced."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members[f"{key}.npy"] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in members.items():
            archive.writestr(name, value)
    return path


@pytest.mark.parametrize("shape", ["(999999999, 999, 999, 3)", "(36, 4, 4, 1)", f"({2**64}, 4, 4, 3)"])
def test_a_header_that_claims_another_size_is_refused_before_memory_is_taken(npz: Callable, shape: str) -> None:
    path = rezip(npz(), "x_train", npy_bytes(shape, bytes(36 * 48)))
    with pytest.raises(FlashbackError, match=r"'x_train' declares .* bytes of shape .*, which the file cannot contain"):
        load_benchmark(str(path), sizes=[6])


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_directory_that_claims_another_size_is_refused(npz: Callable, compression: int) -> None:
    """Both the array header and the directory of the archive lie, in agreement."""
    path = npz()
    content, claimed = npy_bytes("(70000, 256, 256, 1)", b"x"), 70_000 * 256 * 256
    stream = io.BytesIO()
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(stream, "w", compression) as archive:
        for name in source.namelist():
            archive.writestr(name, content if name == "x_train.npy" else source.read(name))
        info = archive.getinfo("x_train.npy")
        info.file_size = len(content) - 1 + claimed
    path.write_bytes(stream.getvalue())
    with pytest.raises(FlashbackError, match="which the file cannot contain"):
        load_benchmark(str(path), sizes=[6])


@pytest.mark.parametrize("length", [0, 10, 100, 1000, -1, -30])
def test_a_truncated_npz_is_refused(npz: Callable, length: int) -> None:
    path = npz()
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(
        FlashbackError, match=r"cannot read .*made.npz: the file is damaged, truncated or of another kind"
    ):
        load_benchmark(str(path), sizes=[6])


def test_a_changed_byte_of_an_image_is_noticed(npz: Callable) -> None:
    path = npz()
    raw = bytearray(path.read_bytes())
    raw[1000] ^= 1
    path.write_bytes(raw)
    with pytest.raises(FlashbackError, match=r"cannot read .*CRC"):
        load_benchmark(str(path), sizes=[6])


@pytest.mark.parametrize("size", [0, 100, 3073 * 2 + 1])
def test_a_cifar_file_of_a_wrong_size_is_refused(tmp_path: Path, tar: Callable, size: int) -> None:
    tar("cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": bytes(size)})
    with pytest.raises(FlashbackError, match=r"test_batch.bin is not a whole number of images; download it again"):
        load_benchmark("split-cifar10", data=tmp_path)


def test_a_cifar_archive_without_a_file_or_cut_short_is_refused(tmp_path: Path, tar: Callable) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 3073 * 20, np.uint8).tobytes()
    path = tar("cifar-10-binary.tar.gz", {"cifar-10-batches-bin/test_batch.bin": noise})
    with pytest.raises(FlashbackError, match=r"does not contain cifar-10-batches-bin/data_batch_1.bin; download"):
        load_benchmark("split-cifar10", data=tmp_path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(FlashbackError, match=r"cannot read .*cifar-10-binary.tar.gz: the file is damaged"):
        load_benchmark("split-cifar10", data=tmp_path)


@pytest.mark.parametrize("name", ["split-cifar10", "split-cifar100", "split-tinyimagenet"])
def test_an_archive_of_noise_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / BENCHMARKS[name].dataset.files[0]).write_bytes(b"<html>not found</html>")
    with pytest.raises(FlashbackError, match=r"cannot read .*: the file is damaged, truncated or of another kind"):
        load_benchmark(name, data=tmp_path)


# ---------------------------------------------------------------- archives and folders that lead elsewhere

TEST_BATCH = "cifar-10-batches-bin/test_batch.bin"


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE])
def test_a_tar_member_that_is_no_file_is_not_followed(tmp_path: Path, kind: bytes) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(3073 * 5))  # would do as images
    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as archive:
        info = tarfile.TarInfo(TEST_BATCH)
        info.type, info.linkname = kind, str(secret)
        archive.addfile(info)
    with pytest.raises(FlashbackError, match=r"test_batch.bin is not a whole number of images; download it again"):
        load_benchmark("split-cifar10", data=tmp_path, download=False)


@pytest.mark.parametrize(
    "name", ["/tmp/flashback-evil", "../evil", "cifar-10-batches-bin/../../evil", f"./{TEST_BATCH}"]
)
def test_tar_members_by_other_names_are_never_written(tmp_path: Path, tar: Callable, name: str) -> None:
    (tmp_path / "data").mkdir()
    path = tar("data/cifar-10-binary.tar.gz", {name: bytes(3073)})
    with pytest.raises(FlashbackError, match=r"does not contain cifar-10-batches-bin/data_batch_1.bin"):
        load_benchmark("split-cifar10", data=path.parent, download=False)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["data", path.name]
    assert not Path("/tmp/flashback-evil").exists()


def test_a_tar_member_larger_than_the_dataset_is_not_read(tmp_path: Path) -> None:
    """The size stands in the header of the member; nothing of it is there."""
    info = tarfile.TarInfo(TEST_BATCH)
    info.size = 3073 * 10**9
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(gzip.compress(info.tobuf() + bytes(1024)))
    with pytest.raises(FlashbackError, match=r"test_batch.bin is not a whole number of images|cannot read"):
        load_benchmark("split-cifar10", data=tmp_path, download=False)


def test_zip_members_with_names_that_lead_elsewhere(tmp_path: Path) -> None:
    """Images are decoded from memory; only the cache beside the archive is ever written."""
    (tmp_path / "data").mkdir()
    evil = ["/tmp/flashback-evil.JPEG", "../evil.JPEG", "tiny-imagenet-200/train/n01/images/../../../../../evil.JPEG"]
    link = zipfile.ZipInfo("tiny-imagenet-200/train/n01/images/link.JPEG")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "data" / "tiny-imagenet-200.zip", "w") as archive:
        archive.writestr("tiny-imagenet-200/wnids.txt", "n01\n")
        archive.writestr("tiny-imagenet-200/words.txt", "n01\tthing\n")
        archive.writestr("tiny-imagenet-200/val/val_annotations.txt", f"../../../{evil[1]}\tn01\n")
        archive.writestr(link, "/etc/passwd")
        for name in evil:
            archive.writestr(name, "never written")
    with pytest.raises(FlashbackError, match=r"^cannot read .*tiny-imagenet-200.zip"):
        load_benchmark("split-tinyimagenet", data=tmp_path / "data", tasks=1, download=False)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["data", "tiny-imagenet-200.zip"]
    assert not Path("/tmp/flashback-evil.JPEG").exists()


def test_a_cache_that_is_a_link_is_not_written_through(
    tmp_path: Path, image: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in ("train", "test"):
        (tmp_path / "pictures" / part / "ant").mkdir(parents=True)
        (tmp_path / "pictures" / part / "ant" / "1.png").write_bytes(image((9, 9, 9)))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "pictures" / ".flashback").symlink_to(elsewhere)
    monkeypatch.setenv("FLASHBACK_DATA", str(tmp_path / "own"))
    assert load_benchmark(str(tmp_path / "pictures"), sizes=[1]).classes == 1
    assert list(elsewhere.iterdir()) == []
    assert len(list((tmp_path / "own" / ".flashback").glob("*.npy"))) == 2


def test_an_array_larger_than_the_memory_is_refused(npz: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """An archive can keep its word and still be a bomb: zeros pack a thousandfold."""
    path = npz()
    monkeypatch.setattr("flashback.benchmarks.arrays.os.sysconf", lambda name: 40)
    with pytest.raises(FlashbackError, match=r"'x_train' needs .* GiB of memory, but this machine has 0.0"):
        load_benchmark(str(path), sizes=[6])


# ---------------------------------------------------------------- anything at all


def load_or_refuse(path: Path) -> None:
    """Anything but a benchmark or a FlashbackError fails the test that calls it."""
    try:
        benchmark = load_benchmark(str(path), sizes=[3, 3])
    except FlashbackError:
        return
    assert benchmark.sizes == [3, 3]


FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.integers(-3, 40) | st.sampled_from([2**31, 2**63, 2**64])
shapes = st.lists(numbers, max_size=5).map(lambda axes: str(tuple(axes))) | st.text(max_size=20)
types = st.sampled_from(
    ["'|u1'", "'<i8'", "'|O'", "'|V3'", "'<U4'", "[('a', '<i4')]", "'|u1', 'extra': 1", "7", "'", "("]
)


@FUZZ
@pytest.mark.slow
@given(
    key=st.sampled_from(["x_train", "y_train", "x_test", "y_test"]),
    shape=shapes,
    descr=types,
    size=st.integers(0, 2000),
)
def test_any_header_loads_or_is_refused(npz: Callable, key: str, shape: str, descr: str, size: int) -> None:
    load_or_refuse(rezip(npz(), key, npy_bytes(shape, bytes(size), descr)))


@FUZZ
@pytest.mark.slow
@given(content=st.binary(max_size=200), key=st.sampled_from(["x_train", "y_test"]), magic=st.booleans())
def test_any_member_loads_or_is_refused(npz: Callable, content: bytes, key: str, magic: bool) -> None:
    load_or_refuse(rezip(npz(), key, (b"\x93NUMPY" if magic else b"") + content))


@FUZZ
@pytest.mark.slow
@given(data=st.data())
def test_any_change_of_bytes_loads_or_is_refused(npz: Callable, data: st.DataObject) -> None:
    path = npz()
    raw = bytearray(path.read_bytes())
    for place, value in data.draw(st.lists(st.tuples(st.integers(1, len(raw)), st.integers(0, 255)), max_size=6)):
        raw[-place] = value
    path.write_bytes(raw)
    load_or_refuse(path)


# ---------------------------------------------------------------- pipes, which would block


def test_a_pipe_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "made.npz")
    with pytest.raises(FlashbackError, match=r"made\.npz is neither a file nor a folder"):
        load_benchmark(tmp_path / "made.npz", sizes=[6])


def test_a_pipe_instead_of_an_archive_counts_as_missing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cifar-10-binary.tar.gz")
    with pytest.raises(FlashbackError, match="the data of cifar10 are missing"):
        load_benchmark("split-cifar10", data=tmp_path, download=False)


def test_a_pipe_in_the_cache_is_replaced(tmp_path: Path, image: Callable) -> None:
    for part in ("train", "test"):
        (tmp_path / part / "one").mkdir(parents=True)
        (tmp_path / part / "one" / "a.png").write_bytes(image((9, 9, 9)))
    load_benchmark(tmp_path, sizes=[1])
    for path in (tmp_path / ".flashback").glob("*.npy"):
        path.unlink()
        os.mkfifo(path)
    assert load_benchmark(tmp_path, sizes=[1]).tasks[0].train.x.float().mean() == 9
