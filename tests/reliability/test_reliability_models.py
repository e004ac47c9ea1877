"""A model that goes on learning answers with its own weights, classes and images, or refuses with a sentence."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch

import flashback as fb
from flashback.errors import FlashbackError, printable
from flashback.models.learner import Learner

QUICK: dict[str, Any] = {"training.epochs": 1, "training.batch_size": 8}
OTHER_MODEL = "version 2 in .* belongs to another model or to other settings; restore its folder and model.json"


def images(*names: str, seed: int = 0, count: int = 6) -> dict[str, Any]:
    generator = np.random.default_rng(seed)
    return {name: generator.integers(0, 256, (count, 12, 12, 3), dtype=np.uint8) for name in names}


def made(folder: Path, seed: int = 0) -> Path:
    """A model of two versions; seeds have images of their own."""
    model = Learner.create(folder, host="er", seed=seed, settings=QUICK, device="cpu")
    model.learn(images("cup", "fork", seed=seed))
    model.learn(images("spoon", seed=10 + seed))
    return folder


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models that differ in their seed and their images."""
    place = tmp_path_factory.mktemp("models")
    return made(place / "a"), made(place / "b", seed=1)


@pytest.fixture
def pair(originals: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    first, second = (Path(shutil.copytree(folder, tmp_path / folder.name)) for folder in originals)
    return first, second


def assert_refused(folder: Path, words: str, *more: Callable[[Learner], Any]) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for action in (lambda model: model.rollback(2), *more):
        with pytest.raises(FlashbackError, match=words):
            action(Learner(folder, "cpu"))
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def load(model: Learner) -> Any:
    return model.load()


def learn(model: Learner) -> Any:
    return model.learn(images("pan", seed=20))


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


# ---------------------------------------------------------------- swapped between two models


def test_a_version_of_another_model_is_refused(pair: tuple[Path, Path]) -> None:
    first, second = pair
    shutil.rmtree(first / "versions" / "0002")
    shutil.copytree(second / "versions" / "0002", first / "versions" / "0002")
    assert_refused(first, OTHER_MODEL, load, learn)
    with pytest.warns(UserWarning, match="version 2 is left out"):
        assert [version.number for version in Learner(first).history()] == [1]
    assert Learner(first, "cpu").rollback(1).number == 1


def test_another_version_of_the_same_model_is_refused(pair: tuple[Path, Path]) -> None:
    first, _ = pair
    shutil.rmtree(first / "versions" / "0002")
    shutil.copytree(first / "versions" / "0001", first / "versions" / "0002")
    assert_refused(first, OTHER_MODEL, load, learn)


def test_the_checkpoint_of_another_model_is_refused(pair: tuple[Path, Path]) -> None:
    first, second = (folder / "versions" / "0002" / "checkpoint" for folder in pair)
    shutil.rmtree(first)
    shutil.copytree(second, first)
    assert_refused(pair[0], "belongs to a run with another seed, host, setting or dataset", load, learn)


def test_held_out_images_of_another_model_are_refused(pair: tuple[Path, Path]) -> None:
    first, second = (folder / "versions" / "0002" / "held-out.safetensors" for folder in pair)
    shutil.copy(second, first)
    assert_refused(pair[0], r"held-out\.safetensors is missing or damaged; choose another version", learn)


def test_held_out_images_that_were_altered_are_refused(pair: tuple[Path, Path]) -> None:
    path = pair[0] / "versions" / "0002" / "held-out.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    tensors["labels"] = tensors["labels"].flip(0)
    path.write_bytes(safetensors.torch.save(tensors))
    assert_refused(pair[0], r"held-out\.safetensors is missing or damaged; choose another version", learn)


# ---------------------------------------------------------------- edited


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values["config"]["host"].update(name="agem"),
        lambda values: values["config"].update(seed=5),
        lambda values: values["config"]["training"].update(lr=0.5),
        lambda values: values.update(holdout=0.5),
    ],
)
def test_settings_that_were_edited_are_refused(
    pair: tuple[Path, Path], change: Callable[[dict[str, Any]], Any]
) -> None:
    edit(pair[0] / "model.json", change)
    assert_refused(pair[0], OTHER_MODEL, load, learn)


def test_when_it_is_saved_may_change(pair: tuple[Path, Path]) -> None:
    edit(pair[0] / "model.json", lambda values: values["config"]["checkpoint"].update(minutes=7.0))
    assert Learner(pair[0], "cpu").load().class_names == ("cup", "fork", "spoon")


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(classes=["fork", "cup", "spoon"]),
        lambda values: values["after"].update(cup=12.25),
        lambda values: values.update(mean=[0.1, 0.2, 0.3]),
        lambda values: values.update(number=1),
        lambda values: values.pop("parent"),
    ],
)
def test_a_record_that_was_edited_is_refused(pair: tuple[Path, Path], change: Callable[[dict[str, Any]], Any]) -> None:
    edit(pair[0] / "versions" / "0002" / "version.json", change)
    assert_refused(pair[0], r"version\.json is missing or damaged; `flashback rollback MODEL VERS", load, learn)


