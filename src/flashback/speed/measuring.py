"""The bench: what is to be measured, what is there already, and each figure on the disk before the next one."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import torch

from flashback.config import RunConfig, TrainingConfig, build
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts import HOSTS
from flashback.hosts.outside import HostFiles, find_hosts
from flashback.speed.figures import (
    MODES,
    Bench,
    Cache,
    Case,
    Mode,
    PackedCase,
    RunCase,
    continue_bench,
    has,
    put,
    reason,
    write_bench,
)
from flashback.speed.parts import PARTS
from flashback.speed.runs import measure_packed, measure_run
from flashback.speed.setup import Setup, size_for
from flashback.speed.sheets import write_tables
from flashback.speed.steps import steady_state
from flashback.training.environment import prepare_device, select_device, select_precision, versions

SECTIONS = ("steps", "parts", "runs", "packed")
RUNS, TRAINING = ("runs", "packed"), ("steps", "runs", "packed")  # sections that some options are for
RUN_HOSTS, RUN_BATCHES = ("icarl",), (32,)  # of whole runs, where none are named
Measurement = tuple[str, Callable[[], str]]  # its label, and what takes the figure and says it


@dataclass(frozen=True)
class Choice:
    """What to measure. What is left empty is everything: every host, the batch sizes of the device, every mode.

    Whole runs take long: where nothing is named, they take one host, one batch size and a run's own mode.
    """

    hosts: tuple[str, ...] = ()
    batches: tuple[int, ...] = ()
    modes: tuple[Mode, ...] = ()
    flashback: bool | None = None  # with, without, or both
    sections: tuple[str, ...] = ()  # where empty: all, packed only where `packed` says how many
    tasks: int | None = None  # of a whole run; None: few
    epochs: int | None = None
    cold: bool = False  # whole runs with a new cache of compiled code, and then with the same one
    packed: tuple[int, ...] = ()  # so many whole runs at a time

    def includes(self, section: str) -> bool:
        return section in self.sections if self.sections else section != "packed" or bool(self.packed)

    def check(self, device: torch.device) -> None:
        for name in self.hosts:
            require(HOSTS[name].task_by_task, f"{name} does not learn task by task; leave it out")
        able = not self.hosts or any(HOSTS[name].has_knowledge for name in self.hosts)
        require(able or not self.flashback, f"--flashback does nothing here; {' and '.join(self.hosts)} cannot take it")
        for kind, given, known in (("mode", self.modes, MODES), ("section", self.sections, SECTIONS)):
            for name in given:
                if name not in known:
                    raise unknown(kind, name, known)
        self.check_options()
        eager = device.type == "cuda" or set(self.modes) <= {"eager"}
        require(eager, "only --mode eager can be measured on a CPU; the other modes capture CUDA graphs")
        require(all(batch >= 1 for batch in self.batches), "a batch has at least 1 image")
        require(self.tasks is None or self.tasks >= 1, f"--tasks is at least 1, not {self.tasks}")
        require(self.epochs is None or self.epochs >= 2, "--epochs is at least 2, for flashback splits them in two")
        require(all(count >= 1 for count in self.packed), "--packed is at least 1")
        require(not self.includes("packed") or bool(self.packed), "--only packed needs --packed, how many at a time")

    def check_options(self) -> None:
        """Refuse what would do nothing, because no section that it is for is chosen."""
        for option, is_given, sections in (
            ("the name of a host", bool(self.hosts), TRAINING),
            ("--batch", bool(self.batches), TRAINING),
            ("--mode", bool(self.modes), TRAINING),
            ("--flashback or --no-flashback", self.flashback is not None, TRAINING),
            ("--tasks", self.tasks is not None, RUNS),
            ("--epochs", self.epochs is not None, RUNS),
            ("--cold", self.cold, ("runs",)),
            ("--packed", bool(self.packed), ("packed",)),
        ):
            needed = f"--only {' or '.join(sections)}"
            require(not is_given or any(map(self.includes, sections)), f"{option} does nothing here; it needs {needed}")


def bench(
    choice: Choice | None = None,
    *,
    device: str = "auto",
    precision: str | None = None,
    out: str | Path | None = None,
    host_file: HostFiles = None,
    show: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Measure how fast training is here; `show` gets a line for each figure as it comes.

    With `out`, figures go into bench.json there one by one, and at last into bench.md and bench.png. A folder with
    figures of the same device, precision and versions is continued: only what is missing or failed is measured.
    """
    find_hosts(host_file)
    choice, target = choice or Choice(), select_device(device)
    choice.check(target)
    config = RunConfig(training=build(TrainingConfig, {"precision": precision}, "training."))
    setup = Setup(size_for(target), target, select_precision(config, target), host_file)
    prepare_device(config, target, setup.precision)  # the name of a CPU says how many threads it uses
    found = Bench(device_name(target), now(), setup.precision, surroundings(target), setup.size)
    if out is not None:
        found = continue_bench(found, Path(out))
    for label, take in missing(found, setup, choice):
        try:
            line = take()
            found.failures.pop(label, None)
        except (RuntimeError, FlashbackError) as problem:
            line = found.failures[label] = reason(problem)
        show(f"{label}: {line}")
        if out is not None:
            write_bench(found, Path(out))
    if out is not None:
        write_tables(found, Path(out) / "bench")
    return found


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} thread{'s' * (threads > 1)}"


