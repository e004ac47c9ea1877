"""What is shown of runs while they train, on a terminal and without one."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from flashback import progress_bar
from flashback.cli import progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    result = Clock()
    monkeypatch.setattr(progress.time, "monotonic", result)
    return result


def made_screen(monkeypatch: pytest.MonkeyPatch, width: int, terminal: bool) -> StringIO:
    screen = StringIO()
    console = Console(file=screen, force_terminal=terminal, width=width, color_system=None)
    monkeypatch.setattr(progress_bar, "Console", lambda **_: console)
    return screen


def epoch(task: int, done: int, epochs: int, stage: str = "learn") -> dict[str, Any]:
    losses = {"task": 0.25, "stability": 1.5, "plasticity": 0.125}
    return {"event": "epoch", "task": task, "stage": stage, "epoch": done - 1, "epochs": epochs, "losses": losses}


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_bar_clocks_and_position(monkeypatch: pytest.MonkeyPatch, clock: Clock, width: int) -> None:
    screen = made_screen(monkeypatch, width, terminal=True)
    with progress.ProgressView() as view:
        view.get_time = clock
        for column in view.columns:
            column.max_refresh = None  # the clock of the test is not the one it caches by
        observe = view.watch("flashback, seed 123")
        observe({"event": "task", "task": 0, "tasks": 2})
        observe({"event": "stage", "task": 0, "stage": "learn", "epochs": 4})
        for done in (1, 2):
            clock.now += 30
            observe(epoch(0, done, 4))
        (line,) = view.tasks
        assert line.percentage == pytest.approx(25)
        assert line.time_remaining == 180
        view.refresh()
    text = screen.getvalue()
    assert "flashback, seed 123 ━━" in text
    assert "0:03:00" in text
    assert "task 1/2  learn  epoch" in text
    assert ("stability 1.5" in text) == (width == 120)
    assert all(len(row) <= width for row in text.replace("\r", "\n").splitlines() if "\x1b" not in row)


def test_phases_of_a_task_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made_screen(monkeypatch, 120, terminal=True)
    with progress.ProgressView() as view:
        observe = view.watch("icarl")
        observe({"event": "task", "task": 0, "tasks": 2})
        observe({"event": "stage", "task": 0, "stage": "learn", "epochs": 4})
        observe(epoch(0, 4, 4))
        observe({"event": "evaluation", "task": 0, "accuracy": {"linear": {"class_incremental": [80.0]}}})
        for stage, epochs, share in (("phase 1", 1, 5 / 8), ("phase 2", 3, 8 / 8)):
            observe({"event": "stage", "task": 1, "stage": stage, "epochs": epochs})
            observe(epoch(1, epochs, epochs, stage))
            assert view.tasks[0].percentage == pytest.approx(100 * share)
        observe({"event": "evaluation", "task": 1, "accuracy": {"linear": {"class_incremental": [80.0, 61.0]}}})
        observe({"event": "end", "problem": None})
        assert view.tasks == []


def test_without_a_terminal_a_minute_passes_between_lines(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    screen = made_screen(monkeypatch, 120, terminal=False)
    with progress.ProgressView() as view:
        observe = view.watch("icarl")
        observe({"event": "task", "task": 0, "tasks": 2})
        observe({"event": "stage", "task": 0, "stage": "learn", "epochs": 6})
        for done in range(1, 7):
            clock.now += 25
            observe(epoch(0, done, 6))
        observe({"event": "evaluation", "task": 0, "accuracy": {"linear": {"class_incremental": [80.0]}}})
    assert screen.getvalue().splitlines() == [
        "icarl: task 1 of 2, learn, epoch 3 of 6",
        "icarl: task 1 of 2, learn, epoch 6 of 6",
        "icarl: task 1 of 2, average accuracy 80.0",
    ]


def test_of_several_runs_without_a_terminal_the_ends_are_told(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    screen = made_screen(monkeypatch, 120, terminal=False)
    with progress.ProgressView(several=True) as view:
        observe = view.watch("host, seed 0")
        observe({"event": "task", "task": 0, "tasks": 4})
        for task, wait in enumerate((5, 12, 5, 1)):
            clock.now += wait
            accuracies = [80.0] * (task + 1)
            observe({"event": "evaluation", "task": task, "accuracy": {"linear": {"class_incremental": accuracies}}})
    assert screen.getvalue().splitlines() == [
        "host, seed 0: task 2 of 4, average accuracy 80.0",
        "host, seed 0: task 4 of 4, average accuracy 80.0",
    ]


def test_a_run_that_waits_in_a_queue_has_no_line_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    made_screen(monkeypatch, 80, terminal=True)
    for event in ({"event": "placed", "node": "node-7"}, epoch(0, 1, 4)):
        with progress.ProgressView() as view:
            observe = view.watch("host, seed 0")
            observe({"event": "queued"})
            (line,) = view.tasks
            assert not line.visible
            observe(event)
            assert line.visible
