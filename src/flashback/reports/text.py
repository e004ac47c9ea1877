"""Reports from the templates in this folder: as Markdown, LaTeX and HTML."""

import re
from pathlib import Path
from typing import Any

from flashback.errors import printable
from flashback.metrics import PairedTest, verdict
from flashback.metrics.statistics import number
from flashback.reports import tables, words
from flashback.reports.report import Report

LATEX_SPECIALS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "|": r"\textbar{}",
}  # fmt: skip


def markdown(report: Report) -> str:
    return re.sub(r"\n{3,}", "\n\n", render("report.md", report)).strip() + "\n"


def latex(report: Report) -> str:
    """For each setting the table of all methods and that of the comparisons, with booktabs."""
    return render("report.tex", report)


def render(template: str, report: Report, **values: Any) -> str:
    """Fill in a template, with control characters of names and settings escaped."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    def clean(value: Any) -> Any:
        return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    is_html = template.endswith(".html")
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=is_html,
        finalize=clean if is_html else None,  # in the others by the filters below
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "latex": escaped, "number": number, "with_t": with_t}
    return environment.get_template(template).render(report=report, tables=tables, words=words, **values)


def with_t(test: PairedTest) -> str:
    return f"t = {number(test.t)}. {verdict(test)}"


def plain(text: str) -> str:
    """Text that Markdown takes literally: no markup, no HTML, no new cell, no new line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", printable(" ".join(text.split())))


def escaped(text: str) -> str:
    text = printable(" ".join(text.split()))
    characters = "".join(LATEX_SPECIALS.get(character, character) for character in text)
    return re.sub(r"(?<!\S)-(?=\d)", "$-$", characters)  # a minus, not a hyphen
