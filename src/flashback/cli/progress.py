"""One line on the terminal for every run that is training: its bar, clocks, task, stage, epoch and losses."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from flashback.training.running import accuracy_so_far
from flashback.training.trainer import Event, Observer

QUIET = 60.0  # seconds without a line after which one is written where there is no terminal
NAME, BAR = 30, 10  # columns of a line
A_DAY = 24 * 3600.0


class ProgressView:
    """Shows the runs that are training.

    Without a terminal it prints a line for every task learned, and at most one a minute in between.
    """

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False, markup=False)
        fixed = Column(no_wrap=True)
        self.progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=fixed),
            BarColumn(bar_width=BAR, table_column=Column(no_wrap=True, min_width=BAR)),
            TimeElapsedColumn(table_column=fixed),
            TimeRemainingColumn(table_column=fixed),
            StateColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
            speed_estimate_period=A_DAY,
        )
        self.last_line = time.monotonic()

    def __enter__(self) -> ProgressView:
        if not self.progress.disable:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.progress.disable:
            self.progress.stop()

    def watch(self, name: str, tasks: int | None = None) -> Observer:
        """Return the observer of a run; `tasks` for a resumed run, which does not announce them again."""
        return RunLine(self, name, tasks)

    def print(self, line: str) -> None:
        self.last_line = time.monotonic()
        self.progress.console.print(line, soft_wrap=True)


class StateColumn(ProgressColumn):
    """What the run is doing: the only column that a narrow terminal cuts."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["state"], no_wrap=True, overflow="ellipsis")


class RunLine:
    """Observes one run and keeps its line up to date."""

    def __init__(self, view: ProgressView, name: str, tasks: int | None) -> None:
        self.view, self.progress, self.name, self.tasks = view, view.progress, name, tasks
        short = name if len(name) <= NAME else f"...{name[3 - NAME :]}"
        self.line: TaskID = self.progress.add_task(short, total=None, state="starting")
        self.task, self.task_epochs = 0, 1
        self.before_stage, self.stage_epochs = 0, 0  # epochs of the task before this stage, and in it

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "task":
            self.tasks = event["tasks"]
        elif kind in ("stage", "epoch"):
            self.advance(event)
        elif kind == "evaluation":
            self.report(event)
        if kind == "end" and self.line in self.progress.task_ids:
            self.progress.remove_task(self.line)

    def advance(self, event: Event) -> None:
        """The bar shows the share of the run; a task is taken to have as many epochs as the longest so far."""
        is_new_task, epochs = event["task"] != self.task, event["epochs"]
        if event["event"] == "stage":
            self.before_stage = 0 if is_new_task else self.before_stage + self.stage_epochs
        self.task, self.stage_epochs = event["task"], epochs
        self.task_epochs = max(self.task_epochs, self.before_stage + epochs)
        done = self.before_stage + (event["epoch"] + 1 if "epoch" in event else 0)
        share = None if self.tasks is None else self.task + done / self.task_epochs
        self.progress.update(self.line, completed=share, total=self.tasks, state=self.describe(event))
        if self.progress.disable and "epoch" in event and time.monotonic() - self.view.last_line >= QUIET:
            where = f"{event['stage']}, epoch {event['epoch'] + 1} of {epochs}"
            self.view.print(f"{self.name}: task {self.task + 1}{self.of_all}, {where}")

    @property
    def of_all(self) -> str:
        return f" of {self.tasks}" if self.tasks else ""

    def report(self, event: Event) -> None:
        is_last = event["task"] + 1 == self.tasks
        if self.progress.disable or is_last:
            where = f"task {event['task'] + 1}{self.of_all}, " if self.progress.disable else ""
            self.view.print(f"{self.name}: {where}average accuracy {accuracy_so_far(event):.1f}")
        if is_last:
            self.progress.remove_task(self.line)

    def describe(self, event: Event) -> str:
        parts = [f"task {event['task'] + 1}" + (f"/{self.tasks}" if self.tasks else ""), event["stage"]]
        if "epoch" in event:
            parts.append(f"epoch {event['epoch'] + 1}/{event['epochs']}")
            parts.append(", ".join(f"{name} {value:.3g}" for name, value in event["losses"].items()))
        return "  ".join(parts)
