"""The controlled comparison in one picture: what flashback changes here, and what the paper prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence.conclusions import FEWEST
from evidence.gathered import Evidence
from evidence.theirs import printed_accuracy, printed_gain
from flashback.records.terms import FLASHBACK, SETTINGS
from flashback.reports.pairings import Pairing
from flashback.reports.plots import FORMATS, LOOKS, laid_out, new_figure
from flashback.reports.words import SETTING_TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE = "images/evidence.png"  # beside the page
MARGIN = 1.0  # points of accuracy beyond the outermost mark; a longer interval goes on over the edge
HERE: dict[str, Any] = {"color": LOOKS[FLASHBACK]["color"]}
THEIRS: dict[str, Any] = {"color": "#1b1f26", "marker": "D", "markerfacecolor": "white", "linestyle": "none"}


def draw_evidence(evidence: Evidence) -> Figure | None:
    """By host and setting the change of average accuracy with its 95 % interval; None without both arms of any host."""
    pairings = evidence.controlled.compared
    if not pairings:
        return None
    figure, panels = new_figure(8.5, 1.4 + 0.4 * len(pairings), columns=len(SETTINGS), sharey=True, sharex=True)
    marks = [0.0]
    for axes, setting in zip(panels, SETTINGS, strict=True):
        axes.axvline(0, color="0.6", linewidth=1)
        for k, pairing in enumerate(pairings):
            marks += draw_host(axes, k, pairing, setting)
        axes.set_title(SETTING_TITLES[setting].capitalize(), fontsize="medium")
    panels[0].set_yticks(range(len(pairings)), [pairing.name for pairing in pairings])
    panels[0].set_ylim(len(pairings) - 0.4, -0.6)
    panels[0].set_xlim(min(marks) - MARGIN, max(marks) + MARGIN)
    figure.supxlabel("change of average accuracy by flashback, points", fontsize="medium")
    names = {"here, with its 95 % interval": {**HERE, "marker": "s"}, "printed in the paper": THEIRS}
    handles = [panels[0].plot([], [], label=name, **look)[0] for name, look in names.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False)
    return figure


def draw_host(axes: Any, k: int, pairing: Pairing, setting: str) -> list[float]:
    """One row; returns where its marks are."""
    test, printed = pairing.row(setting).test, printed_accuracy(pairing, setting)
    if test.low is not None and test.high is not None and test.pairs >= FEWEST:
        axes.plot([test.low, test.high], [k, k], **HERE)
    marks = [] if test.difference is None else [test.difference]
    axes.plot(marks, [k] * len(marks), "s", **HERE)
    if printed is not None:
        axes.plot([printed_gain(printed)], [k], **THEIRS)
        marks.append(printed_gain(printed))
    return marks


def write_picture(evidence: Evidence, folder: Path) -> Path | None:
    figure = draw_evidence(evidence)
    if figure is None:
        return None
    path = folder / PICTURE
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches=laid_out(figure), **FORMATS["png"])
    return path
