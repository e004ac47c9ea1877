"""Write a report in the forms asked for."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flashback.errors import printable, require, unknown
from flashback.files import make_folder, write_atomically
from flashback.reports import data
from flashback.reports.page import html_page
from flashback.reports.report import Report
from flashback.reports.text import latex, markdown

TEXTS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "html": (".html", html_page),
    "md": (".md", markdown),
    "latex": (".tex", latex),
}
ROWS: dict[str, tuple[str, Callable[[Report], list[dict[str, Any]]]]] = {
    "csv": (".csv", data.comparison_rows),
    "runs-csv": (".runs.csv", data.metric_rows),
    "tasks-csv": (".tasks.csv", data.accuracy_rows),
    "classes-csv": (".classes.csv", data.class_rows),
    "against-csv": (".against.csv", data.against_rows),
}
SUFFIXES = {name: suffix for name, (suffix, _) in (TEXTS | ROWS).items()}
FORMATS = (*SUFFIXES, "all")


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
    allowed = form != "against-csv" or bool(report.baseline)
    require(allowed, "against-csv needs a method to test against; name one (--against)")
    written = []
    for name in SUFFIXES if form == "all" else [form]:
        rows = ROWS[name][1](report) if name in ROWS else []
        require(bool(rows) or form != "classes-csv", "these records have no accuracies by class; choose another form")
        if form == "all" and name in ROWS and not rows:
            continue
        fits = form != "all" and SUFFIXES[name].endswith(out.suffix or "/")
        path = out if fits else with_suffix(out, SUFFIXES[name])
        make_folder(path.parent)
        write_atomically(path, TEXTS[name][1](report) if name in TEXTS else csv_text(rows))
        written.append(path)
    return written


def with_suffix(path: Path, suffix: str) -> Path:
    """`report.html` becomes `report.md`; any other suffix stays part of the name."""
    return path.with_suffix(suffix) if path.suffix in SUFFIXES.values() else path.with_name(path.name + suffix)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    writer.writerows([csv_cell(value) for value in row.values()] for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """Texts without control characters; spreadsheets take one that starts like a formula for a formula."""
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value.startswith(("=", "+", "-", "@", "\t", "\r")) else printable(value)
