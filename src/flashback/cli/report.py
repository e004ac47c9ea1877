"""The command that turns runs into answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from flashback.cli.progress import output
from flashback.reports import Pairing, read_report, write_plots, write_report
from flashback.reports.pairings import Outcome
from flashback.reports.words import SETTING_TITLES, plural
from flashback.reports.write import EVIDENCE
from flashback.training.evaluation import SETTINGS

Folders = Annotated[list[Path], typer.Argument(help="Folders with finished runs, at any depth.")]
Out = Annotated[Path | None, typer.Option(help="The file to write; default: report.html in the first folder.")]
Form = Annotated[str, typer.Option("--format", help="html, md, latex, csv, runs-csv, all or evidence.")]
Plots = Annotated[Path | None, typer.Option(help="A folder for every chart as PNG and PDF.")]

SENTENCES = 10  # a longer list of answers is read by nobody in a terminal
OUTCOMES = {
    Outcome.BETTER: "significantly better with flashback",
    Outcome.WORSE: "significantly worse with flashback",
    Outcome.ALIKE: "without a significant difference",
    Outcome.UNTESTED: "that allow no test",
    Outcome.ONE_ARM: "with one arm alone",
}


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(folders: Folders, out: Out = None, form: Form = "html", plots: Plots = None) -> None:
    """Write a page with the answers of all finished runs.

    Every finished run below the folders is read; the page has tables and charts too.
    """
    found = read_report(folders)
    for name, reason in found.skipped.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
    written = write_report(found, out or folders[0] / "report.html", form)
    drawn = write_plots(found, plots) if plots is not None else []
    print_answers([] if form == EVIDENCE else found.pairings)
    output().print(f"Report: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
    if plots is not None:
        output().print(f"Plots: {plural(len(drawn), 'file')} in {plots}", soft_wrap=True, markup=False)


def print_answers(pairings: Sequence[Pairing]) -> None:
    """A sentence for each comparison; of many, how they came out."""
    sentences = [f"{pairing.name}: {pairing.answer(SETTINGS[0])}" for pairing in pairings]
    for sentence in sentences if len(sentences) <= SENTENCES else [summary(pairings)]:
        output().print(sentence, soft_wrap=True, markup=False)


def summary(pairings: Sequence[Pairing]) -> str:
    outcomes = Counter(pairing.outcome(SETTINGS[0]) for pairing in pairings)
    each = ", ".join(f"{count} {OUTCOMES[outcome]}" for outcome, count in sorted(outcomes.items()))
    setting = SETTING_TITLES[SETTINGS[0]]
    return f"{plural(len(pairings), 'comparison')} by average accuracy, {setting}: {each}. The report has the answers."
