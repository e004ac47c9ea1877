"""Predict the classes of image files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashback.errors import abbreviate, require
from flashback.models.model import Model, as_model, to_probabilities
from flashback.models.sources import Source, list_source


@dataclass(frozen=True)
class Prediction:
    """One class that an image may have.

    Attributes:
        path: The image.
        rank: 1 for its most probable class, 2 for the next, and so on.
        class_name: The class.
        probability: The softmax of the classifier's scores, over all classes learned.
    """

    path: str
    rank: int
    class_name: str
    probability: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "rank": self.rank,
            "class": self.class_name,
            "probability": round(self.probability, 6),
        }


@dataclass(frozen=True)
class Predictions:
    """What a model says about images.

    Attributes:
        rows: The most probable classes of each image that could be read, in the order of the images.
        skipped: Why an image could not be read, by its path.
    """

    rows: list[Prediction] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Prediction]:
        return iter(self.rows)

    def as_csv(self) -> str:
        """The rows as CSV, with a line of column names."""
        text = io.StringIO()
        writer = csv.DictWriter(text, ["path", "rank", "class", "probability"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(row.as_dict() for row in self.rows)
        return text.getvalue()

    def as_jsonl(self) -> str:
        """The rows as JSON, one per line."""
        return "".join(json.dumps(row.as_dict(), ensure_ascii=False) + "\n" for row in self.rows)


def predict_files(model: Model | str | Path, images: Source, *, top: int = 3, progress: bool = False) -> Predictions:
    """Predict the classes of images of any size.

    Images are cut to the proportions of the training images around their centre and resized, as training does.

    Args:
        model: What `load_model` returns, or the folder of a finished run.
        images: A folder of images at any depth, one image, a .csv of paths, an .npz, a data set of torchvision or
            Hugging Face, or a mapping of class names to arrays.
        top: How many classes to name for each image.
        progress: Show a progress bar, if there is a terminal.

    Returns:
        The most probable classes of each image, and the images that could not be read.

    Raises:
        FlashbackError: If there are no images, or none can be read.
    """
    require(type(top) is int and top >= 1, f"top is the number of classes to name, at least 1, not {abbreviate(top)}")
    model, listed = as_model(model), list_source(images)
    predictions = Predictions()
    for rows, scores in model.classify(listed, predictions.skipped, progress):
        # Ranked by scores: many probabilities of a nearest-mean classifier are rounded to 0.
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :top]
        probabilities = to_probabilities(scores).gather(1, best)
        for row, values, columns in zip(rows, probabilities.tolist(), best.tolist(), strict=True):
            predictions.rows.extend(
                Prediction(listed[row].name, rank, model.class_names[column], value)
                for rank, (value, column) in enumerate(zip(values, columns, strict=True), 1)
            )
    return predictions
