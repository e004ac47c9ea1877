"""What a terminal shows of a run, of a comparison and of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import typer
from rich.table import Table
from rich.text import Text

from flashback.cli.console import make_table, output, show_line
from flashback.records import RunRecord
from flashback.records.terms import ARMS, FLASHBACK, SETTINGS
from flashback.reports import Report
from flashback.reports import tables as report_tables
from flashback.reports.words import (
    HIGHER_IS_BETTER,
    SETTING_TITLES,
    TITLES,
    interval,
    number,
    plural,
    probability,
    sample_text,
    signed,
    unmatched_seeds,
    unvalued_seeds,
)
from flashback.results import Comparison, Row, Run
from flashback.studies.jobs import group_failures

WIDE = 96  # columns of a terminal that has room between the columns of a comparison; 80 hold them all
MOST_ANSWERS = 10  # comparisons that have a sentence each
OUTCOMES = {
    "better": "significantly better with flashback",
    "worse": "significantly worse with flashback",
    "alike": "without a significant difference",
    "untested": "that allow no test",
}


def arrow(metric: str) -> str:
    return "" if HIGHER_IS_BETTER[metric] else " ↓"


# ---------------------------------------------------------------- one run


def run_table(run: Run) -> Table:
    arm = "with" if run.arm == FLASHBACK else "without"
    title = f"{run.host} {arm} flashback on {run.benchmark}, seed {run.seed}"
    table = make_table(title, f"{run.classifier} classifier", *SETTING_TITLES.values())
    for metric in run.metric_names:
        name = f"{TITLES[metric][1]}{arrow(metric)}"
        table.add_row(name, *(number(run.metric(metric, setting)) for setting in SETTINGS))
    return table


def run_cost(record: RunRecord) -> str:
    run = record.run
    sizes = ", ".join(f"{size:,} bytes of {kind} knowledge" for kind, size in run["knowledge_bytes"].items())
    return f"{run['steps']:,} optimiser steps on {run['images']:,} images, {sizes}, {run['seconds']:.0f} s"


# ---------------------------------------------------------------- a comparison


def comparison_table(comparison: Comparison, width: int) -> Table:
    seeds = f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)}"
    title = f"{comparison.host} without and with flashback on {comparison.benchmark}, {seeds}"
    table = make_table(title, "", *ARMS, "difference", "95 % interval", "p")
    if width < WIDE:
        table.padding, table.show_edge = 0, False
    metrics = dict.fromkeys(row.metric for row in comparison.rows)
    meanings = "; ".join(" ".join(TITLES[metric]) for metric in metrics)
    table.caption, table.caption_justify = f"mean ± deviation; ↓ less is better\n{meanings}", "left"
    for setting in SETTINGS:
        table.add_row(Text(SETTING_TITLES[setting], style="bold"))
        for row in comparison.rows:
            if row.setting == setting:
                table.add_row(f"  {TITLES[row.metric][0]}{arrow(row.metric)}", *row_cells(row))
        table.add_section()
    return table


def row_cells(row: Row) -> list[str]:
    means = [sample_text(sample) for sample in (row.left, row.right)]
    return [*means, signed(row.test.difference), interval(row.test), probability(row.test.p)]


def cost_table(comparison: Comparison) -> Table:
    columns = ("steps", "images", "stable bytes", "plastic bytes", "seconds")
    table = make_table(f"cost of one run: {comparison.budget}", "", *columns)
    for arm, cost in comparison.cost.items():
        amounts: Sequence[float | None] = (cost.steps, cost.images, cost.bytes.get("stable"), cost.bytes.get("plastic"))
        table.add_row(arm, *(number(amount, ",.0f") for amount in amounts), number(cost.seconds, ".1f"))
    return table


def comparison_notes(comparison: Comparison) -> Iterable[str]:
    """What a reader has to know besides the numbers."""
    if sentence := unmatched_seeds(comparison):
        yield sentence
    yield from unvalued_seeds(comparison)
    if comparison.differing_settings:
        yield f"The settings differ between the arms: {', '.join(comparison.differing_settings)}."
    if comparison.differing_environment:
        yield f"Not all runs were made alike: {', '.join(comparison.differing_environment)} differ."
    if comparison.reused:
        yield f"Reused: {plural(len(comparison.reused), 'finished run')}."
    if seeds := comparison.further_seeds:
        listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        yield f"Of the folder, finished already and counted too: {listed}."
    if comparison.flashback:
        yield f"Flashback: {comparison.flashback}."
    yield comparison.sentence


def report_failures(failures: Mapping[str, str]) -> int:
    """Name the runs that failed on stderr; returns the exit code."""
    for name, problem in group_failures(failures).items():
        typer.echo(f"failed: {name}: {problem}", err=True)
    return 1 if failures else 0


# ---------------------------------------------------------------- a report


def show_answers(report: Report) -> None:
    """Print what there is, the answers, and all methods with their means."""
    console = output()
    for line in answers(report):
        show_line(line)
    if report.has_overview:
        metrics = report.metrics if report.chosen else report_tables.OVERVIEW
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
    groups = {one.title: one.rows[setting] for one in report_tables.methods_tables(report, metrics)}
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
    for name, base, _, _, _, *tested in report_tables.against_table(report, ["average_accuracy"]).rows[setting]:
        table.add_row(name, base, *tested)
    return table
