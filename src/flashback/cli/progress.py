"""Consoles, and one line on the terminal for every run under way: its task, stage, epoch and losses."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from flashback.training.running import accuracy_so_far
from flashback.training.trainer import Event, Observer

WIDTH = 120  # of tables where no terminal says how wide it is


def output() -> Console:
    """Results go to stdout, everything else to stderr."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, markup=False, width=None if known else WIDTH)


class ProgressView:
    """Shows runs while they are under way; where stderr is not a terminal, a line for each task they have learned."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False, markup=False)
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            BarColumn(bar_width=10),
            TextColumn("{task.fields[state]}", markup=False, table_column=Column(no_wrap=True, ratio=1)),
        )
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)

    def __enter__(self) -> ProgressView:
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.stop()

    def watch(self, name: str, tasks: int | None = None) -> Observer:
        return RunLine(self.progress, name, tasks)


class RunLine:
    """Observes one run and keeps its line up to date."""

    def __init__(self, progress: Progress, name: str, tasks: int | None) -> None:
        self.progress, self.name, self.tasks = progress, name, tasks  # a run that goes on does not tell its tasks again
        self.line: TaskID = progress.add_task(name, total=None, state="starting")

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "task":
            self.tasks = event["tasks"]
        elif kind == "stage":
            self.progress.update(self.line, completed=0, total=event["epochs"], state=self.describe(event))
        elif kind == "epoch":
            done = event["epoch"] + 1
            self.progress.update(self.line, completed=done, total=event["epochs"], state=self.describe(event))
        elif kind == "evaluation":
            self.tell(event, is_last=event["task"] + 1 == self.tasks)

    def tell(self, event: Event, is_last: bool) -> None:
        if self.progress.disable or is_last:
            of_all = f" of {self.tasks}" if self.tasks else ""
            where = f"task {event['task'] + 1}{of_all}, " if self.progress.disable else ""
            say = self.progress.console.print
            say(f"{self.name}: {where}average accuracy {accuracy_so_far(event):.1f}", soft_wrap=True)
        if is_last:
            self.progress.remove_task(self.line)

    def describe(self, event: Event) -> str:
        task = f"task {event['task'] + 1}" + (f"/{self.tasks}" if self.tasks else "")
        parts = [task, event["stage"]]
        if "epoch" in event:
            losses = ", ".join(f"{name} {value:.3g}" for name, value in event["losses"].items())
            parts += [f"epoch {event['epoch'] + 1}/{event['epochs']}", losses]
        return "  ".join(parts)
