"""The result of a run."""

from __future__ import annotations

from typing import Any

from flashback.training.result import History, TrainingResult


def test_a_class_without_test_images_has_no_accuracy() -> None:
    classifiers: dict[str, dict[str, Any]] = {"linear": {"confusion": [[3, 1, 0], [0, 0, 0], [2, 2, 0]]}}
    result = TrainingResult(History(), classifiers, ["ant", "bee", "cat"])
    assert result.class_accuracies == {"ant": 75.0, "bee": None, "cat": 0.0}
