"""The command that turns runs into answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashback.cli.console import show_line
from flashback.errors import require, unknown

Folders = Annotated[list[Path], typer.Argument(help="Folders with finished runs, at any depth.")]
Out = Annotated[Path | None, typer.Option(help="The file to write; default: report.html in the first folder.")]
Form = Annotated[
    str,
    typer.Option(
        "--format", help="html, md, latex, csv, runs-csv, tasks-csv, classes-csv, against-csv or all (of them)."
    ),
]
Against = Annotated[
    str, typer.Option(metavar="METHOD", help="Test all other methods against this one, by seed, e.g. icarl.")
]
Metrics = Annotated[
    str, typer.Option(metavar="LIST", help="The metrics of the tables, in this order, e.g. AA,F; default: all.")
]
References = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A YAML file of published values to show beside ours.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=FOLDER", help="A name for the runs below a folder; may be repeated."),
]
Plots = Annotated[Path | None, typer.Option(help="A folder for every chart as PNG and PDF.")]


def report(
    folders: Folders,
    out: Out = None,
    form: Form = "html",
    plots: Plots = None,
    against: Against = "",
    metrics: Metrics = "",
    references: References = None,
    labels: Labels = None,
) -> None:
    """Write a page with the answers of all finished runs.

    Every finished run below the folders is read; the page has tables and charts too.
    """
    from flashback.cli.tables import show_answers
    from flashback.reports import FORMATS, read_report, write_plots, write_report
    from flashback.reports.words import plural

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    names = dict(map(parse_label, labels or []))
    chosen = [name for name in metrics.split(",") if name.strip()]
    summary = read_report(folders, against=against, metrics=chosen, references=references, labels=names)
    for name, reason in summary.skipped.items():
        typer.echo(f"left out: {name}: {reason}", err=True)
    written = write_report(summary, out or folders[0] / "report.html", form)
    drawn = write_plots(summary, plots) if plots is not None else []
    show_answers(summary)
    show_line(f"Report: {', '.join(map(str, written))}")
    if plots is not None:
        show_line(f"Plots: {plural(len(drawn), 'file')} in {plots}")


def parse_label(text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    require(bool(name.strip() and folder), f"--label takes NAME=FOLDER, such as 'our net=runs/mynet', not {text}")
    return name.strip(), folder