@pytest.mark.parametrize("content", ["", "\xff", "null", "[" * 100_000, '{"a":' * 100_000, "9" * 5000])
@pytest.mark.parametrize("name", ["model.json", "current.json", "versions/0002/version.json", "update/update.json"])
def test_garbage_is_a_sentence(pair: tuple[Path, Path], name: str, content: str) -> None:
    (pair[0] / name).parent.mkdir(exist_ok=True)
    (pair[0] / name).write_text(content, encoding="latin-1")
    with pytest.raises(
        FlashbackError, match=rf"{name} is missing or damaged; (`flashback rollback|restore it|remove its folder)"
    ):
        learn(Learner(pair[0], "cpu"))


@pytest.mark.parametrize("content", ["{}", '{"number": 2}', '{"number": []}', '{"classes": "abc"}'])
def test_a_record_without_what_it_needs_is_a_sentence(pair: tuple[Path, Path], content: str) -> None:
    (pair[0] / "versions" / "0002" / "version.json").write_text(content)
    assert_refused(pair[0], "^version 2: ", load, learn)
    assert Learner(pair[0], "cpu").rollback(1).number == 1


@pytest.mark.parametrize(
    "change",
    [
        {"image_shape": [3, 12, -1]},
        {"image_shape": [3, 0, 12]},
        {"image_shape": [2**62, 2, 2]},
        {"image_shape": []},
        {"mean": [], "std": []},
        {"std": [0.0, 1.0, 1.0]},
        {"classes": ["cup", "fork"]},
        {"classes": ["cup", "cup", "spoon"]},
        {"tasks": [{"new": 4, "revisited": []}, {"new": -1, "revisited": []}]},
        {"tasks": [{"new": 2, "revisited": []}, {"new": 1, "revisited": [9]}]},
        {"after": {"knife": 50.0}},
    ],
    ids=str,
)
def test_a_record_that_contradicts_itself_is_refused(pair: tuple[Path, Path], change: dict[str, Any]) -> None:
    """Its forger has removed the checksum."""
    edit(pair[0] / "versions" / "0002" / "version.json", lambda values: (values.pop("checksum"), values.update(change)))
    assert_refused(pair[0], r"version\.json is missing or damaged; `flashback rollback MODEL VERS", load, learn)


def test_a_model_whose_choice_of_version_is_gone_does_not_begin_anew(pair: tuple[Path, Path]) -> None:
    """It would learn the next images as its first, and pruning would remove the model in use."""
    (pair[0] / "current.json").unlink()
    for action in (load, learn, lambda model: model.prune(0)):
        with pytest.raises(FlashbackError, match=r"current\.json is missing or damaged; `flashback rollback MODEL VER"):
            action(Learner(pair[0], "cpu"))
    assert Learner(pair[0], "cpu").rollback(2).number == 2


def test_class_names_of_a_stranger_cannot_command_the_terminal(pair: tuple[Path, Path]) -> None:
    hostile = "a\x1b]0;TITLE\x07b\x1b[2J\u202ec"

    def forge(values: dict[str, Any]) -> None:
        del values["checksum"]
        values["classes"][0] = hostile
        values.update(before={}, after={}, judged={}, cuts=dict.fromkeys(values["classes"], 0.1))

    edit(pair[0] / "versions" / "0002" / "version.json", forge)
    model = fb.load_model(pair[0], "cpu")
    assert model.class_names[0] == printable(hostile)
    predictions = fb.predict_files(model, images("cup"))
    evaluation = fb.evaluate_files(model, images("fork"))
    for text in (predictions.as_csv(), predictions.as_jsonl(), evaluation.as_csv(), evaluation.as_json()):
        assert not {*text} & {*"\x1b\x07\u202e"}


# ---------------------------------------------------------------- other files, and limits that are none


def test_other_hidden_files_among_the_versions_stay(pair: tuple[Path, Path]) -> None:
    """As a file manager leaves them; only what a killed process left is removed."""
    versions = pair[0] / "versions"
    (versions / ".DS_Store").write_text("mine")
    (versions / ".git").mkdir()
    (versions / ".0003").mkdir()
    assert Learner(pair[0], "cpu").prune() == 0
    assert {path.name for path in versions.iterdir()} == {"0001", "0002", ".DS_Store", ".git"}


@pytest.mark.parametrize("name", ["versions/.0003", ".update"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.touch, lambda path: path.symlink_to(path.parent)])
def test_a_pipe_in_place_of_what_a_kill_leaves_does_not_hang(
    pair: tuple[Path, Path], alarm: None, name: str, make: Callable[[Path], None]
) -> None:
    make(pair[0] / name)
    assert Learner(pair[0], "cpu").prune() == 0
    assert not os.path.lexists(pair[0] / name)


@pytest.mark.parametrize("name", ["max_drop", "max_class_drop"])
@pytest.mark.parametrize("limit", [math.nan, math.inf, -1.0])
def test_a_limit_that_makes_no_sense_is_refused(pair: tuple[Path, Path], name: str, limit: float) -> None:
    option = f"--{name.replace('_', '-')}"
    with pytest.raises(FlashbackError, match=rf"^{name} \({option}\) is a number of points, 0 or more, not "):
        Learner(pair[0], "cpu").learn(images("pan"), **{name: limit})
    assert Learner(pair[0], "cpu").current == 2
