"""Tables as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from flashback.records.terms import SETTINGS
from flashback.reports.report import Report
from flashback.reports.tables import (
    METHODS_NOTE,
    MOST_CLASSES,
    OVERVIEW,
    Rows,
    Table,
    against_table,
    arms_table,
    classes_table,
    methods_tables,
    references_table,
)
from flashback.reports.words import SETTING_TITLES

LATEX_SPECIALS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "|": r"\textbar{}",
}  # fmt: skip


# ---------------------------------------------------------------- Markdown


def markdown(report: Report) -> str:
    lines = [f"# {report.title}", "", f"{plain(report.contents)}."]
    lines += [f"All methods: {plain(report.shared_changes)}."] if report.shared_changes else []
    lines += ["", *bullets(report.code_remarks)] if report.code_remarks else []
    arms, methods = arms_table(report), methods_tables(report, report.metrics)
    tests = against_table(report, report.metrics if report.chosen else OVERVIEW)
    for setting in SETTINGS:
        lines += ["", f"## {SETTING_TITLES[setting].capitalize()}"]
        if report.comparisons:
            lines += ["", *(f"- **{plain(p.name)}.** {plain(p.answer(setting))}" for p in report.comparisons)]
            lines += [f"- {plain(report.singles_in_words)}."] if report.singles else []
            lines += table_of(arms, setting, "Results")
        for table in methods:
            lines += table_of(table, setting, f"{table.title}, best first")
        if report.baseline:
            answers = [f"{test.name}. {test.answer(setting)}" for test in report.tests]
            lines += ["", f"### Against {plain(report.baseline)}", "", *bullets([*answers, *report.untested])]
            lines += table_of(tests, setting, tests.title)
    notes = [*(arms.notes if arms else []), *([METHODS_NOTE] if methods else []), *(tests.notes if tests else [])]
    remarks = [*report.seed_remarks, *report.difference_remarks]
    lines += ["", *bullets([*notes, *remarks])]
    for table in classes_table(report):
        if len(table.rows[""]) <= MOST_CLASSES:
            lines += ["", f"## {table.title}", *table_of(table, "", table.notes[0])]
    if published := references_table(report):
        lines += ["", f"## {published.title}"]
        for setting in SETTINGS:
            lines += table_of(published, setting, SETTING_TITLES[setting].capitalize())
        lines += ["", *bullets(published.notes)]
    if report.skipped:
        lines += ["", "## Left out", "", *bullets(f"{name}: {reason}" for name, reason in report.skipped.items())]
    return "\n".join(lines) + "\n"


def table_of(table: Table, setting: str, title: str) -> list[str]:
    """A Markdown table under its title; nothing where it has no rows."""
    rows = table.rows.get(setting)
    rule = ["---" if column < table.texts else "---:" for column in range(len(table.columns))]
    lines = [rule, *([plain(cell) for cell in row] for row in rows or [])]
    head = ["", f"{plain(title)}:", "", _line(map(plain, table.columns))]
    return [*head, *map(_line, lines)] if rows else []


def bullets(sentences: Iterable[str]) -> list[str]:
    return [f"- {plain(sentence)}" for sentence in sentences]


def plain(text: str) -> str:
    """Text that Markdown takes literally: no markup, no HTML, no new cell, no new line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


# ---------------------------------------------------------------- LaTeX


def latex(report: Report) -> str:
    """For each setting the table of all methods and that of the comparisons, with booktabs."""
    blocks = ["% needs \\usepackage{booktabs}", *(f"% {escaped(remark)}" for remark in report.code_remarks)]
    methods, arms = methods_tables(report, report.metrics), arms_table(report)
    for setting in SETTINGS if methods else ():
        groups = [table.rows[setting] for table in methods]
        heads = [table.title.removeprefix("Methods on ") for table in methods] if len(methods) > 1 else []
        about = "; the best of each metric in bold" + (" within each block" if heads else "")
        blocks.append(latex_table(report, setting, "methods", about, methods[0].columns, groups, heads))
    for setting in SETTINGS if arms else ():
        rows = [row if k % 3 == 0 else ["", *row[1:]] for k, row in enumerate(arms.rows[setting])]
        groups = [rows[k : k + 3] for k in range(0, len(rows), 3)]
        about = "; difference with $p$ of the paired $t$-test by seed in brackets"
        about += "".join(f". {escaped(remark.rstrip('.'))}" for remark in report.seed_remarks)
        blocks.append(latex_table(report, setting, "flashback", about, arms.columns, groups))
    return "\n".join(blocks)


def latex_table(
    report: Report,
    setting: str,
    label: str,
    about: str,
    columns: Sequence[str],
    groups: Sequence[Rows],
    heads: Sequence[str] = (),
) -> str:
    """One table; a rule stands above every group of rows, and its head where it has one."""
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{SETTING_TITLES[setting].capitalize()} results on {escaped(report.where)} in percent: "
        rf"mean $\pm$ sample deviation over seeds{about}.}}",
        rf"  \label{{tab:{label}-{setting.replace('_', '-')}}}",
        rf"  \begin{{tabular}}{{ll{'r' * len(report.metrics)}}}",
        r"    \toprule",
        latex_row(columns),
    ]
    for group, head in zip_longest(groups, heads):
        lines.append(r"    \midrule")
        if head:
            lines.append(rf"    \multicolumn{{{len(columns)}}}{{l}}{{\emph{{{escaped(head)}}}}} \\")
        lines += map(latex_row, group)
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def latex_row(cells: Sequence[str]) -> str:
    texts = [rf"\textbf{{{escaped(cell)}}}" if "sure" in getattr(cell, "kind", "") else escaped(cell) for cell in cells]
    return "    " + " & ".join(texts) + r" \\"


def escaped(text: str) -> str:
    characters = "".join(LATEX_SPECIALS.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", characters)  # a minus, not a hyphen
