"""The report as one HTML file that opens anywhere and asks no server for anything."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from flashback.errors import printable
from flashback.metrics import PairedTest
from flashback.metrics.statistics import ABSENT, FEW, interval, signed
from flashback.plugin import PHASE_1, PHASE_2
from flashback.records import dotted
from flashback.records.terms import HOST, SETTINGS
from flashback.reports.report import Report, over_tasks
from flashback.reports.series import (
    Array,
    accuracy_band,
    aligned_confusions,
    balance,
    loss_curves,
    mean_difference,
    mean_matrix,
    thin,
)
from flashback.reports.text import render
from flashback.reports.words import ARM_TITLES
from flashback.results import Comparison, Frontier, Method
from flashback.results.naming import value_in_words

POINTS = 12_000  # of all loss curves on a page
CURVE_TASKS = 120  # of an accuracy curve
CONFUSION_CELLS = 200_000  # of all confusion matrices on a page


def html_page(report: Report) -> str:
    from markupsafe import Markup

    style, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return render(
        "page.html",
        report,
        style=Markup(style),
        style_hash=checksum(style),
        script=Markup(script),
        script_hash=checksum(script),
        data=Markup(embedded_json(payload(report))),
        few=FEW,
        over_methods={name: test for name in report.benchmarks if (test := report.over_methods(name))},
        over_tasks=over_tasks,
        tested=sum(pairing.row(s).test.p is not None for pairing in report.comparisons for s in SETTINGS),
    )


def checksum(text: str) -> str:
    """By which the page's policy allows this script and this style, and nothing else."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded_json(value: Any) -> str:
    """JSON for a script element: nothing in it can end the element, NaN becomes null, and texts are printable."""
    text = json.dumps(_clean(value), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {printable(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    if isinstance(value, str):
        return printable(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def payload(report: Report) -> dict[str, Any]:
    points = max(24, min(240, POINTS // max(1, len(report.pairings))))
    cells = 40 if len(report.pairings) <= 40 else 20
    return {
        "arms": ARM_TITLES,
        "phases": [PHASE_1, PHASE_2],
        "pairings": [describe(pairing, points, cells, len(report.methods)) for pairing in report.pairings],
        "similarities": [
            {"layers": similarity.layers, "values": similarity.values} for similarity in report.similarities
        ],
        "frontiers": [
            {setting: frontier_view(frontier, setting) for setting in SETTINGS} for frontier in report.frontiers
        ],
    }


def frontier_view(frontier: Frontier, setting: str) -> dict[str, Any]:
    """The points of each curve, with values and deviations of both axes, and its outline."""
    outlines = frontier.outlines(setting)
    return {
        name: {
            "points": [
                {"weight": point.weight, "dominated": point.dominated}
                | {"new": [point.new, point.new_deviation], "old": [point.old, point.old_deviation]}
                for point in points
            ],
            "outline": [rounded(point) for point in outlines[name]],
        }
        for name, points in frontier.points(setting).items()
    }


def describe(pairing: Comparison, points: int, cells: int, methods: int) -> dict[str, Any]:
    runs = {method.arm: list(method.runs.values()) for method in pairing.methods}
    curves = {arm: loss_curves([run.epochs for run in some], points) for arm, some in runs.items()}
    classes, confusions = aligned_confusions(pairing.methods)
    return {
        "seeds": {arm: len(some) for arm, some in runs.items()},
        "answer": {setting: answer(pairing.row(setting).test) for setting in SETTINGS},
        "views": {setting: view(pairing, setting, cells) for setting in SETTINGS},
        "losses": {
            arm: {
                "segments": curve.segments,
                "x": rounded(curve.x),
                "terms": {name: [float(f"{value:.4g}") for value in values] for name, values in curve.terms.items()},
            }
            for arm, curve in curves.items()
            if curve is not None
        },
        "confusion": {
            arm: {"classes": classes, "matrix": [rounded(row) for row in matrix]}
            for arm, matrix in confusions.items()
            if len(classes) ** 2 * methods <= CONFUSION_CELLS
        },
        "config": configuration(pairing.methods),
    }


def answer(test: PairedTest) -> dict[str, Any] | None:
    if test.difference is None:
        return None
    difference = signed(test.difference)
    limits = f", 95 % interval {interval(test)}" if test.p is not None else ""
    values = [test.difference, test.low, test.high]
    return {"values": values, "difference": difference, "label": f"difference {difference}{limits}"}


def view(pairing: Comparison, setting: str, cells: int) -> dict[str, Any]:
    """Accuracy curves, matrices and the balance of stability and plasticity, thinned out where there are many tasks.

    The difference is over the seeds of both arms, as in the tests.
    """
    methods = pairing.methods
    steps, matrix_steps = thin(methods[0].tasks, CURVE_TASKS), thin(methods[0].tasks, cells)
    numbers: dict[str, Any] = {"steps": [k + 1 for k in steps], "kept": [k + 1 for k in matrix_steps]}
    numbers |= {"curve": {}, "matrix": {}, "balance": {}}
    for method in methods:
        runs, arm = method.runs.values(), method.arm
        band, matrix = accuracy_band(runs, setting), mean_matrix(runs, setting)
        points = list(zip(*balance(runs, setting), strict=True))[:CURVE_TASKS]
        numbers["curve"][arm] = {name: rounded(values[steps]) for name, values in band.items()}
        numbers["matrix"][arm] = triangle(matrix, matrix_steps)
        numbers["balance"][arm] = [rounded(point) for point in points]
    difference = mean_difference(pairing, setting)
    if difference is not None:
        curve = np.nanmean(difference, axis=1)
        numbers["difference"] = {"curve": rounded(curve[steps]), "matrix": triangle(difference, matrix_steps)}
    return numbers


def triangle(matrix: Array, steps: list[int]) -> list[list[float]]:
    """The rows and columns of some tasks, up to the diagonal."""
    return [rounded(matrix[k, steps[: row + 1]]) for row, k in enumerate(steps)]


def configuration(methods: list[Method]) -> list[list[str]]:
    columns = []
    for method in methods:
        settings = dotted(method.settings) | {"seed": method.seeds}
        if method.arm == HOST:  # the settings of flashback have no effect
            settings |= {k: ABSENT for k in settings if k.startswith("flashback.") and k != "flashback.enabled"}
        columns.append(settings)
    rows = []
    for key in dict.fromkeys(key for column in columns for key in column):
        values = [value_in_words(column[key]) if key in column else "" for column in columns]
        rows.append([str(key), *values] if len(set(values)) > 1 else [str(key), values[0]])
    return rows


def rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 2) for value in values]