def processor() -> str:
    """The name of the CPU, which Python itself often does not know."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def surroundings(device: torch.device) -> dict[str, str]:
    return versions() | ({"cuda": str(torch.version.cuda)} if device.type == "cuda" else {})


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


# ---------------------------------------------------------------- what is to be measured


def missing(found: Bench, setup: Setup, choice: Choice) -> Iterator[Measurement]:
    """Everything that is chosen and not there yet."""
    if choice.includes("steps"):
        yield from missing_steps(found, setup, choice)
    if choice.includes("parts"):
        yield from ((name, partial(take_part, found, setup, name)) for name in PARTS if name not in found.parts)
    if choice.includes("runs"):
        yield from missing_runs(found, setup, choice)
    if choice.includes("packed"):
        yield from missing_packed(found, setup, choice)


def missing_steps(found: Bench, setup: Setup, choice: Choice) -> Iterator[Measurement]:
    hosts = choice.hosts or [name for name in HOSTS if HOSTS[name].task_by_task]
    modes = choice.modes or (MODES if setup.device.type == "cuda" else MODES[:1])
    for (host, flashback), batch, mode in product(arms(hosts, choice), choice.batches or setup.size.batches, modes):
        case = Case(host, flashback, mode, batch)
        if not has(found.speeds, case):
            yield case.label, partial(take_speed, found, setup, case)


def missing_runs(found: Bench, setup: Setup, choice: Choice) -> Iterator[Measurement]:
    caches: tuple[Cache, ...] = ("cold", "warm") if choice.cold else ("own",)
    for case in run_cases(setup, choice, caches[0]):
        if not all(has(found.runs, replace(case, cache=cache)) for cache in caches):
            yield case.label, partial(take_run, found, setup, case)


def missing_packed(found: Bench, setup: Setup, choice: Choice) -> Iterator[Measurement]:
    for run, count in product(run_cases(setup, choice, "own"), choice.packed):
        case = PackedCase(**vars(run), count=count)
        if not has(found.packed, case):
            yield case.label, partial(take_packed, found, setup, case)


def run_cases(setup: Setup, choice: Choice, cache: Cache) -> Iterator[RunCase]:
    modes = choice.modes or (("captured",) if setup.device.type == "cuda" else ("eager",))
    tasks, epochs = choice.tasks or setup.size.tasks, choice.epochs or setup.size.epochs
    hosts, batches = choice.hosts or RUN_HOSTS, choice.batches or RUN_BATCHES
    for (host, flashback), batch, mode in product(arms(hosts, choice), batches, modes):
        yield RunCase(host, flashback, mode, batch, tasks, epochs, cache)


def arms(hosts: Iterable[str], choice: Choice) -> Iterator[tuple[str, bool]]:
    """Every host without and with flashback, where that is chosen and can be."""
    for host, flashback in product(hosts, (False, True)):
        if choice.flashback in (None, flashback) and (HOSTS[host].has_knowledge or not flashback):
            yield host, flashback


# ---------------------------------------------------------------- taking a figure


def take_speed(found: Bench, setup: Setup, case: Case) -> str:
    speed = steady_state(setup, case)
    put(found.speeds, speed)
    return f"{speed.images_per_second:,.0f} images/s"


def take_part(found: Bench, setup: Setup, name: str) -> str:
    setup.free()
    found.parts[name] = PARTS[name](setup)
    return f"{found.parts[name]:.4f}"


def take_run(found: Bench, setup: Setup, case: RunCase) -> str:
    runs = measure_run(setup, case)
    for run in runs:
        put(found.runs, run)
    return ", then ".join(f"{run.images_per_second:,.0f} images/s in {run.seconds:.1f} s" for run in runs)


def take_packed(found: Bench, setup: Setup, case: PackedCase) -> str:
    packed = measure_packed(setup, case)
    put(found.packed, packed)
    return f"{packed.images_per_second:,.0f} images/s in all"
