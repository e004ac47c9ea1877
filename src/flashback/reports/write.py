"""Writing a report in the forms asked for."""

from __future__ import annotations

from pathlib import Path

from flashback.errors import require, unknown
from flashback.files import write_atomically
from flashback.reports.page import html_page
from flashback.reports.pairings import Report
from flashback.reports.tables import (
    csv_against,
    csv_of_runs,
    csv_of_tasks,
    csv_table,
    latex_tables,
    markdown_tables,
)

WRITERS = {
    "html": (".html", html_page),
    "md": (".md", markdown_tables),
    "latex": (".tex", latex_tables),
    "csv": (".csv", csv_table),
    "runs-csv": (".runs.csv", csv_of_runs),
    "tasks-csv": (".tasks.csv", csv_of_tasks),
    "against-csv": (".against.csv", csv_against),
}
AGAINST = "against-csv"  # there is nothing in it unless a method is named
FORMATS = (*WRITERS, "all")


def write_report(report: Report, out: str | Path, form: str = "html") -> list[Path]:
    """Write one form, or all of them side by side; returns the files written.

    The forms are those of `--format`: html, md, latex, csv, runs-csv, tasks-csv, against-csv and all.
    """
    out = Path(out)
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    require(bool(report.pairings), "there is no finished run to report; train some with `flashback compare`")
    require(form != AGAINST or bool(report.baseline), f"{AGAINST} needs a method to test against; name one (--against)")
    everything = [name for name in WRITERS if name != AGAINST or report.baseline]
    written = []
    for suffix, write in (WRITERS[name] for name in (everything if form == "all" else [form])):
        named = form != "all" and suffix.endswith(out.suffix or "/")  # the file asked for ends as it should
        path = out if named else replace_suffix(out, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write(report))
        written.append(path)
    return written


def replace_suffix(path: Path, suffix: str) -> Path:
    """`report.html` becomes `report.md`; a name that ends otherwise keeps its end."""
    known = [own for own, _ in WRITERS.values()]
    return path.with_suffix(suffix) if path.suffix in known else path.with_name(path.name + suffix)
