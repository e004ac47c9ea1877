"""A model that goes on learning, given images and folders that are not as they should be: a sentence or the result."""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import flashback as fb
from flashback.errors import FlashbackError
from flashback.models.learner import Learner

QUICK: dict[str, Any] = {"training.epochs": 1, "training.batch_size": 8}
RANDOM = np.random.default_rng(1)


def picture(mode: str = "RGB", side: int = 12) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (side, side, 3), dtype=np.uint8)).convert(mode)


def write_classes(folder: Path, *names: str, count: int = 4, side: int = 12) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(side=side).save(folder / name / f"{number}.png")
    return folder


def new(folder: Path, **options: Any) -> Learner:
    return Learner.create(folder, settings=QUICK, **options)


@pytest.fixture
def model(tmp_path: Path) -> Learner:
    """A model with two versions."""
    learner = new(tmp_path / "model")
    learner.learn(write_classes(tmp_path / "first", "cup", "fork"))
    learner.learn(write_classes(tmp_path / "second", "spoon"))
    return learner


# ---------------------------------------------------------------- images


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    model = new(tmp_path / "m")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FlashbackError, match="has no class folders; put images in one folder per class"):
        model.learn(tmp_path / "empty")
    (tmp_path / "texts" / "cup").mkdir(parents=True)
    (tmp_path / "texts" / "cup" / "notes.txt").touch()
    with pytest.warns(UserWarning, match="has no images"), pytest.raises(FlashbackError, match="has no images"):
        model.learn(tmp_path / "texts")
    with pytest.raises(FlashbackError, match="there is no file or folder"):
        model.learn(tmp_path / "absent")
    assert model.history() == []


