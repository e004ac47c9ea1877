"""Accuracy and confusion of a model on labelled files."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import flashback as fb
from flashback.models import FileEvaluation
from helpers import quick_host, tiny_benchmark


@pytest.fixture
def evaluation(model: fb.Model, pictures: Path) -> FileEvaluation:
    return fb.evaluate_files(model, pictures)


def test_the_accuracy_is_that_of_the_run(evaluation: FileEvaluation, model: fb.Model) -> None:
    host = model.host
    rows = fb.evaluate(host, host.benchmark)["nearest-mean"]["class_incremental"]
    right = sum(rate * len(task.test) / 100 for rate, task in zip(rows, host.benchmark.tasks, strict=True))
    assert evaluation.images == 25
    assert evaluation.accuracy == pytest.approx(100 * right / 25)
    for task in host.benchmark.tasks:
        predicted = host.predict(task.test)
        for true, column in zip(task.test.y.tolist(), predicted.tolist(), strict=True):
            assert evaluation.confusion[true][column] >= 1
    assert [sum(row) for row in evaluation.confusion] == [5] * 5


def test_a_csv_and_an_npz_say_the_same_as_the_folder(
    evaluation: FileEvaluation, model: fb.Model, pictures: Path, tmp_path: Path
) -> None:
    files = sorted((pictures / "test").glob("*/*.png"))
    lines = [f"{file},{file.parent.name}" for file in files]
    (tmp_path / "list.csv").write_text("path,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    assert fb.evaluate_files(model, tmp_path / "list.csv") == evaluation
    names = sorted(model.class_names)
    pixels = np.stack([np.asarray(Image.open(file)) for file in files])
    labels = np.array([names.index(file.parent.name) for file in files])
    np.savez(tmp_path / "named.npz", x=pixels, y=labels, class_names=np.array(names))
    np.savez(tmp_path / "numbered.npz", x_test=pixels, y_test=labels)  # labels of the benchmark, sorted by name
    for file in ("named.npz", "numbered.npz"):
        assert fb.evaluate_files(model, tmp_path / file) == evaluation


TO_ELEVEN = sorted(map(str, range(12)))  # as folders are sorted: 0, 1, 10, 11, 2, ...


@pytest.mark.parametrize(
    ("names", "classes"),
    [
        (TO_ELEVEN, {"2": 4, "11": 1}),
        ([name.zfill(2) for name in TO_ELEVEN], {"02": 4, "11": 1}),
        ([*TO_ELEVEN[:-1], "table"], {"10": 4, "table": 1}),
    ],
    ids=["numbers", "padded", "not all numbers"],
)
def test_labels_are_names_where_all_classes_are_numbers_and_else_positions(
    names: Sequence[str], classes: dict[str, int], tmp_path: Path
) -> None:
    benchmark = replace(tiny_benchmark((12,), per_class=1), class_names=tuple(sorted(names)))
    model = fb.Model.of(quick_host("finetune", benchmark).eval())
    x = np.zeros((6, 12, 12), np.uint8)
    np.savez(tmp_path / "numbered.npz", x=x, y=np.array([2, 2, 2, 2, 11, 12]))
    evaluation = fb.evaluate_files(model, tmp_path / "numbered.npz")
    assert {row["class"]: row["images"] for row in evaluation.rows() if row["images"]} == classes
    assert evaluation.unknown == {"12": 1}


def test_predictions_whose_probabilities_are_equal_are_those_of_the_host() -> None:
    host = quick_host("finetune", tiny_benchmark((3,), per_class=1)).eval()
    with torch.no_grad():
        host.net.head.weight.zero_()  # type: ignore[union-attr, operator]
        host.net.head.bias.copy_(torch.tensor([0.0, 1e-9, 0.0]))  # type: ignore[union-attr, operator]
    images = host.benchmark.tasks[0].test.x[:1]
    assert host.predict(images).tolist() == [1]
    arrays = {"1": images.permute(0, 2, 3, 1).numpy()}
    assert fb.evaluate_files(fb.Model.of(host), arrays).accuracy == 100


def test_classes_that_were_not_learned_are_left_out_and_counted(
    model: fb.Model, pictures: Path, tmp_path: Path
) -> None:
    shutil.copytree(pictures / "test" / "cup", tmp_path / "cup")
    shutil.copytree(pictures / "test" / "bolt", tmp_path / "wrench")
    (tmp_path / "cup" / "broken.png").write_text("no image")
    evaluation = fb.evaluate_files(model, tmp_path)
    assert evaluation.unknown == {"wrench": 5}
    assert evaluation.images == 5
    assert list(evaluation.skipped) == [str(tmp_path / "cup" / "broken.png")]
    assert [name for name, accuracy in evaluation.class_accuracies.items() if accuracy is not None] == ["cup"]
    shutil.rmtree(tmp_path / "cup")
    with pytest.raises(fb.FlashbackError, match=r"unknown class 'wrench'; known: .*cup"):
        fb.evaluate_files(model, tmp_path)


def test_a_class_that_differs_from_a_known_one_only_in_case_is_refused(
    model: fb.Model, pictures: Path, tmp_path: Path
) -> None:
    shutil.copytree(pictures / "test" / "cup", tmp_path / "Cup")
    with pytest.raises(fb.FlashbackError, match="the classes 'cup' and 'Cup' differ only in case"):
        fb.evaluate_files(model, tmp_path)


def test_results_are_sorted_counted_and_written() -> None:
    evaluation = FileEvaluation(("a", "b", "c"), [[3, 1, 0], [2, 2, 0], [0, 0, 0]], {}, {})
    assert (evaluation.images, evaluation.accuracy) == (8, 62.5)
    assert evaluation.class_accuracies == {"a": 75.0, "b": 50.0, "c": None}
    assert evaluation.most_confused(5) == [("b", "a", 2), ("a", "b", 1)]
    assert evaluation.most_confused(1) == [("b", "a", 2)]
    rows = list(csv.DictReader(io.StringIO(evaluation.as_csv())))
    assert rows[0] == {"class": "a", "images": "4", "correct": "3", "accuracy": "75.0"}
    assert rows[2]["accuracy"] == ""
    values = json.loads(evaluation.as_json())
    assert values["confusion"] == evaluation.confusion
    assert values["accuracy"] == 62.5
