"""One line on the terminal for every run that is training: its bar, clocks, task, stage, epoch and losses."""

import time

from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from flashback.errors import printable
from flashback.progress_bar import TerminalProgress
from flashback.training.running import accuracy_so_far
from flashback.training.trainer import Event

QUIET = 60.0  # seconds without a line after which one is written where there is no terminal
BETWEEN = 15.0  # the same for the end of a task, where there are several runs
NAME, BAR = 30, 10  # columns of a line
SPEED_PERIOD = 24 * 3600.0  # seconds over which the time left is estimated


class StateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(printable(task.fields["state"]), no_wrap=True, overflow="ellipsis")


class ProgressView(TerminalProgress):
    """Shows the runs that are training; without a terminal, lines at their tasks and at most one a minute between.

    Args:
        several: Whether there are several runs. Then, without a terminal, a task is reported only if there was no line
            for some seconds; the end of a run always is.
    """

    def __init__(self, several: bool = False) -> None:
        fixed = Column(no_wrap=True)
        super().__init__(
            TextColumn("{task.description}", markup=False, table_column=fixed),
            BarColumn(bar_width=BAR, table_column=Column(no_wrap=True, min_width=BAR)),
            TimeElapsedColumn(table_column=fixed),
            TimeRemainingColumn(table_column=fixed),
            StateColumn(),
            speed_estimate_period=SPEED_PERIOD,
        )
        self.last_line, self.several = time.monotonic(), several

    def watch(self, name: str, tasks: int | None = None) -> "RunLine":
        return RunLine(self, name, tasks)

    def say(self, line: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(printable(line), soft_wrap=True)


class RunLine:
    def __init__(self, view: ProgressView, name: str, tasks: int | None) -> None:
        self.view, self.name, self.tasks = view, name, tasks
        short = name if len(name) <= NAME else f"...{name[3 - NAME :]}"
        self.line = view.add_task(printable(short), total=None, state="starting")
        self.node = ""  # the machine it was placed on
        self.task, self.task_epochs = 0, 1
        self.before_stage, self.stage_epochs = 0, 0  # epochs of the task before this stage, and in it

    def __call__(self, event: Event) -> None:
        kind = event["event"]
        if kind == "task":
            self.tasks = int(event["tasks"])
        elif kind in ("stage", "epoch"):
            self.advance(event)
        elif kind == "evaluation":
            self.report(event)
        elif kind == "queued":
            self.view.update(self.line, visible=False)  # there may be hundreds
        elif kind == "placed":
            self.node = f"{event['node']}  "
            self.view.update(self.line, state=f"{self.node}starting", visible=True)
        elif kind == "end" and self.line in self.view.task_ids:
            self.view.remove_task(self.line)

    def advance(self, event: Event) -> None:
        """The bar shows the share of the run; a task is taken to have as many epochs as the longest so far."""
        is_new_task, epochs, stage = event["task"] != self.task, int(event["epochs"]), event["stage"]
        if event["event"] == "stage":
            self.before_stage = 0 if is_new_task else self.before_stage + self.stage_epochs
        self.task, self.stage_epochs = int(event["task"]), epochs
        self.task_epochs = max(self.task_epochs, self.before_stage + epochs)
        trained = event["epoch"] + 1 if "epoch" in event else 0
        share = None if self.tasks is None else self.task + (self.before_stage + trained) / self.task_epochs
        state = f"{self.node}{self.place('/')}  {stage}"
        if trained:
            losses = ", ".join(f"{name} {value:.3g}" for name, value in event["losses"].items())
            state += f"  epoch {trained}/{epochs}  {losses}"
        self.view.update(self.line, completed=share, total=self.tasks, state=state, visible=True)
        if self.view.disable and trained and time.monotonic() - self.view.last_line >= QUIET:
            self.view.say(f"{self.name}: {self.place(' of ')}, {stage}, epoch {trained} of {epochs}")

    def restart_clock(self) -> None:
        """Count speed and time from now on: what was reported so far was trained earlier."""
        for task in self.view.tasks:
            if task.id == self.line:
                self.view.reset(self.line, total=task.total, completed=int(task.completed))

    def place(self, of: str) -> str:
        return f"task {self.task + 1}{of}{self.tasks}" if self.tasks else f"task {self.task + 1}"

    def report(self, event: Event) -> None:
        self.task, is_last = event["task"], event["task"] + 1 == self.tasks
        due = not self.view.several or time.monotonic() - self.view.last_line >= BETWEEN
        if is_last or (self.view.disable and due):
            place = f"{self.place(' of ')}, " if self.view.disable else ""
            self.view.say(f"{self.name}: {place}average accuracy {accuracy_so_far(event):.1f}")
        if is_last:
            self.view.remove_task(self.line)
