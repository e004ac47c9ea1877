"""How many runs go on at a time: a given number, or on a GPU as many as fit and make all together faster."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch

from flashback.training.environment import PORTION
from flashback.training.trainer import Event

WORTH_IT = 1.1  # twice as many runs must be so many times faster together
SECONDS = 3.0  # of training to compare
ROOM = 1.25  # a run may come to need so much more memory than those before it do now
SMALLEST_RUN = 1 << 30  # bytes of the device: CUDA itself, cuBLAS, a small network
MPS = "nvidia-cuda-mps-control"
OVERLAP = 2.0  # the portions of all runs add up to so many devices


class Concurrency(Protocol):
    """Says how many runs may go on at a time, and is told what they do."""

    limit: int

    def started(self, name: str) -> None: ...
    def note(self, name: str, event: Event) -> None: ...
    def ended(self, name: str) -> None: ...


@dataclass
class FixedConcurrency:
    """Nothing changes its mind."""

    limit: int

    def started(self, name: str) -> None: ...
    def note(self, name: str, event: Event) -> None: ...
    def ended(self, name: str) -> None: ...


Kind = tuple[str, str, bool]  # steps that cost the same: of runs alike, in one stage, in the first task or a later one


@dataclass
class Spent:
    steps: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Mark:
    """Where a run was at the end of an epoch."""

    kind: Kind
    task: int
    steps: int
    when: float
    change: int  # how often runs had started, begun to train and ended by then


class MeasuredConcurrency:
    """Doubles the runs at a time while that makes all together faster, and while their memory fits.

    Runs differ in cost, so each is compared with itself and with those alike: if runs that shared the device with n
    others keep the share r of their speed beside 2n, all together have become 2r times faster. Only moments count in
    which all runs train. `alike` names what runs have in common that cost the same; without a name a run is its own.
    """

    def __init__(
        self,
        most: int,
        free_bytes: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        alike: Mapping[str, str] | None = None,
    ) -> None:
        self.most, self.free_bytes, self.clock = most, free_bytes, clock
        self.alike = alike or {}
        self.free_at_first = free_bytes()
        self.limit, self.base, self.settled = 1, 0, False
        self.running: set[str] = set()
        self.training: set[str] = set()  # those whose first epoch, with its captures and compilations, is over
        self.changes = 0
        self.ended_here = 0  # runs that have ended since the limit was set
        self.marks: dict[str, Mark] = {}
        self.spent: dict[int, dict[Kind, Spent]] = defaultdict(lambda: defaultdict(Spent))

    @classmethod
    def of_gpu(cls, alike: Mapping[str, str]) -> MeasuredConcurrency:
        """For these runs on the present GPU; each needs a core of the CPU to drive it."""
        return cls(min(len(alike), usable_cores()), lambda: torch.cuda.mem_get_info()[0], alike=alike)

    def started(self, name: str) -> None:
        self.running.add(name)
        self.changes += 1

    def ended(self, name: str) -> None:
        self.running.discard(name)
        self.training.discard(name)
        self.changes += 1
        self.ended_here += 1
        if not self.settled and self.ended_here >= self.limit:  # too short to be measured
            self.go_on(self.limit)

    def note(self, name: str, event: Event) -> None:
        if event["event"] != "epoch" or "earlier" in event:
            return
        if name not in self.training:
            self.training.add(name)
            self.changes += 1
        self.measure(name, event)
        if not self.settled and len(self.training) == self.limit:
            self.decide()

    def measure(self, name: str, event: Event) -> None:
        """Count steps and seconds since the last epoch, if that was of the same kind and the same runs all trained."""
        kind = (self.alike.get(name, name), event["stage"], event["task"] > 0)
        mark, before = Mark(kind, event["task"], event["steps"], self.clock(), self.changes), self.marks.get(name)
        self.marks[name] = mark
        if before is None or self.training != self.running:
            return
        if (before.kind, before.task, before.change) == (kind, mark.task, mark.change):
            spent = self.spent[len(self.running)][kind]
            spent.steps += mark.steps - before.steps
            spent.seconds += mark.when - before.when

    def decide(self) -> None:
        if sum(spent.seconds for spent in self.spent[self.limit].values()) < SECONDS:
            return
        gain = self.gain() if self.base else WORTH_IT
        if gain is None:
            return
        if gain >= WORTH_IT:
            self.go_on(self.limit)
        else:
            self.limit, self.settled = (self.base if gain < 1 else self.limit), True

    def go_on(self, count: int) -> None:
        """Try twice as many, as far as they fit."""
        self.base, self.ended_here = count, 0
        self.limit = min(2 * count, self.most, count + self.room())
        self.settled = self.limit == count

    def gain(self) -> float | None:
        """How much faster all runs together are than those of the level before; None while too little is measured.

        Runs that have all gone on to other stages since leave nothing to compare: then the next doubling will tell.
        """
        before, now = self.spent[self.base], self.spent[self.limit]
        known = {kind for kind, spent in before.items() if spent.seconds >= SECONDS / 3}
        both = known & now.keys()
        seconds = sum(now[kind].seconds for kind in both)
        if seconds >= SECONDS:
            kept = sum(relative_speed(before[kind], now[kind]) * now[kind].seconds for kind in both) / seconds
            return kept * self.limit / self.base
        can_still_tell = any(self.marks[name].kind in known for name in self.training)
        return None if can_still_tell else WORTH_IT

    def room(self) -> int:
        """How many more runs of the present mean size fit. Others may have taken or given back memory meanwhile."""
        free = self.free_bytes()
        each = max(SMALLEST_RUN, (self.free_at_first - free) // max(1, len(self.running)))
        return int(free / (ROOM * each))


def relative_speed(before: Spent, now: Spent) -> float:
    return (now.steps / now.seconds) / (before.steps / before.seconds)


def usable_cores() -> int:
    """Those this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---------------------------------------------------------------- NVIDIA's Multi-Process Service


@contextmanager
def sharing_gpu(device: str | torch.device) -> Iterator[bool]:
    """Processes started inside share the GPU through NVIDIA MPS where that can be started; yields whether they do.

    Without it their kernels take turns, and small ones leave most of the device idle. One that runs already is used.
    """
    if torch.device(device).type != "cuda":
        yield False
    elif "CUDA_MPS_PIPE_DIRECTORY" in os.environ or control(words="get_server_list\n"):
        yield True
    else:
        torch.cuda.mem_get_info()  # starts CUDA in this process before MPS is there: it shall not depend on it
        with own_mps() as started:
            yield started


@contextmanager
def own_mps() -> Iterator[bool]:
    with tempfile.TemporaryDirectory(prefix="flashback-mps-", ignore_cleanup_errors=True) as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        with environment(places):
            try:
                started = control("-d")
                with environment({} if started else dict.fromkeys(places)):
                    yield started
            finally:
                control(words="quit\n")


def portion(runs: int) -> str:
    """Percent of the multiprocessors for each of so many runs, unless the user has set it.

    Kernels of small batches are short and few. Spread over the whole device, those of all runs queue behind each other;
    on parts of it they run side by side, and parts that overlap use what one run leaves idle.
    """
    return os.environ.get(PORTION) or f"{min(100.0, 100 * OVERLAP / runs):.3g}"


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables for processes started inside; None takes one away."""
    before = {name: os.environ.get(name) for name in values}
    set_environment(values)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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
