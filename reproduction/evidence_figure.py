"""The figure of the evidence page: the change that flashback makes here, and the gain that the paper reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from evidence_values import HOSTS, SETTINGS, Evidence, number

NAMES = {"icarl": "iCaRL", "lwf-mc": "LwF.MC", "lucir": "LUCIR", "xder": "X-DER", "oewc": "oEWC"}
TITLES = {"class": "Class-incremental", "task": "Task-incremental"}
BLUE, ORANGE, INK = "#0b5fa5", "#d1690e", "#30353c"
HERE: dict[str, Any] = {"color": BLUE, "marker": "s", "markersize": 8, "linewidth": 2.2}
PAPER: dict[str, Any] = {"color": ORANGE, "marker": "D", "markersize": 8, "markerfacecolor": "white", "linewidth": 0}
LEGEND = [
    Line2D([], [], label="measured here, with 95% interval", **HERE),
    Line2D([], [], label="reported in the paper", markeredgewidth=1.8, **PAPER),
]
LEFT, RIGHT = -2.6, 6.4  # of the frame; intervals beyond it end in an arrow


def draw(evidence: Evidence) -> Figure:
    with matplotlib.rc_context({"font.size": 11, "axes.edgecolor": "0.7", "text.color": INK, "axes.labelcolor": INK}):
        figure = Figure(figsize=(9, 3.9))
        figure.set_layout_engine("constrained", wspace=0.06)
        FigureCanvasAgg(figure)
        panels = figure.subplots(1, len(SETTINGS), sharex=True, sharey=True)
        for axes, setting in zip(panels, SETTINGS, strict=True):
            axes.set_title(TITLES[setting], fontsize=12)
            axes.axvline(0, color="0.45", linewidth=1.2, zorder=1)
            axes.grid(axis="x", color="0.92", zorder=-1)
            axes.tick_params(length=0)
            axes.spines[["top", "right", "left"]].set_visible(False)
            for k, host in enumerate(HOSTS):
                draw_host(axes, k, evidence, host, setting)
        panels[0].set(xlim=(LEFT, RIGHT), ylim=(len(HOSTS) - 0.5, -0.5))
        panels[0].set_yticks(range(len(HOSTS)), [NAMES[host] for host in HOSTS])
        figure.supxlabel("change in average accuracy with flashback, percentage points", fontsize=11)
        figure.legend(handles=LEGEND, loc="outside upper center", ncols=2, frameon=False)
        return figure


def draw_host(axes: Any, k: int, evidence: Evidence, host: str, setting: str) -> None:
    test = evidence.test(host, setting, "aa")
    axes.plot(test.difference, k, zorder=3, **HERE)
    axes.plot(evidence.printed_gain(host, setting), k, zorder=3, markeredgewidth=1.8, **PAPER)
    if test.low is None or test.high is None or test.pairs < 3:
        return
    axes.plot([max(test.low, LEFT), min(test.high, RIGHT)], [k, k], color=BLUE, linewidth=2.2, zorder=2)
    for end, edge, inwards in ((test.low, LEFT, 1), (test.high, RIGHT, -1)):
        if LEFT <= end <= RIGHT:
            continue
        axes.plot(edge + inwards * 0.1, k, "<" if inwards > 0 else ">", color=BLUE, markersize=9, zorder=3)
        side = {"ha": "left" if inwards > 0 else "right", "va": "bottom", "color": BLUE, "fontsize": 10}
        axes.annotate(number(end, "+.1f"), (edge, k), (inwards * 2, 6), textcoords="offset points", **side)


def save(evidence: Evidence, path: Path) -> None:
    draw(evidence).savefig(path, dpi=160, metadata={"Software": None})
