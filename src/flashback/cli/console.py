"""Printing: results go to stdout, everything else to stderr; names of anybody's files are made printable."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashback import ranks
from flashback.errors import printable, shorten

WIDTH = 120  # of tables where no terminal says how wide it is
LONGEST_LINE = 4000  # characters on stderr


def prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output() -> Console:
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, emoji=False, width=None if known else WIDTH)


def write(console: Console, content: Table | str, soft_wrap: bool = False) -> None:
    if not ranks.may_print():
        return
    with console.capture() as capture:
        console.print(content, soft_wrap=soft_wrap)
    write_stdout(capture.get())


def write_stdout(text: str) -> None:
    """Write to stdout; that nobody reads it any more does not change the outcome of a command."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def show_line(line: str) -> None:
    """Print a line that a terminal may wrap but a file gets whole."""
    write(output(), printable(line), soft_wrap=True)


def say(line: str) -> None:
    """Print one line to stderr, with words of more than 300 characters cut."""
    if not ranks.may_print():
        return
    words = re.sub(r"(\S{200})\S{100,}(?=\S\S)", r"\1...", " ".join(line.split()))
    with suppress(OSError):  # a stderr that takes nothing
        print(printable(shorten(words, LONGEST_LINE)), file=sys.stderr)


def show_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], texts: int = 1, caption: str = ""
) -> None:
    """Print a table whose first `texts` columns hold words and the others numbers; a row of one cell is a heading."""
    table = Table(title=printable(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.caption, table.caption_justify = printable(caption, keep="\n") or None, "left"
    for index, column in enumerate(columns):
        is_text = index < texts
        side: Literal["left", "right"] = "left" if is_text else "right"
        table.add_column(printable(column), justify=side, overflow="fold", no_wrap=not is_text)
    for row in rows:
        cells = [Text(printable(cell)) for cell in row]
        if len(row) == 1:
            table.add_section()
            cells[0].stylize("bold")
        table.add_row(*cells)
    console = output()
    needed = console.measure(table, options=console.options.update(width=10**6)).maximum
    if needed > console.width and texts < len(columns):  # less space between columns, as numbers are not folded
        table.padding, table.show_edge = 0, False
    write(console, table)
