"""The results as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.against import tested_against, untested
from flashback.reports.markdown import plain, table_lines
from flashback.reports.overview import (
    AGAINST_HEAD,
    AGAINST_NOTE,
    OVERVIEW,
    MethodRow,
    against_cells,
    method_groups,
    tests_against,
)
from flashback.reports.pairings import Pairing, Report
from flashback.reports.printed import inconsistencies, notes_on, references_beside
from flashback.reports.reading import Run
from flashback.reports.rows import (
    ABOUT,
    TASK_COLUMNS,
    about_run,
    accuracy_rows,
    by_classifier,
    metrics_in,
    settings_in,
    varying_settings,
)
from flashback.reports.sections import remarks
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    SETTING_TITLES,
    TITLES,
    heading,
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
    lines = [f"# {report.title}", "", f"{plain(report.contents)}.", ""]
    lines += [*(f"- {plain(remark)}" for remark in report.code_remarks), ""] if report.code_remarks else []
    for setting in SETTINGS:
        lines += [f"## {SETTING_TITLES[setting].capitalize()}", ""]
        if report.comparisons:
            lines += [
                f"- **{plain(pairing.name)}.** {plain(pairing.answer(setting))}" for pairing in report.comparisons
            ]
            lines += [f"- {plain(report.singles_in_words)}."] if report.singles else []
            lines += ["", *markdown_table(Report(report.comparisons, [], {}, chosen=report.chosen), setting), ""]
        if report.has_overview:
            lines += markdown_methods(report, setting)
        lines += markdown_against(report, setting)
    lines += [f"{PERCENT}{BRACKETS if report.comparisons else ''}. Arrows say which way is better."]
    said = [*report.seed_remarks, *report.value_remarks, *remarks(report)]
    lines += ["", *(f"- {plain(remark)}" for remark in said)] if said else []
    lines += markdown_printed(report)
    if report.skipped:
        lines += ["", "## Left out", "", *(f"- {plain(name)}: {plain(why)}" for name, why in report.skipped.items())]
    return "\n".join(lines) + "\n"


def markdown_table(report: Report, setting: str) -> list[str]:
    rows = [row for block in blocks(report, setting) for row in block]
    return table_lines(["method", "arm", *map(heading, report.metrics)], rows, texts=2)


def markdown_methods(report: Report, setting: str) -> list[str]:
    """A table for every protocol."""
    lines = []
    groups = method_groups(report, setting, report.metrics)
    for name, group in groups.items():
        where = f" on {plain(name)}" if len(groups) > 1 else ""
        rows = [[row.method.name, str(row.seeds), *row.cells] for row in group]
        table = table_lines(["method", "seeds", *map(heading, report.metrics)], rows)
        lines += [f"All methods{where}, best first:", "", *table, ""]
    return lines


def markdown_against(report: Report, setting: str) -> list[str]:
    """Nothing unless the report is asked to test against a method."""
    if not report.baseline:
        return []
    answers = [f"- **{plain(one.name)}.** {plain(one.answer(setting))}" for one in tested_against(report)]
    missing = [f"- {plain(sentence)}" for sentence in untested(report)]
    tests = against_cells(report, setting, report.metrics if report.chosen else OVERVIEW)
    table = ["", *table_lines(AGAINST_HEAD, tests, texts=3), "", AGAINST_NOTE] if tests else []
    return [f"### Against {plain(report.baseline)}", "", *answers, *missing, *table, ""]


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
    """For each setting all methods, one row each, and the comparisons with their differences."""
    compared = Report(report.comparisons, [], {}, chosen=report.chosen)
    tables = [latex_methods(report, setting) for setting in SETTINGS] if report.has_overview else []
    tables += [latex_comparisons(compared, setting) for setting in SETTINGS] if report.comparisons else []
    return "\n".join(["% needs \\usepackage{booktabs}", *(f"% {latex(line)}" for line in report.code_remarks), *tables])


def latex_comparisons(report: Report, setting: str) -> str:
    groups = [[latex_row(row) for row in said_once(block)] for block in blocks(report, setting)]
    about = "; difference with $p$ of the paired $t$-test by seed in brackets"
    return latex_table(report, setting, f"flashback-{setting}", about, report.seed_remarks, ["method", "arm"], groups)


def said_once(block: Sequence[Sequence[str]]) -> list[list[str]]:
    """A name that is that of the row above is left out."""
    before = ["", *(row[0] for row in block)]
    return [["" if row[0] == above else row[0], *row[1:]] for row, above in zip(block, before, strict=False)]


def latex_methods(report: Report, setting: str) -> str:
    groups = {
        name: list(map(latex_method, rows)) for name, rows in method_groups(report, setting, report.metrics).items()
    }
    about, head = "; the best of each metric in bold", ["method", "seeds"]
    if len(groups) > 1:  # each under a line with its name
        about += " within each block"
        span = rf"    \multicolumn{{{len(head) + len(report.metrics)}}}{{l}}"
        groups = {name: [rf"{span}{{\emph{{{latex(name)}}}}} \\", *rows] for name, rows in groups.items()}
    return latex_table(report, setting, f"methods-{setting}", about, report.value_remarks, head, list(groups.values()))


def latex_method(row: MethodRow) -> str:
    cells = [
        rf"\textbf{{{latex(cell)}}}" if best else latex(cell) for cell, best in zip(row.cells, row.best, strict=True)
    ]
    return latex_line([latex(row.method.name), str(row.seeds), *cells])


def latex_table(
    report: Report,
    setting: str,
    label: str,
    about: str,
    remarks: Sequence[str],
    head: Sequence[str],
    groups: Sequence[Sequence[str]],
) -> str:
    """A rule stands above every group of rows."""
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{SETTING_TITLES[setting].capitalize()} results on {latex(report.where)} in percent: mean $\pm$ "
        rf"sample deviation over seeds{about}.{''.join(f' {latex(remark)}' for remark in remarks)}}}",
        rf"  \label{{tab:{label.replace('_', '-')}}}",
        rf"  \begin{{tabular}}{{ll{'r' * len(report.metrics)}}}",
        r"    \toprule",
        latex_row([*head, *map(heading, report.metrics)]),
    ]
    rows = [line for group in groups for line in (r"    \midrule", *group)]
    return "\n".join([*lines, *rows, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def latex_row(cells: Sequence[str]) -> str:
    return latex_line(list(map(latex, cells)))


def latex_line(cells: Sequence[str]) -> str:
    return "    " + " & ".join(cells) + r" \\"


def latex(text: str) -> str:
    escaped = "".join(LATEX_SPECIALS.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", escaped)  # a minus, not a hyphen


# ---------------------------------------------------------------- both

PERCENT = "Mean ± sample deviation over seeds, in percent"
BRACKETS = "; difference with p of the paired t-test by seed in brackets"


def blocks(report: Report, setting: str) -> list[list[list[str]]]:
    """The rows of pairings: each with its arms and their difference; a host that several share stands there once."""
    shared: dict[tuple[str, ...], list[Pairing]] = {}
    for pairing in report.pairings:
        alone = () if pairing.of(HOST) else (pairing.name,)
        shared.setdefault(tuple(run.name for run in pairing.of(HOST)) or alone, []).append(pairing)
    return [block(report, group, setting) for group in shared.values()]


def block(report: Report, group: Sequence[Pairing], setting: str) -> list[list[str]]:
    if len(group) == 1:
        return [[group[0].name, *cells] for cells in arm_rows(group[0], setting, report.metrics)]
    (_, *host), *_ = arm_rows(group[0], setting, report.metrics)
    rest = [[one.name, *cells] for one in group for cells in list(arm_rows(one, setting, report.metrics))[1:]]
    return [[report.method_of(group[0], HOST).name, ARM_TITLES[HOST], *host], *rest]


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
    return signed(row.test.difference) + in_brackets(row)


def in_brackets(row: Row) -> str:
    """p; without one, why, where a reader who sees the number of seeds would expect it."""
    if row.test.p is not None:
        return f" ({p_value(row.test.p)})"
    if row.test.pairs > 1:
        return " (alike)"
    return " (1 pair)" if max(map(len, row.values.values())) > 1 else ""


# ---------------------------------------------------------------- CSV

COLUMNS = (
    "method", "host", "benchmark", "recipe", "setting", "metric", "host_mean", "host_deviation", "host_seeds",
    "flashback_mean", "flashback_deviation", "flashback_seeds", "difference", "low", "high", "t", "p", "pairs",
    "budget", "host_printed", "flashback_printed", "printed_in",
)  # fmt: skip


RUN_COLUMNS = (*ABOUT, "setting", "classifier", "metric", "value")
AGAINST_COLUMNS = (
    "method", "against", "benchmark", "setting", "metric", "against_mean", "against_deviation", "against_seeds",
    "method_mean", "method_deviation", "method_seeds", "difference", "low", "high", "t", "p", "p_adjusted", "pairs",
    "differing",
)  # fmt: skip
Cells = Iterable[str | float | None]


def csv_table(report: Report) -> str:
    """One line per method, setting and metric, in full precision, with the settings that differ among the runs."""
    varying = varying_settings(report.runs)
    rows = (
        [*csv_values(pairing, row), *settings_in(pairing.last_run, varying).values()]
        for pairing in report.pairings
        for row in pairing.comparison.rows
    )
    return csv_text([*COLUMNS, *varying], rows)


def csv_of_runs(report: Report) -> str:
    """One line per run, setting, classifier and metric, in full precision; empty where a metric has no value.

    A run of the host alone stands under every method that it is compared in.
    """
    varying = varying_settings(report.runs)
    runs = ((pairing, run) for pairing in report.pairings for run in pairing.runs.values())
    rows = (
        [*values, *settings_in(run, varying).values()] for pairing, run in runs for values in run_values(pairing, run)
    )
    return csv_text([*RUN_COLUMNS, *varying], rows)


def csv_of_tasks(report: Report) -> str:
    """One line per run, setting, classifier and pair of tasks: the accuracy on `task` after `after_task`."""
    varying = varying_settings(report.runs)
    return csv_text([*TASK_COLUMNS, *varying], (row.values() for row in accuracy_rows(report)))


def csv_against(report: Report) -> str:
    """One line per method, setting and metric: its test against the method that was named."""
    rows = []
    for setting in SETTINGS:
        for versus, row, adjusted in tests_against(report, setting, report.metrics):
            sides = [(row.mean[side], row.deviation[side], seeds_with_value(row, side)) for side in (HOST, FLASHBACK)]
            names = (versus.method.name, versus.base.name, versus.base.any_run.benchmark, setting, row.metric)
            test = row.test
            tested = (test.difference, test.low, test.high, test.t, test.p, adjusted, test.pairs)
            rows.append([*names, *sides[0], *sides[1], *tested, "; ".join(versus.differing)])
    return csv_text(AGAINST_COLUMNS, rows)


def csv_text(columns: Sequence[str], rows: Iterable[Cells]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([unspoken(value) for value in values] for values in rows)
    return text.getvalue()


def run_values(pairing: Pairing, run: Run) -> Iterator[list[str | float | None]]:
    for setting in SETTINGS:
        for classifier, record in by_classifier(run).items():
            for name, value in metrics_in(record, setting).items():
                yield [*about_run(pairing, run).values(), setting, classifier, name, value]


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
