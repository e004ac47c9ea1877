"""From runs to answers: tables, plots and one page that opens anywhere."""

from flashback.reports.page import html_page
from flashback.reports.pairings import Pairing, Report, read_report
from flashback.reports.plots import write_plots
from flashback.reports.rows import accuracy_rows, run_rows
from flashback.reports.series import square
from flashback.reports.tables import csv_of_runs, csv_table, latex_tables, markdown_tables
from flashback.reports.write import FORMATS, write_report

__all__ = [
    "FORMATS",
    "Pairing",
    "Report",
    "accuracy_rows",
    "csv_of_runs",
    "csv_table",
    "html_page",
    "latex_tables",
    "markdown_tables",
    "read_report",
    "run_rows",
    "square",
    "write_plots",
    "write_report",
]
