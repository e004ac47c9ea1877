"""The confusion matrix of one model as a picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flashback.errors import printable, require
from flashback.files import make_folder, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".pdf", ".svg")
INCHES = 0.28  # of a class
MOST_LABELS = 60  # classes that are named beside the picture
MOST_NUMBERS = 20  # classes whose images are counted in the picture
LONGEST_NAME = 24  # letters


def check_picture(path: Path) -> None:
    """Refuse a file whose ending names no kind of picture."""
    require(path.suffix.lower() in PICTURES, f"{printable(path)} is not a picture; use {', '.join(PICTURES)}")


def plot_confusion_counts(counts: Sequence[Sequence[int]], names: Sequence[str], title: str, path: Path) -> None:
    """Draw how many images of each true class were predicted as each class, coloured by percent of the true class."""
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    check_picture(path)
    matrix = np.array(counts, dtype=np.float64)
    totals = matrix.sum(axis=1, keepdims=True)
    percent = 100 * matrix / np.where(totals > 0, totals, np.nan)
    side = 2 + INCHES * min(len(names), MOST_LABELS)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(percent, vmin=0, vmax=100, cmap="cividis")
    figure.colorbar(image, ax=axes, shrink=0.8, label="% of the true class")
    if len(names) <= MOST_LABELS:
        labels = [name[:LONGEST_NAME].replace("$", r"\$") for name in names]
        axes.set_xticks(range(len(names)), labels, rotation=90)
        axes.set_yticks(range(len(names)), labels)
    if len(names) <= MOST_NUMBERS:
        for row, column in zip(*np.nonzero(matrix), strict=True):
            colour = "black" if percent[row, column] > 50 else "white"
            number = f"{matrix[row, column]:.0f}"
            axes.text(column, row, number, ha="center", va="center", color=colour, fontsize="small")
    axes.set(xlabel="predicted class", ylabel="true class", title=title)
    write_picture(figure, path)


def write_picture(figure: Figure, path: Path) -> None:
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower(), dpi=160)
    make_folder(path.parent)
    write_atomically(path, content.getvalue())
