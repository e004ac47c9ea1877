"""Tables as Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flashback.records.terms import SETTINGS
from flashback.reports.report import Report
from flashback.reports.tables import (
    METHODS_NOTE,
    MOST_CLASSES,
    OVERVIEW,
    Cell,
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
    rows = table.rows.get(setting)
    return ["", f"{plain(title)}:", "", *table_lines(table.columns, rows, table.texts)] if rows else []


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A Markdown table; its first `texts` columns hold words and the others numbers."""
    rule = ["---" if column < texts else "---:" for column in range(len(head))]
    return [_line(map(plain, head)), _line(rule), *(_line(map(plain, row)) for row in rows)]


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
        groups = {
            table.title.removeprefix("Methods on "): list(map(latex_row, table.rows[setting])) for table in methods
        }
        about = "; the best of each metric in bold" + (" within each block" if len(groups) > 1 else "")
        if len(groups) > 1:
            span = rf"    \multicolumn{{{2 + len(report.metrics)}}}{{l}}"
            groups = {name: [rf"{span}{{\emph{{{escaped(name)}}}}} \\", *rows] for name, rows in groups.items()}
        blocks.append(latex_table(report, setting, methods[0], "methods", about, [], list(groups.values())))
    for setting in SETTINGS if arms else ():
        rows = [latex_row(row if k % 3 == 0 else ["", *row[1:]]) for k, row in enumerate(arms.rows[setting])]
        about = "; difference with $p$ of the paired $t$-test by seed in brackets"
        groups_of_three = [rows[k : k + 3] for k in range(0, len(rows), 3)]
        blocks.append(latex_table(report, setting, arms, "flashback", about, report.seed_remarks, groups_of_three))
    return "\n".join(blocks)


def latex_table(
    report: Report,
    setting: str,
    table: Table,
    label: str,
    about: str,
    remarks: Sequence[str],
    groups: Sequence[Sequence[str]],
) -> str:
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{SETTING_TITLES[setting].capitalize()} results on {escaped(report.where)} in percent: "
        rf"mean $\pm$ sample deviation over seeds{about}.{''.join(f' {escaped(remark)}' for remark in remarks)}}}",
        rf"  \label{{tab:{label}-{setting.replace('_', '-')}}}",
        rf"  \begin{{tabular}}{{ll{'r' * len(report.metrics)}}}",
        r"    \toprule",
        latex_row(table.columns),
    ]
    rows = [line for group in groups for line in (r"    \midrule", *group)]
    return "\n".join([*lines, *rows, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def latex_row(cells: Sequence[str]) -> str:
    bold = [isinstance(cell, Cell) and "sure" in cell.kind for cell in cells]
    texts = [rf"\textbf{{{escaped(cell)}}}" if sure else escaped(cell) for cell, sure in zip(cells, bold, strict=True)]
    return "    " + " & ".join(texts) + r" \\"


def escaped(text: str) -> str:
    characters = "".join(LATEX_SPECIALS.get(character, character) for character in " ".join(text.split()))
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", characters)  # a minus, not a hyphen
