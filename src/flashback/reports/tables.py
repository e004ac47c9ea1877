"""The tables of a report, whatever form they are written in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flashback.metrics.statistics import ABSENT, SIGNIFICANT, interval, number, probability, signed
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.report import Report
from flashback.reports.series import mean_confusion
from flashback.reports.words import ARM_TITLES, HIGHER_IS_BETTER, TITLES, direction, heading, plural
from flashback.results import Frontier, Method, Row
from flashback.results.method import Sample

OVERVIEW = ("average_accuracy", "average_incremental_accuracy", "forgetting")  # where there is no space for all
PERCENT = "Mean ± sample deviation over seeds, in percent; – where undefined."


class Cell(str):
    """Text with the kinds of its cell, such as "better significant"; "significant" and "best" are written in bold."""

    kind: str

    def __new__(cls, text: object, kind: str = "") -> Cell:
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


def row_cells(row: Row) -> list[str]:
    """Both samples, the difference, its interval and p."""
    return [str(row.left), str(row.right), signed(row.test.difference), interval(row.test), probability(row.test.p)]


def results_table(report: Report) -> Table:
    rows = {
        setting: [
            result_row(pairing.name, pairing.row(setting, metric))
            for pairing in report.pairings
            for metric in report.metrics
            if metric in pairing.metric_names
        ]
        for setting in SETTINGS
    }
    notes = [
        f"{PERCENT} Difference, interval and p: paired t-test by seed. ▲ better and ▼ worse with flashback; bold where "
        "p < 0.05. The arrow beside a metric shows which way is better. SPR is forgetting in percent of the accuracy "
        "on the last task, so read it together with NTA; it is undefined where forgetting is negative.",
        *report.seed_remarks,
    ]
    columns = ("method", "metric", "host", "with flashback", "difference", "95 % interval", "p", "pairs")
    return Table("Results", columns, 2, rows, notes, "results-table")


def result_row(name: str, row: Row) -> list[str]:
    significant = " significant" if row.test.p is not None and row.test.p < SIGNIFICANT else ""
    left, right, difference, *others = row_cells(row)
    marked = Cell(difference, f"{direction(row.metric, row.test.difference)}{significant}".strip())
    return [name, heading(row.metric), left, right, marked, *others, str(row.test.pairs)]


def arms_table(report: Report) -> Table:
    """One row per arm and one for the difference, with a column per metric, as papers have them."""
    rows: dict[str, Rows] = {setting: [] for setting in SETTINGS}
    for setting in SETTINGS:
        for pairing in report.comparisons:
            cells = [pairing.row(setting, m) if m in pairing.metric_names else None for m in report.metrics]
            rows[setting] += [
                [pairing.name, ARM_TITLES[HOST], *(str(row.left) if row else ABSENT for row in cells)],
                [pairing.name, ARM_TITLES[FLASHBACK], *(str(row.right) if row else ABSENT for row in cells)],
                [pairing.name, "difference", *map(change, cells)],
            ]
    about = f"{PERCENT} In brackets: p of the paired t-test by seed. Arrows show which way is better."
    return Table("Results", ("method", "arm", *map(heading, report.metrics)), 2, rows, [about])


def change(row: Row | None) -> str:
    if row is None or row.test.p is None:
        return ABSENT if row is None else signed(row.test.difference)
    return f"{signed(row.test.difference)} ({probability(row.test.p)})"


def references_table(report: Report) -> Table:
    rows: dict[str, Rows] = {setting: [] for setting in SETTINGS}
    for pairing, reference in report.references_beside:
        row, value = pairing.row(reference.setting, reference.metric), reference.value
        published, here = [Cell(reference.text(arm) or ABSENT, "long") for arm in ARMS], [str(row.left), str(row.right)]
        difference = signed(value[FLASHBACK] - value[HOST]) if len(value) == len(ARMS) else ABSENT
        words = [pairing.name, TITLES[reference.metric][0], reference.where]
        numbers = [published[0], here[0], published[1], here[1], difference, signed(row.test.difference)]
        rows[reference.setting].append([*words, *numbers])
    columns = [f"{what}, {whose}" for what in ("host", "flashback", "difference") for whose in ("published", "here")]
    references = [reference for _, reference in report.references_beside]
    notes = [
        "Only runs on all tasks and training images, with the epochs of their recipe, are shown here. Other settings "
        "may differ from the published ones. A quoted value comes from an earlier publication.",
        *dict.fromkeys(f"{reference.host}: {reference.note}" for reference in references if reference.note),
        *(f"Not run here: {sentence}" for sentence in report.references.not_run_here(references)),
    ]
    return Table("Published values", ("method", "metric", "published in", *columns), 3, rows, notes)


def methods_tables(report: Report, metrics: Sequence[str]) -> list[Table]:
    """Every method in a row, best first, in one table per protocol; empty where there are only two arms."""
    if not report.has_overview:
        return []
    ranked = {setting: report.ranked(setting) for setting in SETTINGS}
    columns = ("method", "seeds", *map(heading, metrics))
    note = (
        f"{PERCENT} Best first by average accuracy, the best of each metric in bold. Arrows show which way is better. "
        "Methods that learned all tasks at once are upper bounds and never bold."
    )
    tables = []
    for k, name in enumerate(report.protocols.values()):
        rows = {setting: list(method_rows(ranked[setting][name], setting, metrics)) for setting in SETTINGS}
        title = f"Methods on {name}" if len(report.protocols) > 1 else "Methods"
        notes = [note] if k + 1 == len(report.protocols) else []
        tables.append(Table(title, columns, 1, rows, notes, f"methods-table{k or ''}"))
    return tables


def method_rows(methods: Sequence[Method], setting: str, metrics: Sequence[str]) -> Iterator[list[str]]:
    best: dict[str, str] = {}
    for metric in metrics:
        competitors = [method for method in methods if metric in method.metric_names and not method.is_bound]
        means = [method.sample(metric, setting).mean for method in competitors]
        known = [mean for mean in means if mean is not None]
        if len(set(map(number, known))) > 1:  # where all are equal, none is the best
            best[metric] = number((max if HIGHER_IS_BETTER[metric] else min)(known))
    for method in methods:
        cells = []
        for metric in metrics:
            sample = method.sample(metric, setting) if metric in method.metric_names else None
            is_best = sample is not None and not method.is_bound and number(sample.mean) == best.get(metric)
            cells.append(Cell(ABSENT if sample is None else sample, "best" if is_best else ""))
        yield [method.name, str(len(method.runs)), *cells]


def against_table(report: Report, metrics: Sequence[str]) -> Table:
    rows: dict[str, Rows] = {setting: [] for setting in SETTINGS}
    for setting in SETTINGS:
        for test, row, adjusted in report.baseline_rows(setting, metrics):
            base, method, *others = row_cells(row)
            if row.test.pairs:
                words = [test.right.name, test.left.name, TITLES[row.metric][0]]
                rows[setting].append([*words, method, base, *others, probability(adjusted), str(row.test.pairs)])
    columns = ("method", "against", "metric", "method's", "baseline's", "difference", "95 % interval", "p", "p adj.")
    about = (
        "Difference: the method minus the baseline, with a paired t-test over common seeds. p adj. is adjusted for all "
        "tests of a metric by Holm's method."
    )
    return Table("Tests", (*columns, "pairs"), 3, rows, [about], "against-table")


def classes_table(report: Report) -> list[Table]:
    columns: dict[tuple[str, ...], dict[str, Any]] = {}
    for method in report.methods:
        confusion = mean_confusion(method.runs.values())
        if confusion is not None:
            columns.setdefault(tuple(confusion[0]), {})[method.name] = confusion[1].diagonal()
    tables = []
    for names, accuracies in columns.items():
        rows = [[name, *(number(values[k]) for values in accuracies.values())] for k, name in enumerate(names)]
        about = "Accuracy on each class after the last task, class-incremental, mean over seeds, in percent."
        tables.append(Table("Accuracy by class", ("class", *accuracies), 1, {"": rows}, [about]))
    return tables


def frontier_table(frontier: Frontier) -> Table:
    """One row per curve and weight."""
    rows: dict[str, Rows] = {setting: [] for setting in SETTINGS}
    for setting in SETTINGS:
        for name, points in frontier.points(setting).items():
            for point in points:
                test = point.above
                outside = f"outside in {plural(len(point.outside), 'seed')}" if point.outside else ABSENT
                above = (
                    [signed(test.difference), interval(test)] if test and test.difference is not None else [outside] * 2
                )
                kind = "" if point.dominated else "best"
                new, old = (
                    Sample({}, *pair) for pair in ((point.new, point.new_deviation), (point.old, point.old_deviation))
                )
                cells = [Cell(new, kind), Cell(old, kind), *([ABSENT] * 2 if test is None else above)]
                mark = "dominated" if point.dominated else ""
                rows[setting].append([name, f"{point.weight:g}", mark, *cells])
    columns = ("curve", "weight", "", "new tasks", "old tasks", "above the host", "95 % interval")
    notes = [
        "Accuracy on the new task and on earlier ones, both after each task from the second on, mean over tasks; mean "
        "± sample deviation over seeds, in percent. Weight: of the stability loss. Bold: not dominated, so no other "
        "point is better on one and at least as good on the other. Above the host: how far a point lies above the "
        "host's own curve at the same accuracy on new tasks, with Student's interval over seeds for this point alone; "
        "outside: the host's curve does not reach that accuracy.",
        *(f"{name} failed: {problem}" for name, problem in frontier.failures.items()),
    ]
    return Table(f"Frontier of {frontier.title}", columns, 3, rows, notes)
