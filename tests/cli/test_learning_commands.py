"""The commands for models that go on learning: learn, history, rollback and prune."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flashback.models import Learner

Command = Callable[..., tuple[int, str, str]]

OPTIONS = ("--holdout", 0.3, "--set", "training.epochs=16", "--set", "training.batch_size=8")
COLOURS = np.array([(220, 40, 40), (40, 220, 40), (40, 40, 220), (220, 220, 40), (40, 220, 220), (220, 40, 220)])


def write_photos(folder: str, *classes: int, count: int = 10, shift: int = 0) -> str:
    """Photos of some classes; shifted, they show others than their folders say."""
    generator = np.random.default_rng([*classes, count, shift])
    for c in classes:
        (Path(folder) / f"class {c}").mkdir(parents=True, exist_ok=True)
        colour = COLOURS[(c + shift) % len(COLOURS)]
        for number in range(count):
            pixels = (colour + generator.integers(-40, 40, (12, 12, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(f"{folder}/class {c}/{number}.png")
    return folder


@pytest.fixture
def model(flashback: Command) -> str:
    """A model with one version of three classes."""
    code, _, error = flashback("learn", "model", write_photos("first", 0, 1, 2), *OPTIONS)
    assert code == 0, error
    return "model"


def test_the_first_call_says_what_it_chose_and_later_ones_need_only_images(flashback: Command) -> None:
    code, out, error = flashback("learn", "model", write_photos("first", 0, 1), *OPTIONS)
    assert code == 0
    assert error.startswith("new model: method replay, network smallcnn, a memory of 2000 images, 16 epochs per update")
    expected = (
        r"Version 1: learned 14 images of 2 classes in \d+ s; all images are resized to 12x12; new classes \d+\.\d %\."
    )
    assert re.search(expected, out)
    code, out, error = flashback("learn", "model", write_photos("second", 1, 2))
    assert (code, error) == (0, "")
    assert re.search(r"class 1 +again +3 ", out)
    assert re.search(r"class 2 +new +3 ", out)
    assert re.search(r"known classes \d+\.\d % \(before \d+\.\d %\)", out)
    code, out, _ = flashback("learn", "model", "second")
    assert (code, out) == (0, "These images are learned already, in version 2, which is in use.\n")


def test_a_method_without_training_has_no_epochs(flashback: Command) -> None:
    error = flashback("learn", "model", write_photos("first", 0, 1), "--host", "simplecil")[2]
    assert error.startswith("new model: method simplecil, network smallcnn, 10 % of the images held out; ")


def test_a_model_that_has_learned_nothing_has_no_table(flashback: Command) -> None:
    Learner.create("model")
    assert flashback("history", "model")[:2] == (0, "The model has learned nothing yet.\n")


def test_of_many_classes_the_worst_are_shown(flashback: Command) -> None:
    x, y = np.random.default_rng(0).integers(0, 256, (93, 8, 8), dtype=np.uint8), np.arange(93) % 31
    np.savez("many.npz", x=x, y=y)
    np.savez("one.npz", x=x[y == 0], y=np.zeros(3, np.int64), class_names=["one more"])
    options = ("--holdout", 0.3, "--set", "training.epochs=1")
    _, out, _ = flashback("learn", "model", "many.npz", *options)
    assert out.startswith("Of 31 classes, those 30 least often right:\n")
    assert "learned 62 images of 31 classes" in out
    _, out, _ = flashback("learn", "model", "one.npz")
    assert out.startswith("Of 32 classes, those 30 that lost most:\n")
    assert "learned 2 images of 1 class in" in out
    np.savez("single.npz", x=x[:1], y=np.zeros(1, np.int64), class_names=["another one"])
    assert "learned 1 image of 1 class in" in flashback("learn", "model", "single.npz")[1]
    _, out, _ = flashback("learn", "unjudged", "many.npz", "--holdout", 0, *options[2:])
    assert out.startswith("No class is judged.\n")


def test_a_refused_update_has_an_exit_code_and_changes_nothing(flashback: Command, model: str) -> None:
    bad = write_photos("bad", 0, 1, 2, count=40, shift=1)
    code, _, error = flashback("learn", model, bad, "--max-drop", 2)
    assert code == 3
    assert "points of mean accuracy, more than 2; version 2 is kept, and version 1 is in use" in error
    code, out, _ = flashback("history", model, "--plot", "pictures/history.png")
    assert code == 0
    assert re.search(r" 1 +accepted, in use ", out)
    assert re.search(r" 2 +refused ", out)
    assert out.endswith("Version 1 is in use.\n")
    assert Image.open("pictures/history.png").width > 100
    assert flashback("rollback", model, 2)[:2] == (0, "Version 2 is in use.\n")
    assert flashback("rollback", model)[:2] == (0, "Version 1 is in use.\n")


def test_the_history_fits_a_terminal_of_80_columns(
    flashback: Command, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flashback("learn", model, write_photos("second", 3))
    flashback("prune", model, "--keep", 0)
    monkeypatch.setenv("COLUMNS", "80")
    lines = flashback("history", model)[1].splitlines()
    first = next(line for line in lines if line.startswith("1 "))  # folded words would begin another line
    assert re.fullmatch(r"1 +accepted, removed \d{4}-\d\d-\d\d \d\d:\d\d +21 +3 +0 +\d+\.\d *", first)
    assert max(map(len, lines)) <= 80


def test_pruned_versions_stay_in_the_history(flashback: Command, model: str) -> None:
    flashback("learn", model, write_photos("second", 3))
    code, out, _ = flashback("prune", model, "--keep", 0)
    assert code == 0
    assert re.fullmatch(r"Freed \d+\.\d MB\.\n", out)
    code, out, _ = flashback("history", model)
    assert re.search(r" 1 +accepted, removed ", out)
    assert re.search(r" 2 +accepted, in use ", out)
    code, _, error = flashback("rollback", model)
    assert code == 2
    assert "the model of version 1 was removed by `flashback prune`" in error


def test_options_of_an_existing_model_must_be_those_it_was_made_with(flashback: Command, model: str) -> None:
    flashback("learn", model, write_photos("second", 3), *OPTIONS)
    assert Learner(model).current == 2
    for options, named in (
        (("--seed", 3), "--seed"),
        (("--host", "er", "--memory", 5), "--host, --memory"),
        (("--flashback",), "--flashback"),
        (("--set", "training.epochs=3"), "--set training.epochs"),
    ):
        code, _, error = flashback("learn", model, "first", *options)
        assert code == 2
        assert f"is made already, with another value of {named}; leave out the option" in error


def test_a_first_call_that_fails_leaves_nothing_behind(flashback: Command, workplace: Path) -> None:
    for images in ("absent", "."):
        assert flashback("learn", "model", images, "--memory", 9)[0] == 2
        assert not (workplace / "model").exists()
    assert flashback("learn", "model", write_photos("first", 0, 1), *OPTIONS)[0] == 0


def test_the_model_is_used_by_the_other_commands(flashback: Command, model: str) -> None:
    code, out, _ = flashback("predict", model, "first", "--top", 1, "--format", "csv")
    assert code == 0
    assert out.startswith("path,rank,class,probability\nfirst/class 0/0.png,1,class ")
    code, out, _ = flashback("evaluate", model, "first")
    assert (code, "of 30 images are right" in out) == (0, True)
    code, out, _ = flashback("export", model, "model.pt2")
    assert (code, out.startswith("model.pt2: 3 classes, images of 12x12")) == (0, True)


def test_folders_that_hold_no_model_are_refused(flashback: Command, bare: list[str]) -> None:
    write_photos("first", 0, 1)
    assert flashback("run", "finetune", *bare, "--out", "run")[0] == 0
    for command in (["history"], ["rollback"], ["prune"]):
        for folder in ("run", "first", "absent"):
            code, _, error = flashback(*command, folder)
            assert (code, f"{folder} holds no model; `flashback learn` makes one" in error) == (2, True)
    assert "run holds a run, which is not a model that learns on" in flashback("learn", "run", "first")[2]
    assert "first holds other files; give a new folder" in flashback("learn", "first", "first")[2]


def test_broken_images_and_names_with_control_characters(flashback: Command) -> None:
    write_photos("first", 0, 1)
    (Path("first") / "class 0" / "broken\x1b[31m.png").write_text("no image")
    (Path("first") / "class 1").rename("first/red\x1b[31m")
    code, out, error = flashback("learn", "model\x1b[31m", "first", *OPTIONS)
    assert code == 0
    assert "skipped: cannot read first/class 0/broken\\x1b[31m.png" in error
    assert "skipped in all, as they cannot be read: 1" in error
    _, history, _ = flashback("history", "model\x1b[31m")
    assert "\x1b" not in out + error + history
    assert "red\\x1b[31m" in out
