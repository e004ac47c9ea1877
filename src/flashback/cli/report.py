"""The command that turns runs into answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashback.cli.progress import output
from flashback.reports import Report, read_report, write_plots, write_report
from flashback.reports.words import plural
from flashback.training.evaluation import SETTINGS

Folders = Annotated[list[Path], typer.Argument(help="Folders with finished runs, at any depth.")]
Out = Annotated[Path | None, typer.Option(help="The file to write; default: report.html in the first folder.")]
Form = Annotated[str, typer.Option("--format", help="html, md, latex, csv, all or evidence.")]
Plots = Annotated[Path | None, typer.Option(help="A folder for every chart as PNG and PDF.")]


def register(app: typer.Typer) -> None:
    app.command()(report)


def report(folders: Folders, out: Out = None, form: Form = "html", plots: Plots = None) -> None:
    """Read every finished run below the folders and write one page with the answers, tables and charts."""
    found = read_report(folders)
    for name, reason in found.skipped.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
    written = write_report(found, out or folders[0] / "report.html", form)
    drawn = write_plots(found, plots) if plots is not None else []
    print_answers(found, written)
    if plots is not None:
        output().print(f"Plots: {plural(len(drawn), 'file')} in {plots}", soft_wrap=True, markup=False)


def print_answers(found: Report, written: list[Path]) -> None:
    console = output()
    for pairing in found.pairings:
        console.print(f"{pairing.name}: {pairing.answer(SETTINGS[0])}", soft_wrap=True, markup=False)
    console.print(f"Report: {', '.join(map(str, written))}", soft_wrap=True, markup=False)
