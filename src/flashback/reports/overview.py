"""Rows that tables of all kinds share: every method with its means, and every method against one of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashback.records.terms import FLASHBACK, HOST
from flashback.reports.against import Versus, adjusted, tested_against
from flashback.reports.pairings import Pairing, Report
from flashback.reports.words import HIGHER_IS_BETTER, TITLES, interval, number, probability, signed, spread
from flashback.studies.comparison import Row

OVERVIEW = ("average_accuracy", "average_incremental_accuracy", "forgetting")  # where there is no room for all
AGAINST_HEAD = (
    "method", "against", "metric", "method's", "baseline's", "difference", "95 % interval", "p", "p adj.", "pairs",
)  # fmt: skip
AGAINST_NOTE = (
    "Difference: the method minus the one it is tested against, with a paired t-test of one pair per common seed. "
    "p adj. is p adjusted for all tests of a metric by Holm's method."
)


@dataclass(frozen=True)
class MethodRow:
    """A method, its number of seeds, and mean ± deviation of each metric; the best of its protocol are marked."""

    method: Pairing
    seeds: int
    cells: list[str]
    best: list[bool]


def method_groups(report: Report, setting: str, metrics: Sequence[str]) -> dict[str, list[MethodRow]]:
    """Every method once, by the name of its protocol: other tasks or images are harder or easier, not a contest."""
    groups: dict[str, list[Pairing]] = {}
    for method in report.ranked(setting):
        groups.setdefault(report.protocols[method.protocol], []).append(method)
    return {name: method_rows(methods, setting, metrics) for name, methods in groups.items()}


def method_rows(methods: Sequence[Pairing], setting: str, metrics: Sequence[str]) -> list[MethodRow]:
    best = best_means(methods, setting, metrics)
    rows = []
    for method in methods:
        found = {metric: method.measured(setting, metric) for metric in metrics}
        marks = [not method.is_bound and number(mean) == best.get(metric) for metric, (mean, _) in found.items()]
        rows.append(MethodRow(method, len(method.runs), [spread(*both) for both in found.values()], marks))
    return rows


def best_means(methods: Sequence[Pairing], setting: str, metrics: Sequence[str]) -> dict[str, str]:
    """By metric, as tables show it; where all are the same, none is the best."""
    best = {}
    rivals = [one for one in methods if not one.is_bound]
    for metric in metrics:
        known = [mean for one in rivals if (mean := one.measured(setting, metric)[0]) is not None]
        if len(set(map(number, known))) > 1:
            best[metric] = number((max if HIGHER_IS_BETTER[metric] else min)(known))
    return best


def tests_against(report: Report, setting: str, metrics: Sequence[str]) -> list[tuple[Versus, Row, float | None]]:
    """Every test against the baseline, metric by metric, with its adjusted p."""
    found = []
    for metric in metrics:
        pairs = [versus for versus in tested_against(report) if versus.has(metric)]
        rows = [versus.row(setting, metric) for versus in pairs]
        found += list(zip(pairs, rows, adjusted(rows), strict=True))
    return found


def against_cells(report: Report, setting: str, metrics: Sequence[str]) -> list[list[str]]:
    """A row for every test of which there is a pair."""
    return [
        [
            versus.method.name,
            versus.base.name,
            TITLES[row.metric][0],
            *(spread(row.mean[side], row.deviation[side]) for side in (FLASHBACK, HOST)),
            signed(row.test.difference),
            interval(row.test),
            probability(row.test.p),
            probability(p),
            str(row.test.pairs),
        ]
        for versus, row, p in tests_against(report, setting, metrics)
        if row.test.pairs
    ]
