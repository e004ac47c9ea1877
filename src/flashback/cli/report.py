"""The command that turns runs into answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashback.cli import tables
from flashback.cli.progress import output
from flashback.errors import unknown
from flashback.records.terms import SETTINGS
from flashback.reports import FORMATS, Pairing, Report, read_report, write_plots, write_report
from flashback.reports.against import tested_against, untested
from flashback.reports.overview import OVERVIEW
from flashback.reports.pairings import Outcome
from flashback.reports.sections import remarks
from flashback.reports.words import SETTING_TITLES, plural

Folders = Annotated[list[Path], typer.Argument(help="Folders with finished runs, at any depth.")]
Out = Annotated[Path | None, typer.Option(help="The file to write; default: report.html in the first folder.")]
Form = Annotated[
    str,
    typer.Option("--format", help="html, md, latex, csv, runs-csv, tasks-csv, against-csv or all."),
]
Against = Annotated[
    str, typer.Option(metavar="METHOD", help="Test all other methods against this one, by seed, e.g. icarl.")
]
Metrics = Annotated[
    str, typer.Option(metavar="LIST", help="The metrics of the tables, in this order, e.g. AA,F; default: all.")
]
Plots = Annotated[Path | None, typer.Option(help="A folder for every chart as PNG and PDF.")]

SENTENCES = 10  # a longer list of answers is read by nobody in a terminal
OUTCOMES = {
    Outcome.BETTER: "significantly better with flashback",
    Outcome.WORSE: "significantly worse with flashback",
    Outcome.ALIKE: "without a significant difference",
    Outcome.UNTESTED: "that allow no test",
}


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(
    folders: Folders,
    out: Out = None,
    form: Form = "html",
    plots: Plots = None,
    against: Against = "",
    metrics: Metrics = "",
) -> None:
    """Write a page with the answers of all finished runs.

    Every finished run below the folders is read; the page has tables and charts too.
    """
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    found = read_report(folders, against=against, metrics=[name for name in metrics.split(",") if name.strip()])
    for name, reason in found.skipped.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
    written = write_report(found, out or folders[0] / "report.html", form)
    drawn = write_plots(found, plots) if plots is not None else []
    say_answers(found)
    output().print(f"Report: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    if plots is not None:
        output().print(f"Plots: {plural(len(drawn), 'file')} in {plots}", soft_wrap=True, markup=False)


def say_answers(found: Report) -> None:
    """What a report begins with, for a terminal: what there is, the answers, and all methods with their means."""
    console = output()
    for line in answers(found):
        console.print(line, soft_wrap=True, markup=False)
    if found.has_overview:
        metrics = found.metrics if found.chosen else OVERVIEW
        for setting in SETTINGS:
            console.print(tables.methods_table(found, setting, metrics))
        for line in found.empty(metrics):
            console.print(line, soft_wrap=True, markup=False)
    if pairs := tested_against(found):
        console.print(tables.against_table(found, SETTINGS[0]))
    apart = [f"{versus.name}: {versus.reservation}." for versus in pairs if versus.reservation]
    for line in [*apart, *untested(found)]:
        console.print(line, soft_wrap=True, markup=False)


def answers(found: Report) -> Iterator[str]:
    """A sentence for each comparison; of many, how they came out."""
    yield f"{found.contents}."
    yield from found.code_remarks
    if len(found.comparisons) > SENTENCES:
        yield summary(found.comparisons)
    else:
        yield from (f"{pairing.name}: {pairing.answer(SETTINGS[0])}" for pairing in found.comparisons)
        yield from remarks(Report(found.comparisons, [], {}))
    if found.singles and found.comparisons:
        yield f"{found.singles_in_words}."


def summary(comparisons: Sequence[Pairing]) -> str:
    outcomes = Counter(pairing.outcome(SETTINGS[0]) for pairing in comparisons)
    each = ", ".join(f"{count} {OUTCOMES[outcome]}" for outcome, count in sorted(outcomes.items()))
    return f"By average accuracy, {SETTING_TITLES[SETTINGS[0]]}: {each}. The report has the answers."
