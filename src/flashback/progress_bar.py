"""A progress bar for a terminal. rich is imported with this module, so import it where a bar is shown."""

from typing import Any

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalProgress(Progress):
    """Bars on standard error that disappear at the end; without a terminal, nothing at all is printed.

    Args:
        columns: What a line shows; by default its description, bar, share and time left.
        shown: Whether to show bars if there is a terminal.
        options: Further arguments of `rich.progress.Progress`.
    """

    def __init__(self, *columns: ProgressColumn, shown: bool = True, **options: Any) -> None:
        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        disable = not (shown and console.is_terminal)
        super().__init__(*columns, console=console, disable=disable, transient=True, **options)

    def stop(self) -> None:
        if not self.disable:  # else rich before 14.3 prints an empty line
            super().stop()
