"""Measure how often a model is right on labelled image files, and what it confuses."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks.image_lists import check_case_conflicts
from flashback.errors import require, unknown
from flashback.metrics import class_accuracies
from flashback.models.model import Model, as_model
from flashback.models.sources import Source, list_source


@dataclass(frozen=True)
class FileEvaluation:
    """The result of `evaluate_files`.

    Attributes:
        class_names: The classes of the model, in the order learned.
        confusion: How many images of each true class were predicted as each class, `confusion[true][predicted]`.
        unknown: How many images have a class that the model has not learned, by class; they are left out.
        skipped: Why an image could not be read, by its path.
    """

    class_names: tuple[str, ...]
    confusion: list[list[int]]
    unknown: dict[str, int]
    skipped: dict[str, str]

    @property
    def images(self) -> int:
        """How many images were evaluated."""
        return sum(map(sum, self.confusion))

    @property
    def accuracy(self) -> float:
        """Percent correct of all images."""
        return 100.0 * sum(row[k] for k, row in enumerate(self.confusion)) / self.images

    @property
    def class_accuracies(self) -> dict[str, float | None]:
        """Percent correct of each class; None for a class without images."""
        return dict(zip(self.class_names, class_accuracies(self.confusion), strict=True))

    def most_confused(self, count: int) -> list[tuple[str, str, int]]:
        """Return the pairs of classes confused most often: true class, predicted class, number of images.

        Args:
            count: How many pairs.
        """
        pairs = [
            (self.class_names[true], self.class_names[predicted], images)
            for true, row in enumerate(self.confusion)
            for predicted, images in enumerate(row)
            if images and true != predicted
        ]
        return sorted(pairs, key=lambda pair: -pair[2])[:count]

    def rows(self) -> list[dict[str, Any]]:
        """One entry per class: its name, images, correct ones and accuracy in percent."""
        accuracies = self.class_accuracies
        return [
            {"class": name, "images": sum(row), "correct": row[k], "accuracy": accuracies[name]}
            for k, (name, row) in enumerate(zip(self.class_names, self.confusion, strict=True))
        ]

    def as_csv(self) -> str:
        """The entries of all classes as CSV, with a line of column names."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["class", "images", "correct", "accuracy"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows())
        return text.getvalue()

    def as_json(self) -> str:
        """Everything as one JSON object."""
        values = {"accuracy": self.accuracy, "images": self.images, "classes": self.rows()}
        values |= {"confusion": self.confusion, "unknown": self.unknown, "skipped": self.skipped}
        return json.dumps(values, ensure_ascii=False, indent=1) + "\n"


def evaluate_files(model: Model | str | Path, images: Source, *, progress: bool = False) -> FileEvaluation:
    """Measure the accuracy of a model on labelled images of any size.

    Args:
        model: What `load_model` returns, or the folder of a finished run.
        images: A folder with one folder per class (of one with train/ and test/, the latter), a .csv of paths and
            labels, an .npz with x and y or x_test and y_test, a data set of torchvision or Hugging Face, or a mapping
            of class names to arrays.
        progress: Show a progress bar, if there is a terminal.

    Returns:
        The accuracy, also by class, and the confusion matrix. Images of classes that the model has not learned are
        left out and counted.

    Raises:
        FlashbackError: If there are no images of known classes, none can be read, or class names differ only in case.
    """
    model, listed = as_model(model), list_source(images, labelled=True)
    column_of = {name: column for column, name in enumerate(model.class_names)}
    require(len(column_of) == len(model.class_names), "two classes of this model have the same name")
    names = [_class_name(image.label, model) for image in listed]
    check_case_conflicts(names, column_of)
    left_out = Counter(name for name in names if name not in column_of)
    if len(left_out) == len(set(names)):
        raise unknown("class", names[0], model.class_names)
    known = [image for image, name in zip(listed, names, strict=True) if name in column_of]
    truth = torch.tensor([column_of[name] for name in names if name in column_of])
    classes, skipped = len(model.class_names), dict[str, str]()
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    for rows, scores in model.classify(known, skipped, progress):
        counts += torch.bincount(truth[rows] * classes + scores.argmax(dim=1), minlength=len(counts))
    return FileEvaluation(model.class_names, counts.view(classes, classes).tolist(), dict(left_out), skipped)


def _class_name(label: str | int | None, model: Model) -> str:
    """The class that a label names or numbers."""
    if isinstance(label, int):
        return model.names_by_label[label] if 0 <= label < len(model.names_by_label) else str(label)
    return str(label)
