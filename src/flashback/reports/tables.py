"""The results as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.markdown import plain, table_lines
from flashback.reports.pairings import Pairing, Report
from flashback.reports.printed import inconsistencies, notes_on, references_beside
from flashback.reports.reading import Run
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    HIGHER_IS_BETTER,
    SETTING_TITLES,
    TITLES,
    seeds_with_value,
    signed,
    spread,
)
from flashback.reports.words import probability as p_value
from flashback.studies.comparison import Row

LATEX_SPECIALS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "|": r"\textbar{}",
}  # fmt: skip


# ---------------------------------------------------------------- Markdown


def markdown_tables(report: Report) -> str:
    lines = ["# Does flashback help?", "", f"{plain(report.contents)}.", ""]
    for setting in SETTINGS:
        lines += [f"## {SETTING_TITLES[setting].capitalize()}", ""]
        lines += [f"- **{plain(pairing.name)}.** {plain(pairing.answer(setting))}" for pairing in report.comparisons]
        lines += [f"- {plain(report.singles_in_words)}."] if report.singles else []
        lines += ["", *markdown_table(report, setting), ""]
    lines += [
        "Mean ± sample deviation over seeds, in percent; difference with p of the paired t-test by seed in brackets. "
        "Arrows say which way is better.",
    ]
    lines += ["", *(f"- {plain(remark)}" for remark in report.seed_remarks)] if report.seed_remarks else []
    lines += markdown_printed(report)
    if report.skipped:
        lines += ["", "## Left out", "", *(f"- {plain(name)}: {plain(why)}" for name, why in report.skipped.items())]
    return "\n".join(lines) + "\n"


def markdown_table(report: Report, setting: str) -> list[str]:
    metrics = report.metrics
    rows = [[pairing.name, *cells] for pairing in report.pairings for cells in arm_rows(pairing, setting, metrics)]
    return table_lines(["method", "arm", *map(heading, metrics)], rows, texts=2)


def markdown_printed(report: Report) -> list[str]:
    rows = []
    for pairing in report.pairings:
        for printed in pairing.printed:
            row = pairing.row(printed.setting, printed.metric)
            name = f"{pairing.name}, {SETTING_TITLES[printed.setting]}"
            ours = [spread(row.mean[arm], row.deviation[arm]) for arm in ARMS]
            theirs = [printed.text(arm) or ABSENT for arm in ARMS]
            rows.append([name, TITLES[printed.metric][0], printed.where, theirs[0], ours[0], theirs[1], ours[1]])
    if not rows:
        return []
    head = ["method", "metric", "printed in", "host, printed", "host, here", "flashback, printed", "flashback, here"]
    shown = [printed for pairing in report.pairings for printed in pairing.printed]
    said = {
        "To be known of printed values": notes_on(shown),
        "Quoted in the same tables, not run here": references_beside(shown),
        "Printed values that do not follow from their tables": inconsistencies(report.benchmarks),
    }
    what = [["", f"{about}:", "", *(f"- {plain(one)}" for one in found)] for about, found in said.items() if found]
    return ["", "## The paper", "", *table_lines(head, rows, texts=3), *(line for lines in what for line in lines)]


# ---------------------------------------------------------------- LaTeX


def latex_tables(report: Report) -> str:
    return "\n".join(["% needs \\usepackage{booktabs}", *(latex_table(report, setting) for setting in SETTINGS)])


def latex_table(report: Report, setting: str) -> str:
    metrics, where = report.metrics, latex(report.where)
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{SETTING_TITLES[setting].capitalize()} results on {where} in percent: mean $\pm$ sample "
        rf"deviation over seeds; difference with $p$ of the paired $t$-test by seed in brackets."
        rf"{latex_remarks(report)}}}",
        rf"  \label{{tab:flashback-{setting.replace('_', '-')}}}",
        rf"  \begin{{tabular}}{{ll{'r' * len(metrics)}}}",
        r"    \toprule",
        latex_row(["method", "arm", *map(heading, metrics)]),
    ]
    for pairing in report.pairings:
        lines.append(r"    \midrule")
        for number_, cells in enumerate(arm_rows(pairing, setting, metrics)):
            lines.append(latex_row([pairing.name if number_ == 0 else "", *cells]))
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def latex_remarks(report: Report) -> str:
    return "".join(f" {latex(remark)}" for remark in report.seed_remarks)


def latex_row(cells: Sequence[str]) -> str:
    return "    " + " & ".join(map(latex, cells)) + r" \\"


def latex(text: str) -> str:
    escaped = "".join(LATEX_SPECIALS.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", escaped)  # a minus, not a hyphen


# ---------------------------------------------------------------- both


def heading(metric: str) -> str:
    return f"{TITLES[metric][0]} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def arm_rows(pairing: Pairing, setting: str, metrics: Sequence[str]) -> Iterator[list[str]]:
    """One row per arm, as the paper has them, and their difference."""
    rows = [pairing.row(setting, metric) if metric in pairing.metrics else None for metric in metrics]
    for arm in pairing.arms:
        yield [ARM_TITLES[arm], *(spread(row.mean[arm], row.deviation[arm]) if row else ABSENT for row in rows)]
    if len(pairing.arms) == len(ARMS):
        yield ["difference", *(change(row) for row in rows)]


def change(row: Row | None) -> str:
    if row is None or row.test.difference is None:
        return ABSENT
    bracket = "" if row.test.p is None else f" ({p_value(row.test.p)})"
    return signed(row.test.difference) + bracket


# ---------------------------------------------------------------- CSV

COLUMNS = (
    "method", "host", "benchmark", "recipe", "setting", "metric", "host_mean", "host_deviation", "host_seeds",
    "flashback_mean", "flashback_deviation", "flashback_seeds", "difference", "low", "high", "t", "p", "pairs",
    "budget", "host_printed", "flashback_printed", "printed_in",
)  # fmt: skip


RUN_COLUMNS = (
    "method", "folder", "host", "benchmark", "recipe", "arm", "seed", "setting", "classifier", "metric", "value",
)  # fmt: skip


def csv_table(report: Report) -> str:
    """One line per method, setting and metric, in full precision."""
    return csv_text(
        COLUMNS, (csv_values(pairing, row) for pairing in report.pairings for row in pairing.comparison.rows)
    )


def csv_of_runs(report: Report) -> str:
    """One line per run, setting, classifier and metric, in full precision; empty where a metric has no value.

    A run of the host alone stands under every method that it is compared in.
    """
    runs = ((pairing.name, run) for pairing in report.pairings for run in pairing.runs.values())
    return csv_text(RUN_COLUMNS, (values for method, run in runs for values in run_values(method, run)))


def csv_text(columns: Sequence[str], rows: Iterable[Iterable[str | float | None]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([unspoken(value) for value in values] for values in rows)
    return text.getvalue()


def run_values(method: str, run: Run) -> Iterator[list[str | float | None]]:
    about = [method, run.name, run.host, run.benchmark, run.recipe, run.arm, run.seed]
    for setting in SETTINGS:
        for classifier, record in {run.classifier: run.record, **run.others}.items():
            measured = {name: value for name, value in record.results[setting].items() if name != "matrix"}
            yield from ([*about, setting, classifier, name, value] for name, value in measured.items())


def csv_values(pairing: Pairing, row: Row) -> Iterator[str | float | None]:
    comparison, test = pairing.comparison, row.test
    yield from (pairing.name, comparison.host, comparison.benchmark, comparison.recipe, row.setting, row.metric)
    for arm in ARMS:
        yield from (row.mean[arm], row.deviation[arm], seeds_with_value(row, arm))
    yield from (test.difference, test.low, test.high, test.t, test.p, test.pairs, comparison.budget)
    found = [printed for printed in pairing.printed if (printed.setting, printed.metric) == (row.setting, row.metric)]
    for arm in (HOST, FLASHBACK):
        yield "; ".join(str(printed.value[arm]) for printed in found if arm in printed.value)
    yield "; ".join(printed.where for printed in found)


def unspoken(value: str | float | None) -> str | float | None:
    """Spreadsheets take text that starts like a formula for one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
