"""The confusion matrix and per-class accuracy after the last task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flashback as fb
from flashback.training import Interrupted
from flashback.training.result import distinct_names
from helpers import quick_host, small_settings, tiny_benchmark, write_tiny


def slow_confusion(host: fb.Host, classifier: str) -> list[list[int]]:
    """One image at a time."""
    classes = host.benchmark.classes
    counts = [[0] * classes for _ in range(classes)]
    for task in host.benchmark.tasks:
        for image, label in zip(task.test.x, task.test.y, strict=True):
            counts[int(label)][int(host.predict(image[None], classifier))] += 1
    return counts


@pytest.mark.parametrize("name", ["icarl", "foster"])
def test_every_classifier_is_counted_as_image_by_image(name: str) -> None:
    host = quick_host(name, training__evaluation_batch=5, **small_settings(name))
    result = fb.train(host)
    for classifier, values in result.classifiers.items():
        assert values["confusion"] == slow_confusion(host, classifier)


def test_class_accuracies_are_the_diagonal_and_average_to_the_accuracy_of_tasks() -> None:
    host = quick_host("icarl", tiny_benchmark((2, 3, 2), test_per_class=6), **small_settings("icarl"))
    result = fb.train(host)
    accuracies = result.class_accuracies
    assert list(accuracies) == list(host.benchmark.class_names)
    assert list(accuracies.values()) == [100 * row[k] / 6 for k, row in enumerate(result.confusion)]
    for task, accuracy in zip(host.benchmark.tasks, result["class_incremental"]["matrix"][-1], strict=True):
        mean = sum(list(accuracies.values())[task.new]) / len(task.classes)
        assert accuracy == pytest.approx(mean)


def test_names_that_several_classes_share_stay_apart() -> None:
    assert distinct_names(["crane", "fox", "crane", "unseen"], 3) == ["crane (column 0)", "fox", "crane (column 2)"]


@pytest.mark.parametrize("at", [("stage", 1), ("evaluation", 2)])
def test_a_resumed_run_counts_the_same(tmp_path: Path, at: tuple[str, int]) -> None:
    write_tiny(tmp_path / "tiny.npz")
    settings = {"benchmark.sizes": [2, 3, 2], "training.epochs": 1, "checkpoint.minutes": 0.0}
    config = fb.configure("finetune", tmp_path / "tiny.npz", settings=settings)
    whole = fb.run(config, device="cpu")

    def stop(event: Any) -> None:
        if (event["event"], event["task"]) == at:
            raise Interrupted

    with pytest.raises(Interrupted):
        fb.run(config, out=tmp_path / "run", device="cpu", observers=[stop])
    fb.resume(tmp_path / "run", device="cpu")
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written == whole.as_dict()
    assert written["classifiers"]["linear"]["confusion"] == whole.confusion
    again = fb.run(config, out=tmp_path / "run", device="cpu")  # read from the record
    assert (again.confusion, again.class_accuracies) == (whole.confusion, whole.class_accuracies)


def test_a_record_without_counts_is_still_read(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny.npz")
    config = fb.configure("finetune", tmp_path / "tiny.npz", settings={"benchmark.sizes": [7], "training.epochs": 1})
    first = fb.run(config, out=tmp_path / "run", device="cpu")
    path = tmp_path / "run" / "results.json"
    older = json.loads(path.read_text())
    del older["classifiers"]["linear"]["confusion"]
    path.write_text(json.dumps(older))
    run = tmp_path / "run" / "run.json"
    run.write_text(
        json.dumps({k: value for k, value in json.loads(run.read_text()).items() if k != "results_checksum"})
    )
    again = fb.run(config, out=tmp_path / "run", device="cpu")
    assert again["class_incremental"] == first["class_incremental"]
    with pytest.raises(fb.FlashbackError, match="recorded without a confusion matrix"):
        _ = again.confusion


def test_predictions_are_ranked_once() -> None:
    """Counting costs no further pass over the test images."""
    host, passes = quick_host("finetune"), list[int]()
    scores = host.scores
    host.__dict__["scores"] = lambda x: passes.append(len(x)) or scores(x)
    fb.train(host)
    tests = [len(task.test) for task in host.benchmark.tasks]
    measured = sum(sum(tests[:k]) for k in range(1, 4))
    before_learning = sum(tests[1:])  # the untrained network is another host
    assert sum(passes) == measured + before_learning
