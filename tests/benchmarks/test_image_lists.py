"""Images as they come: folders, files, lists and arrays, with all that can be wrong with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flashback.benchmarks import load_benchmark
from flashback.benchmarks.image_lists import ListedImage, check_case_conflicts, list_images, read_batches
from flashback.errors import FlashbackError

SHAPE = (3, 4, 4)


def save(path: Path, colour: int = 90, size: tuple[int, int] = (4, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (colour, 20, 30)).save(path)
    return path


def names(images: list[ListedImage], folder: Path) -> list[str]:
    return [os.path.relpath(image.name, folder) for image in images]


def read(images: list[ListedImage], batch: int = 2) -> tuple[list[int], dict[str, str]]:
    skipped = dict[str, str]()
    rows = [row for rows, _ in read_batches(images, SHAPE, batch, skipped) for row in rows]
    return rows, skipped


# ---------------------------------------------------------------- folders


def test_a_folder_is_searched_at_any_depth(tmp_path: Path) -> None:
    for name in ("b.PNG", "a/1.jpg", "a/deep/2.tif", ".hidden.png", ".flashback/x.png"):
        save(tmp_path / name)
    assert names(list_images(tmp_path), tmp_path) == ["a/1.jpg", "a/deep/2.tif", "b.PNG"]


def test_other_files_are_counted(tmp_path: Path) -> None:
    save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("none")
    with pytest.warns(UserWarning, match=r"1 of 2 files in .* are ignored; images are \.png"):
        assert len(list_images(tmp_path)) == 1


def test_links_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    save(tmp_path / "shop" / "cup" / "1.png")
    (tmp_path / "shop" / "cup" / "back").symlink_to(tmp_path / "shop")
    (tmp_path / "shop" / "mug").symlink_to(tmp_path / "shop" / "cup")
    assert names(list_images(tmp_path / "shop"), tmp_path / "shop") == ["cup/1.png", "mug/1.png"]


def test_a_class_is_a_folder(tmp_path: Path) -> None:
    for name in ("cup/1.png", "cup/more/2.png", "bolt/1.png", "stray.png"):
        save(tmp_path / name)
    with pytest.warns(UserWarning, match=r"files of .* in no class folder are ignored: 1"):
        images = list_images(tmp_path, labelled=True)
    assert [image.label for image in images] == ["bolt", "cup", "cup"]


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_of_a_split_folder_the_test_images_are_listed(tmp_path: Path, held_out: str) -> None:
    save(tmp_path / "train" / "cup" / "1.png")
    save(tmp_path / held_out / "cup" / "2.png")
    assert names(list_images(tmp_path, labelled=True), tmp_path) == [f"{held_out}/cup/2.png"]
    assert len(list_images(tmp_path)) == 2


def test_names_that_are_not_utf_8_are_printable(tmp_path: Path) -> None:
    save(tmp_path / "one.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    (image,) = list_images(tmp_path)
    assert image.name.endswith(r"caf\udce9.png")
    assert image.read(SHAPE).shape == SHAPE


@pytest.mark.parametrize(
    ("source", "labelled", "sentence"),
    [
        ("empty", False, r"empty has no images; they are \.png"),
        ("empty", True, "empty has no class folders; put images in one folder per class"),
        ("absent", False, "there is no file or folder .*absent; give a folder of images, an image"),
        ("absent.csv", False, r"there is no file .*absent\.csv"),
        ("one.png", True, r"one\.png does not say its class"),
        ("empty.csv", False, r"empty\.csv is empty; give a path in each line"),
        ("paths.csv", True, r"paths\.csv has no label for one\.png; add a column"),
    ],
)
def test_nothing_to_list_is_one_sentence(tmp_path: Path, source: str, labelled: bool, sentence: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "paths.csv").write_text("one.png\n")
    save(tmp_path / "one.png")
    with pytest.raises(FlashbackError, match=sentence):
        list_images(tmp_path / source, labelled)


def test_classes_that_differ_only_in_case_are_refused() -> None:
    check_case_conflicts(["Cup", "cup", "bolt"], known=["Cup", "cup"])
    with pytest.raises(FlashbackError, match="the classes 'Cup' and 'cup' differ only in case; rename one"):
        check_case_conflicts(["Cup", "bolt", "cup"])
    with pytest.raises(FlashbackError, match="the classes 'cup' and 'CUP' differ only in case"):
        check_case_conflicts(["CUP"], known=["cup"])


# ---------------------------------------------------------------- lists and arrays


@pytest.mark.parametrize(
    "text",
    [
        "cup/1.png,cup\nbolt 2.png,bolt\n",
        "path,label\r\ncup/1.png,cup\r\nbolt 2.png,bolt\r\n",
        "\ufeffclass,ignored,filename\ncup,7,cup/1.png\n\nbolt,8,bolt 2.png\n",
        '"cup/1.png","cup"\n"bolt 2.png","bolt"\n',
    ],
)
def test_a_csv_lists_paths_beside_it(tmp_path: Path, text: str) -> None:
    save(tmp_path / "cup" / "1.png")
    save(tmp_path / "bolt 2.png")
    (tmp_path / "list.csv").write_text(text, newline="")
    images = list_images(tmp_path / "list.csv", labelled=True)
    assert names(images, tmp_path) == ["cup/1.png", "bolt 2.png"]
    assert [image.label for image in images] == ["cup", "bolt"]
    assert read(images) == ([0, 1], {})


def test_a_csv_without_labels_is_enough_to_predict(tmp_path: Path) -> None:
    save(tmp_path / "1.png")
    (tmp_path / "list.csv").write_text(f"path\n{tmp_path / '1.png'}\n")
    assert [image.label for image in list_images(tmp_path / "list.csv")] == [None]


@pytest.mark.parametrize("keys", [("x", "y"), ("x_test", "y_test")])
@pytest.mark.parametrize("named", [True, False])
def test_arrays_are_images_of_any_size_too(tmp_path: Path, keys: tuple[str, str], named: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 4), np.uint8)
    arrays = dict(zip(keys, (pixels, np.array([1, 0, 1])), strict=True))
    np.savez(tmp_path / "a.npz", **arrays, **({"class_names": np.array(["cup", "bolt"])} if named else {}))
    images = list_images(tmp_path / "a.npz", labelled=True)
    assert [image.label for image in images] == (["bolt", "cup", "bolt"] if named else [1, 0, 1])
    assert np.array_equal(images[2].read((1, 4, 4))[0], pixels[2])
    assert images[0].read((3, 7, 5)).shape == (3, 7, 5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": None}, "has no array 'x_test'; it needs x and y, or x_test and y_test"),
        ({"y": np.arange(2)}, "x has 3 images but y 2 labels"),
        ({"class_names": np.array(["cup"])}, "labels from 0 to 2, which class_names does not all name"),
    ],
)
def test_arrays_that_do_not_fit_are_one_sentence(
    tmp_path: Path, changes: dict[str, np.ndarray | None], sentence: str
) -> None:
    arrays = {"x": np.zeros((3, 4, 4), np.uint8), "y": np.arange(3), **changes}
    np.savez(tmp_path / "a.npz", **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(FlashbackError, match=sentence):
        list_images(tmp_path / "a.npz")


# ---------------------------------------------------------------- reading


def test_files_that_cannot_be_read_are_named_and_skipped(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.png", size=(90, 60)).read_bytes()
    save(tmp_path / "z.png")
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "pipe.png")
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "deep.png")
    images = list_images(tmp_path)
    rows, skipped = read(images)
    assert names([images[row] for row in rows], tmp_path) == ["a.png", "z.png"]
    assert sorted(os.path.basename(name) for name in skipped) == [
        "cut.png", "deep.png", "empty.png", "gone.png", "pipe.png", "text.png",
    ]  # fmt: skip
    assert all(os.path.basename(name) in sentence for name, sentence in skipped.items())
    assert "more than 8 bits a channel" in skipped[str(tmp_path / "deep.png")]


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_batches_keep_the_order_and_leave_no_image_out(tmp_path: Path, batch: int) -> None:
    for number in range(8):
        save(tmp_path / f"{number}.png", colour=number, size=(4 + number, 9 - number))
    done, red, rows = list[int](), list[int](), list[int]()
    for numbers, pixels in read_batches(list_images(tmp_path), SHAPE, batch, {}, done.append):
        assert pixels.shape == (len(numbers), *SHAPE)
        rows += numbers
        red += pixels[:, 0, 0, 0].tolist()
    assert rows == red == list(range(8))
    assert sum(done) == 8


def test_no_more_than_two_batches_are_read_ahead(tmp_path: Path) -> None:
    numbers: list[int] = []

    def image(number: int) -> ListedImage:
        def read_one(shape: tuple[int, int, int]) -> np.ndarray:
            numbers.append(number)
            return np.zeros(shape, np.uint8)

        return ListedImage(str(number), None, read_one)

    batches = read_batches([image(number) for number in range(100)], SHAPE, 5, {})
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert len(numbers) <= 10


@pytest.mark.parametrize("size", [(12, 12), (90, 70)])  # stored as they are, and as squares of 256
def test_files_are_decoded_as_for_training(tmp_path: Path, size: tuple[int, int], image: Callable[..., bytes]) -> None:
    generator = np.random.default_rng(0)
    for part in ("train", "test"):
        for name in ("cup", "bolt"):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(2):
                pixels = generator.integers(0, 256, (size[1], size[0], 3), np.uint8)
                (tmp_path / part / name / f"{number}.jpg").write_bytes(image(pixels, kind="JPEG"))
    (task,) = load_benchmark(tmp_path, sizes=[2]).tasks
    shape = tuple(task.test.x.shape[1:])
    ((_, pixels),) = read_batches(list_images(tmp_path, labelled=True), shape, 10, {})
    assert torch.equal(pixels, task.test.x[:])
