"""The commands that use a trained model."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flashback.cli import models
from flashback.models import FileEvaluation

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(flashback: Command, bare: list[str], workplace: Path) -> Path:
    """A finished run, and the folder images/ with one folder per class, of which one image is broken."""
    code, _, error = flashback("run", "finetune", *bare, "--set", "training.epochs=1", "--out", "model")
    assert code == 0, error
    with np.load("tiny.npz") as arrays:
        for number, (pixels, label) in enumerate(zip(arrays["x_test"], arrays["y_test"], strict=True)):
            (workplace / "images" / str(label)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(workplace / "images" / str(label) / f"{number:02}.png")
    (workplace / "images" / "3" / "broken.png").write_text("no image")
    return workplace / "model"


def test_predict_evaluate_and_export(flashback: Command, run: Path, workplace: Path) -> None:
    code, out, error = flashback("predict", run, "images", "--top", 2)
    assert code == 0
    assert "images/0/00.png" in out
    assert "skipped: cannot read images/3/broken.png" in error
    assert "skipped in all, as they cannot be read: 1" in error

    code, out, error = flashback("predict", run, "images", "--out", "answers/predictions.csv")
    assert (code, out) == (0, "")
    rows = list(csv.DictReader((workplace / "answers" / "predictions.csv").open(encoding="utf-8")))
    assert len(rows) == 30 * 3
    assert list(rows[0]) == ["path", "rank", "class", "probability"]

    code, out, _ = flashback("predict", run, "images/0/00.png", "--format", "jsonl", "--top", 1)
    (line,) = out.splitlines()
    assert json.loads(line)["path"] == "images/0/00.png"

    code, out, error = flashback("evaluate", run, "images", "--plot", "confusion.png")
    assert code == 0
    assert "% of 30 images are right." in out
    assert "skipped: cannot read images/3/broken.png" in error
    assert Image.open("confusion.png").width > 100

    code, out, _ = flashback("evaluate", run, "tiny.npz", "--out", "evaluation.json")
    assert json.loads(Path("evaluation.json").read_text())["images"] == 30

    code, out, error = flashback("export", run, "model.pt2")
    assert (code, error) == (0, "")
    assert out.startswith("model.pt2: 6 classes, images of 12x12, ")


BAD_INPUT = [
    (["predict", "absent", "images"], "absent holds no model; give that of `flashback learn` or a finished run"),
    (["predict", "model", "absent"], "there is no file or folder absent"),
    (["predict", "model", "broken"], "none of the 1 images can be read"),
    (["predict", "model", "images", "--format", "json"], "unknown format 'json'; did you mean 'jsonl'?"),
    (["predict", "model", "images", "--out", "a.txt"], "a.txt cannot hold a table; use --format csv or jsonl"),
    (["predict", "model", "images", "--top", "0"], "top is the number of classes to name"),
    (["evaluate", "model", "images", "--plot", "a.txt"], "a.txt is not a picture; use .png, .pdf, .svg"),
    (["export", "model", "model.h5"], "names no format to export to; use .onnx or .pt2"),
]


def test_bad_input_is_one_sentence(flashback: Command, run: Path, workplace: Path) -> None:
    (workplace / "broken").mkdir()
    (workplace / "broken" / "a.png").write_text("no image")
    for arguments, sentence in BAD_INPUT:
        code, out, error = flashback(*arguments)
        assert (code, out) == (2, ""), arguments
        assert sentence in error


def test_many_classes_are_shown_as_the_pairs_confused_most(capsys: pytest.CaptureFixture[str]) -> None:
    confusion = np.diag([9] * 30)
    confusion[7, 3], confusion[4, 29] = 5, 8
    names = tuple(f"class {number}" for number in range(30))
    models.show_classes(FileEvaluation(names, confusion.tolist(), {}, {}))
    output = capsys.readouterr().out
    pairs = output[output.index("confused most often") :].split("\n")
    assert [line.split() for line in pairs if "class " in line][1:] == [
        ["class", "4", "class", "29", "8"],
        ["class", "7", "class", "3", "5"],
    ]
    models.show_classes(FileEvaluation(names[:20], confusion[:20, :20].tolist(), {}, {}))
    matrix = capsys.readouterr().out
    assert "Numbered columns" in matrix
    assert all(len(line) <= 120 for line in matrix.splitlines())


@pytest.mark.parametrize(("classes", "is_matrix"), [(14, True), (16, False), (20, False)])
def test_a_matrix_that_a_terminal_has_no_room_for_is_shown_as_pairs(
    classes: int, is_matrix: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    confusion = np.diag([90] * classes)
    confusion[1, 3] = 12
    names = tuple(f"product number {number}" for number in range(classes))
    models.show_classes(FileEvaluation(names, confusion.tolist(), {}, {}))
    lines = capsys.readouterr().out.splitlines()
    assert ("confused most often" not in "".join(lines)) == is_matrix
    assert len(lines) <= 2 * classes + 15  # names are not folded to a letter a line
    assert all(len(line) <= 80 for line in lines)
