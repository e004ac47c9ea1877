"""Markdown: the one place where text is made safe for it and where its tables are put together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def plain(text: str) -> str:
    """Text that Markdown takes as it is: no markup, no HTML, no new cell, no new line."""
    return re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", " ".join(text.split()))


def table_lines(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> list[str]:
    """A table whose first `texts` columns hold words and the others numbers."""
    rule = ["---" if column < texts else "---:" for column in range(len(head))]
    return [_line(map(plain, head)), _line(rule), *(_line(map(plain, row)) for row in rows)]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
