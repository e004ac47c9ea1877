"""The numbers a page draws its charts from: written once, rounded, and thinned out when there is much to show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flashback.metrics import PairedTest
from flashback.plugin import PHASE_1, PHASE_2
from flashback.records.folder import dotted
from flashback.records.terms import HOST, SETTINGS
from flashback.reports.pairings import Pairing, Report
from flashback.reports.series import Losses, accuracy_band, balance, loss_curves, mean_matrix, thin
from flashback.reports.words import ABSENT, ARM_TITLES, interval, signed, written

POINTS = 12_000  # of loss curves on a page, shared by its pairings
CURVE_TASKS = 120  # an accuracy curve shows at most so many tasks


def payload(report: Report) -> dict[str, Any]:
    points = max(24, min(240, POINTS // max(1, len(report.pairings))))
    cells = 40 if len(report.pairings) <= 40 else 20
    return {
        "arms": ARM_TITLES,
        "phases": [PHASE_1, PHASE_2],
        "pairings": [describe(pairing, points, cells) for pairing in report.pairings],
        "similarities": [{"layers": one.layers, "values": one.values} for one in report.similarities],
    }


def describe(pairing: Pairing, points: int, cells: int) -> dict[str, Any]:
    curves = {arm: loss_curves([run.epochs for run in pairing.of(arm)], points) for arm in pairing.arms}
    return {
        "seeds": {arm: len(pairing.of(arm)) for arm in pairing.arms},
        "answer": {setting: answer(pairing.row(setting).test) for setting in SETTINGS},
        "views": {setting: view(pairing, setting, cells) for setting in SETTINGS},
        "losses": {arm: losses(curve) for arm, curve in curves.items() if curve is not None},
        "config": settings(pairing),
    }


def answer(test: PairedTest) -> dict[str, Any] | None:
    """The difference and its interval: as numbers for the eye, and as the texts that tables and sentences have."""
    if test.difference is None:
        return None
    difference = signed(test.difference)
    within = f", 95 % interval {interval(test)}" if test.p is not None else ""
    values = [test.difference, test.low, test.high]
    return {"values": values, "difference": difference, "label": f"difference {difference}{within}"}


def view(pairing: Pairing, setting: str, cells: int) -> dict[str, Any]:
    records = {arm: [run.record for run in pairing.of(arm)] for arm in pairing.arms}
    bands = {arm: accuracy_band(records[arm], setting) for arm in records}
    matrices = {arm: mean_matrix(records[arm], setting) for arm in records}
    points = {arm: balance(records[arm], setting) for arm in records}
    steps, kept = thin(pairing.tasks, CURVE_TASKS), thin(pairing.tasks, cells)
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
        "balance": {
            arm: [rounded(point) for point in list(zip(*both, strict=True))[:CURVE_TASKS]]
            for arm, both in points.items()
        },
    }


def losses(curve: Losses) -> dict[str, Any]:
    return {
        "segments": [[segment.task, segment.stage, segment.start, segment.stop] for segment in curve.segments],
        "x": rounded(curve.x),
        "terms": {name: [float(f"{value:.4g}") for value in values] for name, values in curve.terms.items()},
    }


def settings(pairing: Pairing) -> list[list[str]]:
    """Each key with its value, or with one value per arm where they differ; seeds are all those that ran."""
    flat = [dotted(pairing.of(arm)[0].settings) for arm in pairing.arms]
    for own, arm in zip(flat, pairing.arms, strict=True):
        own["seed"] = sorted(run.seed for run in pairing.of(arm))
        if arm == HOST:  # flashback's settings do nothing there
            own |= {key: ABSENT for key in own if key.startswith("flashback.") and key != "flashback.enabled"}
    keys = dict.fromkeys(key for own in flat for key in own)
    rows = []
    for key in keys:
        values = [written(own[key]) if key in own else "" for own in flat]
        rows.append([str(key), *values] if len(set(values)) > 1 else [str(key), values[0]])
    return rows


def rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), 2) for value in values]
