"""Printing: results go to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 120  # of tables where no terminal says how wide it is


def output() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, width=None if known else WIDTH)


def show_line(line: str) -> None:
    """Print a line that a terminal may wrap but a file gets whole."""
    output().print(line, soft_wrap=True)


def say(line: str) -> None:
    """Print one line to stderr, with control characters escaped: names and values may come from anybody's files."""
    words = " ".join(line.split())
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words), file=sys.stderr)


def make_table(title: str, *columns: str, texts: int = 1) -> Table:
    """A table whose first `texts` columns hold words and the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        is_text = index < texts
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table
