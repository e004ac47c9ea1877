"""Write a report in the forms asked for."""

from __future__ import annotations

from pathlib import Path

from flashback.errors import require, unknown
from flashback.files import write_atomically
from flashback.reports.data import (
    class_rows,
    csv_of_classes,
    csv_of_comparisons,
    csv_of_runs,
    csv_of_tasks,
    csv_of_tests,
)
from flashback.reports.page import html_page
from flashback.reports.report import Report
from flashback.reports.text import latex, markdown

WRITERS = {
    "html": (".html", html_page),
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", csv_of_comparisons),
    "runs-csv": (".runs.csv", csv_of_runs),
    "tasks-csv": (".tasks.csv", csv_of_tasks),
    "classes-csv": (".classes.csv", csv_of_classes),
    "against-csv": (".against.csv", csv_of_tests),
}
FORMATS = (*WRITERS, "all")


def write_report(report: Report, out: str | Path, form: str = "html") -> list[Path]:
    """Write a report.

    Args:
        report: What `read_report` returned.
        out: The file. Its suffix is replaced where it belongs to another form.
        form: One of the forms of `--format`; "all" writes them side by side.

    Returns:
        The files written.

    Raises:
        FlashbackError: There are no runs, or the runs lack what the form needs.
    """
    out = Path(out)
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    require(bool(report.pairings), "there is no finished run to report; train some with `flashback compare`")
    empty = {"classes-csv": not class_rows(report), "against-csv": not report.baseline}
    require(
        form != "against-csv" or not empty[form], "against-csv needs a method to test against; name one (--against)"
    )
    require(form != "classes-csv" or not empty[form], "these records have no accuracies by class; choose another form")
    written = []
    for name in [name for name in WRITERS if not empty.get(name)] if form == "all" else [form]:
        suffix, write = WRITERS[name]
        fits = form != "all" and suffix.endswith(out.suffix or "/")
        path = out if fits else with_suffix(out, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write(report))
        written.append(path)
    return written


def with_suffix(path: Path, suffix: str) -> Path:
    """`report.html` becomes `report.md`; a suffix that is none of ours stays part of the name."""
    ours = [one for one, _ in WRITERS.values()]
    return path.with_suffix(suffix) if path.suffix in ours else path.with_name(path.name + suffix)
