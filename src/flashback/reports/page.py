"""The report as one HTML file that opens anywhere and asks no server for anything."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flashback.metrics import PairedTest, verdict
from flashback.metrics.statistics import FEW
from flashback.plugin import PHASE_1, PHASE_2
from flashback.records import dotted
from flashback.records.terms import HOST, SETTINGS
from flashback.reports import tables
from flashback.reports.report import Report, over_tasks
from flashback.reports.series import Losses, accuracy_band, balance, loss_curves, mean_confusion, mean_matrix, thin
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    SETTING_TITLES,
    TITLES,
    heading,
    interval,
    number,
    plural,
    signed,
)
from flashback.results import Comparison, Method
from flashback.results.naming import value_in_words

CARDS = 6  # answers that are not folded
SENTENCES = 50  # of a list on the page; the tables have all
POINTS = 12_000  # of all loss curves on a page
CURVE_TASKS = 120  # of an accuracy curve
CONFUSION_CELLS = 200_000  # of all confusion matrices on a page
CONCLUSIONS = {
    "better": "▲ better",
    "worse": "▼ worse",
    "alike": "= no significant difference",
    "untested": "? no test possible",
}
WORDS = {
    "arms": ARM_TITLES,
    "cards": CARDS,
    "conclusions": CONCLUSIONS,
    "few": FEW,
    "heading": heading,
    "plural": plural,
    "sentences": SENTENCES,
    "settings": SETTING_TITLES,
    "titles": TITLES,
}


def html_page(report: Report) -> str:
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    folder = Path(__file__).parent
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").render(
        **WORDS,
        report=report,
        style=Markup(style),
        style_hash=checksum(style),
        script=Markup(script),
        script_hash=checksum(script),
        data=Markup(embedded_json(payload(report))),
        results=tables.results_table(report),
        methods=tables.methods_tables(report, report.metrics),
        methods_note=tables.METHODS_NOTE,
        tests=tables.against_table(report, report.metrics if report.chosen else tables.OVERVIEW),
        classes=tables.classes_table(report),
        budget=tables.budget_table(report),
        published=tables.references_table(report),
        runs=tables.runs_table(report),
        over_methods={name: with_t(test) for name in report.benchmarks if (test := report.over_methods(name))},
        over_tasks=lambda pairing, setting: with_t(over_tasks(pairing, setting)) if pairing.common_seeds else ABSENT,
        tested=sum(pairing.row(s).test.p is not None for pairing in report.comparisons for s in SETTINGS),
    )


def checksum(text: str) -> str:
    """By which the page's policy allows this script and this style, and nothing else."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded_json(value: Any) -> str:
    """JSON for a script element: nothing in it can end the element, and NaN becomes null."""
    text = json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_t(test: PairedTest) -> str:
    return f"t = {number(test.t)}. {verdict(test)}"


# ---------------------------------------------------------------- the numbers that the charts are drawn from


def payload(report: Report) -> dict[str, Any]:
    points = max(24, min(240, POINTS // max(1, len(report.pairings))))
    cells = 40 if len(report.pairings) <= 40 else 20
    return {
        "arms": ARM_TITLES,
        "phases": [PHASE_1, PHASE_2],
        "pairings": [describe(pairing, points, cells, len(report.methods)) for pairing in report.pairings],
        "similarities": [{"layers": one.layers, "values": one.values} for one in report.similarities],
    }


def describe(pairing: Comparison, points: int, cells: int, methods: int) -> dict[str, Any]:
    runs = {method.arm: list(method.runs.values()) for method in pairing.methods}
    curves = {arm: loss_curves([run.epochs for run in some], points) for arm, some in runs.items()}
    confusions = {arm: mean_confusion(some) for arm, some in runs.items()}
    return {
        "seeds": {arm: len(some) for arm, some in runs.items()},
        "answer": {setting: answer(pairing.row(setting).test) for setting in SETTINGS},
        "views": {setting: view(pairing.methods, setting, cells) for setting in SETTINGS},
        "losses": {arm: losses(curve) for arm, curve in curves.items() if curve is not None},
        "confusion": {
            arm: {"classes": confusion[0], "matrix": [rounded(row) for row in confusion[1]]}
            for arm, confusion in confusions.items()
            if confusion is not None and len(confusion[0]) ** 2 * methods <= CONFUSION_CELLS
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


def view(methods: list[Method], setting: str, cells: int) -> dict[str, Any]:
    runs = {method.arm: list(method.runs.values()) for method in methods}
    tasks = methods[0].tasks
    steps, kept = thin(tasks, CURVE_TASKS), thin(tasks, cells)
    bands = {arm: accuracy_band(some, setting) for arm, some in runs.items()}
    matrices = {arm: mean_matrix(some, setting) for arm, some in runs.items()}
    points = {arm: zip(*balance(some, setting), strict=True) for arm, some in runs.items()}
    return {
        "steps": [step + 1 for step in steps],
        "curve": {
            arm: {name: rounded(getattr(band, name)[steps]) for name in ("mean", "low", "high")}
            for arm, band in bands.items()
        },
        "kept": [task + 1 for task in kept],
        "matrix": {
            arm: [rounded(matrix[k, kept[: row + 1]]) for row, k in enumerate(kept)] for arm, matrix in matrices.items()
        },
        "balance": {arm: [rounded(point) for point in list(both)[:CURVE_TASKS]] for arm, both in points.items()},
    }


def losses(curve: Losses) -> dict[str, Any]:
    return {
        "segments": [[segment.task, segment.stage, segment.start, segment.stop] for segment in curve.segments],
        "x": rounded(curve.x),
        "terms": {name: [float(f"{value:.4g}") for value in values] for name, values in curve.terms.items()},
    }


def configuration(methods: list[Method]) -> list[list[str]]:
    """Each key with its value, or with one value per arm where they differ."""
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
