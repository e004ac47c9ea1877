"""The tables of a report, whatever form they are written in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.report import Report
from flashback.reports.series import mean_confusion
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    HIGHER_IS_BETTER,
    TITLES,
    direction,
    heading,
    interval,
    number,
    plural,
    probability,
    sample_text,
    signed,
)
from flashback.results import Method, Row
from flashback.results.comparison import SIGNIFICANT

OVERVIEW = ("average_accuracy", "average_incremental_accuracy", "forgetting")  # where there is no space for all
PERCENT = "Mean ± sample deviation over seeds, in percent; – where undefined."
MOST_CLASSES = 20  # of a table of classes in a text; CSV has all


class Cell(str):
    """Text with the kinds of its cell, such as "better sure": an improvement, and significant."""

    kind: str

    def __new__(cls, text: str, kind: str = "") -> Cell:
        cell = super().__new__(cls, text)
        cell.kind = kind
        return cell


Rows = list[list[str]]


@dataclass(frozen=True)
class Table:
    """A table: its first `texts` columns hold words, the others numbers. Rows are by setting, or under ""."""

    title: str
    columns: Sequence[str]
    texts: int
    rows: dict[str, Rows]
    notes: Sequence[str] = ()
    name: str = ""

    def __bool__(self) -> bool:
        return any(self.rows.values())


def by_setting(rows: Callable[[str], Rows]) -> dict[str, Rows]:
    return {setting: rows(setting) for setting in SETTINGS}


def results_table(report: Report) -> Table:
    """One row per comparison and metric."""

    def rows(setting: str) -> Rows:
        return [
            result_row(pairing.name, pairing.row(setting, metric))
            for pairing in report.pairings
            for metric in report.metrics
            if metric in pairing.metric_names
        ]

    notes = [
        f"{PERCENT} Difference, interval and p: paired t-test by seed. ▲ better and ▼ worse with flashback; bold where "
        "p < 0.05. The arrow beside a metric shows which way is better. SPR is forgetting in percent of the accuracy "
        "on the last task, so read it together with NTA; it is undefined where forgetting is negative.",
        *report.seed_remarks,
    ]
    columns = ("method", "metric", "host", "with flashback", "difference", "95 % interval", "p", "pairs")
    return Table("Results", columns, 2, by_setting(rows), notes, "results-table")


def result_row(name: str, row: Row) -> list[str]:
    test = row.test
    sure = " sure" if test.p is not None and test.p < SIGNIFICANT else ""
    difference = Cell(signed(test.difference), f"{direction(row.metric, test.difference)}{sure}".strip())
    samples = [sample_text(sample) for sample in (row.left, row.right)]
    return [name, heading(row.metric), *samples, difference, interval(test), probability(test.p), str(test.pairs)]


def arms_table(report: Report) -> Table:
    """One row per arm and one for the difference, with a column per metric, as papers have them."""

    def rows(setting: str) -> Rows:
        result = []
        for pairing in report.comparisons:
            cells = [pairing.row(setting, m) if m in pairing.metric_names else None for m in report.metrics]
            result += [
                [pairing.name, ARM_TITLES[HOST], *(sample_text(row.left) if row else ABSENT for row in cells)],
                [pairing.name, ARM_TITLES[FLASHBACK], *(sample_text(row.right) if row else ABSENT for row in cells)],
                [pairing.name, "difference", *map(change, cells)],
            ]
        return result

    columns = ("method", "arm", *map(heading, report.metrics))
    about = f"{PERCENT} In brackets: p of the paired t-test by seed. Arrows show which way is better."
    return Table("Results", columns, 2, by_setting(rows), [about])


def change(row: Row | None) -> str:
    """The difference with p, or with the reason why there is none."""
    if row is None or row.test.difference is None:
        return ABSENT
    if row.test.p is not None:
        return f"{signed(row.test.difference)} ({probability(row.test.p)})"
    several = max(len(row.left.values), len(row.right.values)) > 1
    reason = " (equal at all seeds)" if row.test.pairs > 1 else " (1 pair)" if several else ""
    return signed(row.test.difference) + reason


def methods_tables(report: Report, metrics: Sequence[str]) -> list[Table]:
    """Every method in a row, best first, in one table per protocol; empty where there are only two arms."""
    if not report.has_overview:
        return []
    ranked = {setting: report.ranked(setting) for setting in SETTINGS}
    columns = ("method", "seeds", *map(heading, metrics))
    tables = []
    for k, name in enumerate(report.protocols.values()):
        rows = {setting: method_rows(ranked[setting][name], setting, metrics) for setting in SETTINGS}
        title = f"Methods on {name}" if len(report.protocols) > 1 else "Methods"
        tables.append(Table(title, columns, 1, rows, name=f"methods-table{k or ''}"))
    return tables


METHODS_NOTE = (
    f"{PERCENT} Best first by average accuracy, the best of each metric in bold. Arrows show which way is better. "
    "Methods that learned all tasks at once are upper bounds and never bold."
)


def method_rows(methods: Sequence[Method], setting: str, metrics: Sequence[str]) -> Rows:
    samples = {m.name: {key: m.sample(key, setting) for key in metrics if key in m.metric_names} for m in methods}
    best: dict[str, str] = {}
    for metric in metrics:
        means = [samples[m.name][metric].mean for m in methods if metric in samples[m.name] and not m.is_bound]
        known = [mean for mean in means if mean is not None]
        if len(set(map(number, known))) > 1:  # where all are equal, none is the best
            best[metric] = number((max if HIGHER_IS_BETTER[metric] else min)(known))
    rows: Rows = []
    for method in methods:
        cells: list[str] = []
        for metric in metrics:
            sample = samples[method.name].get(metric)
            sure = sample is not None and not method.is_bound and number(sample.mean) == best.get(metric)
            cells.append(Cell(sample_text(sample) if sample else ABSENT, "sure" if sure else ""))
        rows.append([method.name, str(len(method.runs)), *cells])
    return rows


def against_table(report: Report, metrics: Sequence[str]) -> Table:
    """Every method beside the one that it is tested against."""

    def rows(setting: str) -> Rows:
        return [
            [
                test.right.name,
                test.left.name,
                TITLES[row.metric][0],
                *(sample_text(sample) for sample in (row.right, row.left)),
                *(signed(row.test.difference), interval(row.test), probability(row.test.p), probability(adjusted)),
                str(row.test.pairs),
            ]
            for test, row, adjusted in report.tested(setting, metrics)
            if row.test.pairs
        ]

    numbers = ("method's", "baseline's", "difference", "95 % interval", "p", "p adj.", "pairs")
    about = (
        "Difference: the method minus the baseline, with a paired t-test over common seeds. p adj. is adjusted for all "
        "tests of a metric by Holm's method."
    )
    return Table("Tests", ("method", "against", "metric", *numbers), 3, by_setting(rows), [about], "against-table")


def references_table(report: Report) -> Table:
    """Published values beside measured ones."""

    def rows(setting: str) -> Rows:
        result: Rows = []
        for pairing, reference in report.references_beside:
            if reference.setting == setting:
                row = pairing.row(setting, reference.metric)
                published = [Cell(reference.text(arm) or ABSENT, "long") for arm in ARMS]
                both = len(reference.value) == len(ARMS)
                difference = signed(reference.value[FLASHBACK] - reference.value[HOST]) if both else ABSENT
                numbers = [published[0], sample_text(row.left), published[1], sample_text(row.right)]
                words = [pairing.name, TITLES[reference.metric][0], reference.where]
                result.append([*words, *numbers, difference, signed(row.test.difference)])
        return result

    columns = [f"{what}, {whose}" for what in ("host", "flashback", "difference") for whose in ("published", "here")]
    references = [reference for _, reference in report.references_beside]
    notes = [
        "Only runs on all tasks and training images, with the epochs of their recipe, are shown here. Other settings "
        "may differ from the published ones. A quoted value comes from an earlier publication.",
        *dict.fromkeys(f"{one.host}: {one.note}" for one in references if one.note),
        *(f"Not run here: {sentence}" for sentence in report.references.not_run_here(references)),
    ]
    return Table("Published values", ("method", "metric", "published in", *columns), 3, by_setting(rows), notes)


def classes_table(report: Report) -> list[Table]:
    """Accuracy on every class after the last task, by method, where the records have it."""
    columns: dict[tuple[str, ...], dict[str, Any]] = {}
    for method in report.methods:
        confusion = mean_confusion(list(method.runs.values()))
        if confusion is not None:
            names, matrix = confusion
            columns.setdefault(tuple(names), {})[method.name] = matrix.diagonal()
    about = "Accuracy on each class after the last task, class-incremental, mean over seeds, in percent."
    return [
        Table(
            "Accuracy by class",
            ("class", *accuracies),
            1,
            {"": [[name, *(number(values[k]) for values in accuracies.values())] for k, name in enumerate(names)]},
            [about],
        )
        for names, accuracies in columns.items()
    ]


def budget_table(report: Report) -> Table:
    rows = []
    for pairing in report.pairings:
        budget = ABSENT if pairing.is_single else pairing.budget
        for method in pairing.methods:
            cost = method.cost
            amounts = (cost.steps, cost.images, cost.seconds, cost.bytes.get("stable"), cost.bytes.get("plastic"))
            rows.append([pairing.name, ARM_TITLES[method.arm], budget, *(number(a, ",.0f") for a in amounts)])
    columns = ("method", "arm", "budget", "optimiser steps", "images", "seconds", "stable bytes", "plastic bytes")
    about = (
        "What one run took: means over seeds, and the maximum bytes of stable and plastic knowledge. The budget is "
        "equal where both arms took the same steps and images at every seed. Runs may have shared the device, so "
        "seconds do not measure what flashback costs."
    )
    return Table("Budget", columns, 3, {"": rows}, [about])


def runs_table(report: Report) -> Table:
    rows = []
    for run in report.runs:
        facts = [str(run.record.run.get(key) or ABSENT)[:40] for key in ("device", "precision", "commit")]
        words = [run.name, run.host, run.benchmark, ARM_TITLES[run.arm], *facts]
        rows.append([*words, str(run.seed), number(run.metric())])
    columns = ("folder", "host", "benchmark", "arm", "device", "precision", "commit", "seed", "AA")
    return Table(plural(len(rows), "run"), columns, 7, {"": rows})
