"""How many runs go on at a time: a given number, or on a GPU as many as fit and make all together faster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from flashback.training.trainer import Event

WORTH_IT = 1.1  # twice as many runs must be so many times faster together
SECONDS = 3.0  # of training to compare
ROOM = 1.25  # a run may come to need so much more memory than those before it do now
MPS = "nvidia-cuda-mps-control"


class Pace(Protocol):
    """Says how many runs may go on at a time, and is told what they do."""

    limit: int

    def note(self, name: str, event: Event) -> None: ...
    def ended(self, name: str) -> None: ...


@dataclass
class FixedPace:
    limit: int

    def note(self, name: str, event: Event) -> None:
        """Nothing changes its mind."""

    def ended(self, name: str) -> None:
        """See note."""


Kind = tuple[str, str, bool]  # steps that cost the same: of one run, in one stage, in the first task or a later one


@dataclass
class Spent:
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Mark:
    """Where a run was at the end of an epoch, and beside how many others."""

    kind: Kind
    task: int
    steps: int
    when: float
    change: int  # how often the set of training runs had changed by then


class MeasuredPace:
    """Doubles the runs at a time while that makes all together faster, and while their memory fits.

    Runs differ in cost, so each is compared with itself: if runs that shared the device with n others keep the share r
    of their speed beside 2n, all together have become 2r times faster.
    """

    def __init__(self, most: int, free_bytes: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.free_bytes, self.clock = most, free_bytes, clock
        self.free_at_first = free_bytes()
        self.limit, self.base, self.settled = 1, 0, False
        self.training: set[str] = set()
        self.changes = 0
        self.marks: dict[str, Mark] = {}
        self.spent: dict[int, dict[Kind, Spent]] = defaultdict(lambda: defaultdict(Spent))

    @classmethod
    def of_gpu(cls, runs: int) -> MeasuredPace:
        """For so many runs on the present GPU; each needs a core of the CPU to drive it."""
        return cls(min(runs, os.cpu_count() or 1), lambda: torch.cuda.mem_get_info()[0])

    def note(self, name: str, event: Event) -> None:
        if event["event"] != "epoch":
            return
        if name not in self.training:  # its first epoch holds captures and compilations
            self.training.add(name)
            self.changes += 1
        kind = (name, event["stage"], event["task"] > 0)
        mark = Mark(kind, event["task"], event["steps"], self.clock(), self.changes)
        before = self.marks.get(name)
        self.marks[name] = mark
        if before and (before.kind, before.task, before.change) == (kind, mark.task, mark.change):
            spent = self.spent[len(self.training)][kind]
            spent.steps += mark.steps - before.steps
            spent.seconds += mark.when - before.when
        if not self.settled:
            self.decide()

    def ended(self, name: str) -> None:
        if name in self.training:
            self.training.remove(name)
            self.changes += 1

    def decide(self) -> None:
        """Once all that may run are training: with a first one go on to two, then by what was gained."""
        count = len(self.training)
        if count < self.limit:
            return
        gain = self.gain() if self.base else 2.0
        if gain is None:
            return
        if gain < WORTH_IT:
            self.limit, self.settled = (self.base if gain < 1 else count), True
            return
        self.base = count
        self.limit = min(2 * count, self.most, count + self.room())
        self.settled = self.limit == count

    def gain(self) -> float | None:
        """How much faster all runs together are than those of the level before; None while too little is measured.

        Runs that have all gone on to other stages since leave nothing to compare: then the next doubling will tell.
        """
        count = len(self.training)
        before, now = self.spent[self.base], self.spent[count]
        known = {kind for kind, spent in before.items() if spent.seconds >= SECONDS / 3}
        both = known & now.keys()
        seconds = sum(now[kind].seconds for kind in both)
        if seconds >= SECONDS:
            kept = sum(relative_speed(before[kind], now[kind]) * now[kind].seconds for kind in both) / seconds
            return kept * count / self.base
        can_still_tell = any(self.marks[name].kind in known for name in self.training)
        return None if can_still_tell else WORTH_IT

    def room(self) -> int:
        """How many more runs of the present mean size fit."""
        free = self.free_bytes()
        each = max(1, (self.free_at_first - free) // len(self.training))
        return int(free / (ROOM * each))


def relative_speed(before: Spent, now: Spent) -> float:
    return (now.steps / now.seconds) / (before.steps / before.seconds)


# ---------------------------------------------------------------- NVIDIA's Multi-Process Service


@contextmanager
def sharing_gpu(device: str | torch.device) -> Iterator[bool]:
    """Processes started inside share the GPU through NVIDIA MPS where that can be started; yields whether they do.

    Without it their kernels take turns, and small ones leave most of the device idle. One that runs already is used.
    """
    if torch.device(device).type != "cuda":
        yield False
        return
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ:
        yield True
        return
    torch.cuda.mem_get_info()  # starts CUDA in this process before MPS is there, so that it does not depend on it
    with tempfile.TemporaryDirectory(prefix="flashback-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(places)
        started = control("-d")
        try:
            if not started:
                forget(places)
            yield started
        finally:
            if started:
                control(words="quit\n")
            forget(places)


def control(*options: str, words: str = "") -> bool:
    """Whether the program that controls MPS is there and did what it was asked."""
    program = shutil.which(MPS)
    if program is None:
        return False
    try:
        subprocess.run([program, *options], input=words, text=True, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def forget(names: dict[str, str]) -> None:
    for name in names:
        os.environ.pop(name, None)