def test_broken_files_are_named_skipped_and_counted(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", "cup", "fork")
    (images / "cup" / "broken.png").write_bytes(b"no image")
    whole = (images / "fork" / "0.png").read_bytes()
    (images / "fork" / "cut.png").write_bytes(whole[: len(whole) // 2])
    model = new(tmp_path / "m")
    version = model.learn(images)
    assert version.skipped == 2
    assert {Path(name).name for name in model.skipped} == {"broken.png", "cut.png"}


def test_a_class_of_the_wrong_kind_is_named_and_left_out(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", "cup", "fork")
    (images / "text").mkdir()
    (images / "text" / "a.txt").touch()
    (images / "deep").mkdir()
    for number in range(2):
        Image.fromarray(RANDOM.integers(0, 60000, (9, 9), dtype=np.uint16)).save(images / "deep" / f"{number}.png")
    with pytest.warns(UserWarning, match="no image of|has no images") as caught:
        version = new(tmp_path / "m").learn(images)
    sentences = " ".join(str(warning.message) for warning in caught)
    assert "text has no images" in sentences
    assert "no image of 'deep' can be read, so it is not learned" in sentences
    assert (version.classes, version.skipped) == (("cup", "fork"), 2)


def test_images_of_any_kind_and_size_are_learned(tmp_path: Path) -> None:
    images = write_classes(tmp_path / "images", "cup")
    (images / "mixed").mkdir()
    for number, (mode, ending) in enumerate(
        [("L", "png"), ("P", "gif"), ("CMYK", "jpg"), ("RGBA", "png"), ("1", "bmp"), ("LA", "png"), ("RGB", "webp")]
    ):
        picture(mode, 9 + 10 * number).save(images / "mixed" / f"{number}.{ending}")
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(side=20).resize((30, 20)).save(images / "mixed" / "turned.jpg", exif=exif)
    version = new(tmp_path / "m").learn(images)
    assert version.skipped == 0
    assert version.images + version.held_out == 12
    assert version.image_shape == (3, 32, 32)


def test_classes_that_differ_only_in_case_are_refused(tmp_path: Path, model: Learner) -> None:
    pixels = np.zeros((2, 12, 12, 3), np.uint8)
    with pytest.raises(FlashbackError, match="'pan' and 'Pan' differ only in case"):
        model.learn({"pan": pixels, "Pan": pixels})
    with pytest.raises(FlashbackError, match="'cup' and 'CUP' differ only in case"):
        model.learn(write_classes(tmp_path / "again", "CUP"))
    assert model.current == 2


def test_one_image_in_all_is_learned(tmp_path: Path) -> None:
    model = new(tmp_path / "m")
    assert model.learn(write_classes(tmp_path / "images", "cup", count=1)).after == {}
    assert model.predict(tmp_path / "images").rows[0].class_name == "cup"


@pytest.mark.slow
def test_a_thousand_classes(tmp_path: Path) -> None:
    images = {f"class {c}": RANDOM.integers(0, 256, (3, 8, 8), dtype=np.uint8) for c in range(1000)}
    model = new(tmp_path / "m")
    version = model.learn(images)
    assert (len(version.classes), version.images, version.held_out) == (1000, 2000, 1000)
    assert len(model.learn({"one more": images["class 0"]}).classes) == 1001


def test_a_memory_too_small_for_the_classes_is_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    model = new(tmp_path / "m", memory=2)
    model.learn(write_classes(tmp_path / "first", "cup", "fork"))
    with pytest.raises(FlashbackError, match=r"host\.memory_size is 2, less than one exemplar for each of the 3"):
        model.learn(write_classes(tmp_path / "second", "spoon"))
    assert model.current == 1
    assert not model.folder.update.exists()


# ---------------------------------------------------------------- damaged folders


def overwrite(path: Path) -> None:
    path.write_bytes(b"{" + path.read_bytes()[5:])


def test_a_damaged_model_is_a_sentence_and_an_earlier_version_can_be_used(model: Learner) -> None:
    for file in model.folder.folder(2).rglob("*.safetensors"):
        overwrite(file)
    for action in (model.load, lambda: model.rollback(2)):
        with warnings.catch_warnings(action="error"), pytest.raises(FlashbackError, match="is damaged; choose another"):
            action()
    assert model.rollback().number == model.current == 1
    assert model.load().class_names == ("cup", "fork")


def test_a_damaged_record_is_a_sentence_and_an_earlier_version_can_be_used(model: Learner, tmp_path: Path) -> None:
    overwrite(model.folder.folder(2) / "version.json")
    for action in (model.load, model.rollback, lambda: model.learn(tmp_path / "first")):
        with pytest.raises(
            FlashbackError, match=r"version\.json is missing or damaged; `flashback rollback MODEL VERS"
        ):
            action()
    with pytest.warns(UserWarning, match="version 2 is left out"):
        assert [version.number for version in model.history()] == [1]
    model.rollback(1)
    assert model.learn(write_classes(tmp_path / "third", "pan")).number == 3  # version 2 is not overwritten


@pytest.mark.parametrize("content", ["", "[]", '{"version": "two"}', '{"version": 9}'])
def test_a_damaged_choice_of_version_can_be_made_again(model: Learner, content: str) -> None:
    (model.folder.path / "current.json").write_text(content)
    with pytest.raises(FlashbackError, match=r"current\.json is (missing or )?damaged|has no version 9"):
        model.load()
    assert model.rollback(2).number == model.current == 2


def test_damaged_held_out_images_are_a_sentence(model: Learner, tmp_path: Path) -> None:
    (model.folder.folder(2) / "held-out.safetensors").write_bytes(b"damaged")
    with pytest.raises(FlashbackError, match=r"held-out\.safetensors is missing or damaged; choose another version"):
        model.learn(write_classes(tmp_path / "third", "pan"))
    assert model.rollback().number == 1


def test_damaged_settings_are_a_sentence(model: Learner) -> None:
    (model.folder.path / "model.json").write_text("{}")
    with pytest.raises(FlashbackError, match=r"newer version|model\.json"):
        Learner(model.folder.path)


# ---------------------------------------------------------------- folders that are something else


def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, finished: Callable[[str], Path], model: Learner
) -> None:
    with pytest.raises(FlashbackError, match="holds a run, which is not a model that learns on; give a new folder"):
        new(finished("icarl"))
    other = write_classes(tmp_path / "other", "cup")
    with pytest.raises(FlashbackError, match="holds other files; give a new folder"):
        new(other)
    assert [entry.name for entry in other.iterdir()] == ["cup"]
    (tmp_path / "file").touch()
    with pytest.raises(FlashbackError, match="cannot be the folder of a model"):
        new(tmp_path / "file" / "m")
    (tmp_path / "link").symlink_to(model.folder.path, target_is_directory=True)
    assert Learner(tmp_path / "link").current == 2
    assert fb.load_model(tmp_path / "link", "cpu").class_names == ("cup", "fork", "spoon")


@pytest.mark.parametrize("name", ["versions", "update"])
def test_a_link_in_place_of_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    model, elsewhere = new(tmp_path / "m"), tmp_path / "elsewhere"
    (elsewhere / ".git").mkdir(parents=True)
    (model.folder.path / name).symlink_to(elsewhere, target_is_directory=True)
    for action in (lambda: model.learn(write_classes(tmp_path / "images", "cup")), model.prune):
        with pytest.raises(FlashbackError, match=f"{name} is a symbolic link"):
            action()
    assert [path.name for path in elsewhere.iterdir()] == [".git"]


def test_nothing_is_removed_through_a_link(model: Learner, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    model.folder.folder(1).rename(elsewhere)
    model.folder.folder(1).symlink_to(elsewhere)
    (model.folder.path / "versions" / ".0003").symlink_to(elsewhere)
    before = sorted(elsewhere.rglob("*"))
    with pytest.raises(FlashbackError, match="0001 is a symbolic link"):
        model.prune(keep=0)
    assert sorted(elsewhere.rglob("*")) == before


@pytest.mark.parametrize("removed", ["update.json", "000001.json", None])
def test_an_update_that_was_removed_in_part_is_gone(
    model: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: str | None
) -> None:
    """The version is stored and in use when a process is killed while it removes the folder of the update."""

    def stop(folder: Path) -> None:
        for path in folder.rglob(removed or "nothing"):
            path.unlink()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    images = write_classes(tmp_path / "third", "knife")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", stop)
        with pytest.raises(FlashbackError, match=r"update cannot be removed \(Input/output error\)"):
            model.learn(images)
    assert model.learn(images).number == model.current == 3
    assert model.rollback().number == 2
    assert {path.name for path in model.folder.path.iterdir()} == {".lock", "current.json", "model.json", "versions"}


def test_pruning_that_was_stopped_is_finished(model: Learner, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for name in ("shutil.rmtree", "pathlib.Path.unlink"):  # the checkpoint, and the images that are held out
        with monkeypatch.context() as patch:
            patch.setattr(name, stop)
            with pytest.raises(OSError, match="Input/output error"):
                model.prune(keep=0)
    assert model.prune(keep=0)
    assert [path.name for path in model.folder.folder(1).iterdir()] == ["version.json"]


def test_a_folder_that_cannot_be_written_is_a_sentence(
    model: Learner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("flashback.files.open_to_append", refuse)
    for action in (lambda: model.rollback(1), lambda: model.learn(tmp_path / "first"), model.prune):
        with pytest.raises(FlashbackError, match=r"\.lock cannot be written \(Permission denied\); check"):
            action()
    assert model.predict(tmp_path / "first").rows  # reading needs no lock
    assert len(model.history()) == 2


def test_a_model_of_a_newer_version_is_refused_and_left_alone(model: Learner) -> None:
    path = model.folder.path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99, "more": 1}))
    before = path.read_bytes()
    for action in (lambda: Learner(model.folder.path), lambda: fb.load_model(model.folder.path)):
        with pytest.raises(FlashbackError, match="was made by a newer version of flashback; update this one"):
            action()
    assert path.read_bytes() == before
