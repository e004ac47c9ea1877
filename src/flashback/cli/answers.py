"""What a report says, for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from flashback.cli.console import make_table, output, show_line
from flashback.cli.tables import arrow
from flashback.records.terms import SETTINGS
from flashback.reports import Report, tables
from flashback.reports.words import SETTING_TITLES, TITLES
from flashback.results import Comparison

MOST_ANSWERS = 10  # comparisons that have a sentence each
OUTCOMES = {
    "better": "significantly better with flashback",
    "worse": "significantly worse with flashback",
    "alike": "without a significant difference",
    "untested": "that allow no test",
}


def show_answers(report: Report) -> None:
    """Print what there is, the answers, and all methods with their means."""
    console = output()
    for line in answers(report):
        show_line(line)
    if report.has_overview:
        metrics = report.metrics if report.chosen else tables.OVERVIEW
        for setting in SETTINGS:
            console.print(methods_table(report, setting, metrics))
    if report.tests:
        console.print(against_table(report, SETTINGS[0]))
    for line in [*(f"{test.name}: {test.answer(SETTINGS[0])}" for test in report.tests), *report.untested]:
        show_line(line)


def answers(report: Report) -> Iterator[str]:
    """A sentence for each comparison; if there are many, how often which outcome came out."""
    yield f"{report.contents}."
    if report.shared_changes:
        yield f"All methods: {report.shared_changes}."
    yield from report.code_remarks
    if len(report.comparisons) > MOST_ANSWERS:
        yield summary(report.comparisons)
    else:
        yield from (f"{pairing.name}: {pairing.answer(SETTINGS[0])}" for pairing in report.comparisons)
        yield from report.difference_remarks
    if report.singles and report.comparisons:
        yield f"{report.singles_in_words}."


def summary(comparisons: Sequence[Comparison]) -> str:
    outcomes = Counter(pairing.outcome(SETTINGS[0]) for pairing in comparisons)
    each = ", ".join(f"{outcomes[outcome]} {words}" for outcome, words in OUTCOMES.items() if outcomes[outcome])
    return f"By average accuracy, {SETTING_TITLES[SETTINGS[0]]}: {each}. The report has the answers."


def methods_table(report: Report, setting: str, metrics: Sequence[str]) -> Table:
    """Every method with its means, in a block for every protocol."""
    groups = {one.title: one.rows[setting] for one in tables.methods_tables(report, metrics)}
    title = f"{SETTING_TITLES[setting]}, best first"
    table = make_table(title, "method", "seeds", *(f"{TITLES[metric][0]}{arrow(metric)}" for metric in metrics))
    for name, rows in groups.items():
        if len(groups) > 1:
            table.add_section()
            table.add_row(Text(name.removeprefix("Methods "), style="bold"))
        for row in rows:
            table.add_row(*row)
    table.caption, table.caption_justify = "mean ± deviation over seeds; ↓ less is better", "left"
    return table


def against_table(report: Report, setting: str) -> Table:
    """The average accuracy of every method beside that of the one it is tested against."""
    title = f"against {report.baseline}: average accuracy, {SETTING_TITLES[setting]}"
    table = make_table(title, "method", "against", "difference", "95 % interval", "p", "p adj.", "pairs", texts=2)
    table.caption = "paired t-test by seed; p adj. is adjusted for the number of tests (Holm)"
    table.caption_justify = "left"
    for name, base, _, _, _, *tested in tables.against_table(report, ["average_accuracy"]).rows[setting]:
        table.add_row(name, base, *tested)
    return table
