"""Predictions for image files are those of the host for the same images."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import flashback as fb
from flashback.benchmarks.image_lists import list_images, read_batches
from flashback.models import model as module
from helpers import quick_host, tiny_benchmark


def test_predictions_for_the_files_of_a_benchmark_are_those_of_the_host(model: fb.Model, pictures: Path) -> None:
    predictions = fb.predict_files(model, pictures / "test", top=1)
    best = {row.path: row.class_name for row in predictions}
    host, names = model.host, model.class_names
    for task in host.benchmark.tasks:
        for name in names[task.new]:
            images = task.test.x[task.test.y == names.index(name)]
            expected = [names[column] for column in host.predict(images)]
            assert [best[str(pictures / "test" / name / f"{k}.png")] for k in range(5)] == expected
    assert len(set(best.values())) > 1


def test_probabilities_are_the_softmax_of_the_own_classifiers_scores(model: fb.Model, pictures: Path) -> None:
    predictions = fb.predict_files(model, pictures / "test" / "cup" / "0.png", top=9)
    assert [row.rank for row in predictions] == [1, 2, 3, 4, 5]
    assert sum(row.probability for row in predictions) == pytest.approx(1)
    host = model.host
    column = model.class_names.index("cup")
    task = host.benchmark.tasks[1 if column >= 2 else 0]
    raw = task.test.x[task.test.y == column][:1]
    with torch.no_grad():
        scores = next(iter(host.classifiers().values()))(host.views.plain(raw)).softmax(1)[0]
    expected = dict(zip(model.class_names, scores.tolist(), strict=True))
    assert {row.class_name: row.probability for row in predictions} == pytest.approx(expected)


def test_classes_are_ranked_by_scores_also_where_probabilities_are_0() -> None:
    host = quick_host("finetune", tiny_benchmark((5,), per_class=1)).eval()
    with torch.no_grad():
        host.net.head.weight.zero_()  # type: ignore[union-attr, operator]
        host.net.head.bias.copy_(torch.tensor([-400.0, 0, -300, -200, -300]))  # type: ignore[union-attr, operator]
    predictions = fb.predict_files(fb.Model.of(host), {"any": np.zeros((1, 12, 12), np.uint8)}, top=5)
    assert [row.class_name for row in predictions] == ["1", "3", "2", "4", "0"]
    assert [row.probability for row in predictions] == [1, 0, 0, 0, 0]


def test_images_of_any_size_and_kind_are_predicted(model: fb.Model, pictures: Path, tmp_path: Path) -> None:
    original = Image.open(pictures / "test" / "bolt" / "0.png")
    original.resize((36, 36), Image.Resampling.NEAREST).save(tmp_path / "large.png")
    original.convert("RGBA").save(tmp_path / "transparent.png")
    original.convert("CMYK").save(tmp_path / "cmyk.tif")
    original.convert("L").save(tmp_path / "grey.png")
    original.quantize(255).save(tmp_path / "palette.gif")
    (tmp_path / "broken.png").write_text("no image")
    predictions = fb.predict_files(model, tmp_path, top=1)
    assert [Path(row.path).name for row in predictions] == [
        "cmyk.tif", "grey.png", "large.png", "palette.gif", "transparent.png",
    ]  # fmt: skip
    assert list(predictions.skipped) == [str(tmp_path / "broken.png")]
    expected = fb.predict_files(model, pictures / "test" / "bolt" / "0.png", top=1).rows[0]
    same = {Path(row.path).name: row for row in predictions}["transparent.png"]
    assert (same.class_name, same.probability) == (expected.class_name, pytest.approx(expected.probability))


def test_rows_are_written_as_csv_and_jsonl(model: fb.Model, pictures: Path) -> None:
    predictions = fb.predict_files(model, pictures / "test" / "Égg", top=2)
    from_csv = list(csv.DictReader(io.StringIO(predictions.as_csv())))
    from_json = [json.loads(line) for line in predictions.as_jsonl().splitlines()]
    assert len(from_csv) == len(from_json) == 10
    for one, other, row in zip(from_csv, from_json, predictions, strict=True):
        assert list(one) == list(other) == ["path", "rank", "class", "probability"]
        assert (one["path"], int(one["rank"]), one["class"]) == (row.path, row.rank, row.class_name)
        assert float(one["probability"]) == other["probability"] == pytest.approx(row.probability, abs=1e-6)


def test_nothing_readable_is_an_error(model: fb.Model, tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg"):
        (tmp_path / name).write_text("no image")
    with pytest.raises(fb.FlashbackError, match=r"^none of the 2 images can be read: cannot read .*a\.png"):
        fb.predict_files(model, tmp_path)


@pytest.mark.parametrize("top", [0, -1, 1.5, "3"])
def test_top_is_a_number_of_classes(model: fb.Model, pictures: Path, top: Any) -> None:
    with pytest.raises(fb.FlashbackError, match="top is the number of classes to name, at least 1"):
        fb.predict_files(model, pictures, top=top)


def test_a_model_is_loaded_from_the_folder_of_its_run(finished: Callable[[str], Path], pictures: Path) -> None:
    folder = finished("icarl")
    loaded = fb.load_model(folder, "cpu")
    assert loaded.class_names == loaded.host.benchmark.class_names
    assert set(loaded.class_names) == {path.name for path in (pictures / "test").iterdir()}
    assert loaded.image_shape == (3, 12, 12)
    image = pictures / "test" / "cup" / "1.png"
    assert fb.predict_files(folder, image).rows == fb.predict_files(loaded, image).rows


def test_a_folder_without_a_model_is_one_sentence(tmp_path: Path, finished: Callable[[str], Path]) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(fb.FlashbackError, match=r"holds no model; give that of `flashback learn` or"):
            fb.load_model(folder)
    shutil.copytree(finished("icarl"), tmp_path / "unfinished")
    (tmp_path / "unfinished" / "results.json").unlink()
    shutil.rmtree(tmp_path / "unfinished" / "checkpoint")
    with pytest.raises(fb.FlashbackError, match="is not finished; `flashback resume"):
        fb.load_model(tmp_path / "unfinished")


def test_class_means_are_computed_once(model: fb.Model, pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[int]()
    classifiers = type(model.host).classifiers
    monkeypatch.setattr(type(model.host), "classifiers", lambda host: calls.append(1) or classifiers(host))
    monkeypatch.setattr(module, "read_batches", lambda images, shape, _, *rest: read_batches(images, shape, 2, *rest))
    assert len(list(model.classify(list_images(pictures / "test"), {}))) == 13
    assert len(calls) == 1
