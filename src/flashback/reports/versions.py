"""A picture of the versions of a model that keeps learning."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashback.reports.confusion import check_picture, write_picture

if TYPE_CHECKING:
    from flashback.models import Version

MOST_TICKS = 25  # versions that each have a number below the axis
KNOWN, NEW, LEFT = "#0072B2", "#009E73", "#D55E00"


def plot_versions(versions: Sequence[Version], current: int | None, path: Path) -> None:
    """Draw the accuracy on known and new classes after every update that led to the version in use.

    Updates that were refused, or undone by a rollback, are crosses.
    """
    from matplotlib.figure import Figure

    check_picture(path)
    figure = Figure(figsize=(max(5.0, 1.5 + 0.5 * min(len(versions), MOST_TICKS)), 3.5), layout="constrained")
    axes = figure.subplots()
    line = lineage(versions, current)
    for label, colour, marker, part in (("known classes", KNOWN, "o", "known"), ("new classes", NEW, "s", "new")):
        points = [(version.number, version.accuracy(getattr(version, part))) for version in line]
        known_points = [(number, accuracy) for number, accuracy in points if accuracy is not None]
        if known_points:
            axes.plot(*zip(*known_points, strict=True), color=colour, marker=marker, label=label, clip_on=False)
    for version in versions:
        accuracy = version.accuracy(version.known)
        if version not in line and accuracy is not None:
            axes.plot(version.number, accuracy, "x", color=LEFT, markersize=9, label="refused or undone: known classes")
    if current is not None:
        axes.axvline(current, color="#b0b4bb", linestyle=":", zorder=0, label="in use")
    axes.set(xlabel="version", ylabel="held-out images right, %", ylim=(0, 100))
    if len(versions) <= MOST_TICKS:
        axes.set_xticks([version.number for version in versions])
    axes.spines[["top", "right"]].set_visible(False)
    unique = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(list(unique.values()), list(unique), loc="outside upper left", ncols=2, frameon=False)
    write_picture(figure, path)


def lineage(versions: Sequence[Version], current: int | None) -> list[Version]:
    """The version in use and those that it continues, oldest first."""
    by_number = {version.number: version for version in versions}
    line = []
    while current in by_number:
        line.append(by_number[current])
        current = line[-1].parent
    return line[::-1]
