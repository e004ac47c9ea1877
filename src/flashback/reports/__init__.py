"""Reports on finished runs: tables, plots and one page that opens anywhere."""

from flashback.reports.data import accuracy_rows, class_rows, run_rows
from flashback.reports.plots import write_plots
from flashback.reports.report import Report, read_report
from flashback.reports.series import square
from flashback.reports.write import FORMATS, write_report

__all__ = [
    "FORMATS",
    "Report",
    "accuracy_rows",
    "class_rows",
    "read_report",
    "run_rows",
    "square",
    "write_plots",
    "write_report",
]
