"""Parse the pages of the documentation into code blocks, commands and tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SHELL = ("bash", "console", "sh")

FENCE = re.compile(r"^```(?P<language>[\w+-]*)(?: +title=\"(?P<title>[^\"]+)\")? *$")
NOT_RUN = re.compile(r"^<!-- not run: (?P<reason>.+) -->$")
NEEDS = re.compile(r"^<!-- needs (?P<package>\w+) -->$")  # run where this optional package is installed


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None  # the file a reader saves it as
    text: str
    not_run: str | None  # why it cannot be run here

    def commands(self) -> list[list[str]]:
        """Split the command lines of a shell block into words, without comments and prompts."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [words for line in lines if (words := shlex.split(line.strip().removeprefix("$ "), comments=True))]


def blocks(page: Path) -> Iterator[Block]:
    """Fenced blocks, and indented ones as blocks of shell commands, in the order of the page."""
    reason: str | None = None
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if opening := FENCE.match(line):
            inside = list(iter(lambda: next(lines), "```"))
            yield Block(opening["language"], opening["title"], "\n".join(inside) + "\n", reason)
        elif re.match(r"    (flashback|make) \w", line):
            yield Block("bash", None, line, reason)
        if line.strip():
            reason = why_not(line)


def why_not(line: str) -> str | None:
    """Return why a comment above a block forbids running it."""
    if mark := NOT_RUN.match(line):
        return mark["reason"]
    mark = NEEDS.match(line)
    return f"needs {mark['package']}" if mark and find_spec(mark["package"]) is None else None


def calls(block: Block, program: str) -> list[list[str]]:
    """Return the arguments of each call of a program in a shell block."""
    return [words[1:] for words in block.commands() if words[0] == program] if block.language in SHELL else []


def section(text: str, title: str) -> str:
    """Return the text under a heading, up to the next heading."""
    match = re.search(rf"^(#+) {re.escape(title)}$\n(.*?)(?=^#{{1,3}} |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    assert match, f"there is no section '{title}'"
    return match[2]


def rows(text: str) -> list[list[str]]:
    """Return the cells of all table rows, without headings and backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    heads = {k for k, line in enumerate(lines) if k + 1 < len(lines) and re.match(r"\| -+:? ", lines[k + 1])}
    content = [line for k, line in enumerate(lines) if k not in heads and not re.match(r"\| -+:? ", line)]
    return [[cell.strip().strip("`") for cell in line.strip("|").split(" | ")] for line in content]
