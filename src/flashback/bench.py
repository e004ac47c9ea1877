"""Measure how fast training is on this machine: the training step in steady state, and a whole short run."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import RunConfig, TrainingConfig, build, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.files import ANOTHER_FOLDER, make_folder, write_atomically
from flashback.hosts import HOSTS, Stage
from flashback.hosts.external import HostFiles, find_hosts, in_one_line
from flashback.recipes import configure
from flashback.training import Trainer, build_method, select_device
from flashback.training.environment import prepare_device, select_precision, versions
from flashback.training.fast import CapturedStep, make_step
from flashback.training.step import TrainingStep, set_rate

FILE = "bench.json"
MODES = ("eager", "captured", "fast")  # captured: what a run on a GPU does by default; fast: without determinism
STEP, RUN = KINDS = ("steps", "runs")
EXEMPLARS = 20  # per class
FIRST_STEPS = 20  # of the first task, so that a memory holds something
WARM_UP = 8  # steps that compile and capture
DRAWS = 64  # different batches
BLOCK = 16  # steps between two looks at the clock


@dataclass(frozen=True)
class Size:
    """What is trained: images like CIFAR's with ResNet-18 on a GPU, a small version on a CPU."""

    shape: tuple[int, int, int]
    net: str
    classes: int  # per task
    per_class: int
    batches: tuple[int, ...]
    seconds: float  # that steps are measured for
    tasks: int
    epochs: int


ON_GPU = Size((3, 32, 32), "resnet18", 10, 500, (32, 128, 512), 1.0, 3, 6)
ON_CPU = Size((1, 28, 28), "smallcnn", 2, 100, (32,), 0.3, 3, 2)


@dataclass(frozen=True)
class Figure:
    """The speed of one method in one mode at one batch size: of its steps, or of a whole run."""

    kind: str
    host: str
    flashback: bool
    mode: str
    batch_size: int
    tasks: int
    epochs: int
    images_per_second: float = 0.0  # of a run: over everything, evaluation and checkpoints included
    steps_per_second: float = 0.0
    preparation_seconds: float = 0.0  # first steps, captures, compilations
    seconds: float = 0.0  # of a whole run
    peak_bytes: int = 0  # of the device since the method was built; 0 on a CPU, which does not tell
    problem: str = ""  # why there is no figure

    @property
    def case(self) -> tuple[Any, ...]:
        return (self.kind, self.host, self.flashback, self.mode, self.batch_size, self.tasks, self.epochs)


@dataclass
class Bench:
    """All figures of one machine. Those of another device, precision or version do not belong in one file."""

    device: str
    precision: str
    versions: dict[str, str]
    size: Size
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    figures: list[Figure] = field(default_factory=list)


def bench(
    hosts: Sequence[str] = (),
    *,
    batches: Sequence[int] = (),
    modes: Sequence[str] = (),
    flashback: bool | None = None,
    only: Sequence[str] = (),
    tasks: int | None = None,
    epochs: int | None = None,
    device: str = "auto",
    precision: str | None = None,
    host_file: HostFiles = None,
    out: str | Path | None = None,
    show: Callable[[Figure], None] = lambda figure: None,
) -> Bench:
    """Measure how fast training is here; with `out`, keep the figures in bench.json and measure only what is missing.

    By default steps of every host at the batch sizes and in the modes of the device, and a whole run of iCaRL.
    """
    find_hosts(host_file)
    place = select_device(device)
    for name in hosts:
        require(HOSTS[name].task_by_task, f"{name} does not learn task by task; leave it out")
    for kind, given, known in (("mode", modes, MODES), ("section", only, KINDS)):
        for name in given:
            if name not in known:
                raise unknown(kind, name, known)
    eager = place.type == "cuda" or set(modes) <= {MODES[0]}
    require(eager, "only --mode eager can be measured on a CPU; the other modes capture CUDA graphs")
    require(all(batch >= 1 for batch in batches), "--batch is at least 1")
    require(tasks is None or tasks >= 1, f"--tasks is at least 1, not {tasks}")
    require(epochs is None or epochs >= 2, "--epochs is at least 2, because flashback splits them in two")
    config = RunConfig(training=build(TrainingConfig, {"precision": precision}, "training."))
    size = ON_GPU if place.type == "cuda" else ON_CPU
    prepare_device(config, place, select_precision(config, place))  # sets the threads that the device's name tells
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else platform.machine()
    name += f", {torch.get_num_threads()} CPU threads" * (place.type != "cuda")
    result = Bench(name, select_precision(config, place), versions(), size)
    if out is not None:
        make_folder(Path(out))
        result = continue_bench(result, Path(out) / FILE)
    measured = {figure.case for figure in result.figures if not figure.problem}
    length = (tasks or size.tasks, epochs or size.epochs)
    for figure in [Figure(k, *c, *length) for k in only or KINDS for c in cases(k, hosts, batches, modes, size)]:
        if flashback not in (None, figure.flashback) or figure.case in measured:
            continue
        try:
            new = MEASURES[figure.kind](figure, result, place)
        except (RuntimeError, FlashbackError) as problem:
            new = replace(figure, problem=in_one_line(problem)[:300])
        result.figures = [known for known in result.figures if known.case != new.case] + [new]
        show(new)
        if out is not None:
            write_atomically(Path(out) / FILE, json.dumps(to_dict(result), indent=1) + "\n")
    return result


def continue_bench(new: Bench, path: Path) -> Bench:
    if not path.exists():
        return new
    try:
        known = build(Bench, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, FlashbackError):
        raise FlashbackError(f"{path} holds no figures of a bench; {ANOTHER_FOLDER}") from None
    same = replace(known, date=new.date, figures=[]) == new
    require(same, f"{path} was measured on another device, precision, version or size; {ANOTHER_FOLDER}")
    return known


def cases(
    kind: str, hosts: Sequence[str], batches: Sequence[int], modes: Sequence[str], size: Size
) -> Iterator[tuple[str, bool, str, int]]:
    """Every host, arm, mode and batch size of one kind of figure, with the defaults of the device."""
    usual = MODES[:1] if size is ON_CPU else MODES if kind == STEP else MODES[1:2]
    hosts = hosts or ([name for name in HOSTS if HOSTS[name].task_by_task] if kind == STEP else ["icarl"])
    batches, modes = batches or (size.batches if kind == STEP else [32]), modes or usual
    for host, batch, mode in product(hosts, batches, modes):
        yield from ((host, arm, mode, batch) for arm in (False, True) if HOSTS[host].has_knowledge or not arm)


# ---------------------------------------------------------------- measuring


def measure_steps(case: Figure, bench: Bench, device: torch.device) -> Figure:
    """Steps of the second task, where there is something to remember, after everything is captured and compiled."""
    trainer = make_trainer(case, bench, device, compiled=case.mode != MODES[0])
    with torch.compiler.set_stance("force_eager"):  # only the captured step compiles, as in the trainer
        stage = begin_second_task(trainer)
        trainer.host.train()
        trainer.host.generator.manual_seed(0)
        step = make_step(trainer.host, stage, stage.stream(), trainer.precision)
        set_rate(step.optimiser, 1e-4)
        stage.before_epoch(0)
        positions = torch.randint(0, len(step.stream), (DRAWS, min(case.batch_size, len(step.stream))), device=device)
        began = time.monotonic()
        for k in range(WARM_UP):
            step(positions[k])
        wait(device)
        preparation = time.monotonic() - began
        if isinstance(step, CapturedStep) and not step.graphs:
            raise FlashbackError("the step could not be captured")
        count, began = 0, time.monotonic()
        while time.monotonic() - began < bench.size.seconds:
            for k in range(BLOCK):
                step(positions[(count + k) % DRAWS])
            count += BLOCK
            wait(device)
        rate = count / (time.monotonic() - began)
    return replace(
        case,
        images_per_second=round(rate * positions.shape[1], 1),
        steps_per_second=round(rate, 2),
        preparation_seconds=round(preparation, 2),
        peak_bytes=peak_bytes(device),
    )


def measure_run(case: Figure, bench: Bench, device: torch.device) -> Figure:
    """A whole run, from the evaluation of the untrained network to that after the last task."""
    trainer = make_trainer(case, bench, device)
    preparation: dict[tuple[int, str], float] = {}

    def observe(event: Any) -> None:
        if event["event"] == "epoch" and trainer.step is not None:
            preparation[event["task"], event["stage"]] = trainer.step.preparation_seconds

    trainer.observers = (observe,)
    trainer.run()
    history = trainer.history
    images, steps = (sum(entry[what] for entry in history.budget) for what in ("images", "steps"))
    return replace(
        case,
        images_per_second=round(images / history.seconds, 1),
        steps_per_second=round(steps / history.seconds, 2),
        preparation_seconds=round(sum(preparation.values()), 2),
        seconds=round(history.seconds, 2),
        peak_bytes=peak_bytes(device),
    )


MEASURES = {STEP: measure_steps, RUN: measure_run}


def make_trainer(case: Figure, bench: Bench, device: torch.device, compiled: bool | None = None) -> Trainer:
    torch.compiler.reset()  # compiled code holds the networks of the last figure
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    settings = {
        "host.net": bench.size.net,
        "training.epochs": case.epochs,
        "training.batch_size": case.batch_size,
        "training.precision": bench.precision,
        "flashback.epochs": max(1, case.epochs // 6),  # as in the paper's Table 6
        "capture": case.mode != MODES[0],
        "fast": case.mode == MODES[2],
        "compile": compiled,
    }
    if hasattr(HOSTS[case.host].Settings(), "memory_size"):
        settings["host.memory_size"] = EXEMPLARS * bench.size.classes * case.tasks
    config = configure(case.host, "made", flashback=case.flashback, settings=settings)
    prepare_device(config, device, bench.precision)
    benchmark = made_benchmark(bench.size, max(2, case.tasks) if case.kind == STEP else case.tasks)
    return Trainer(build_method(config, benchmark, device), benchmark, precision=bench.precision)


@lru_cache(maxsize=1)
def made_benchmark(size: Size, tasks: int) -> Benchmark:
    """Random images: speed does not depend on what they show."""
    generator = torch.Generator().manual_seed(0)

    def images(classes: range, count: int) -> Images:
        y = torch.arange(classes.start, classes.stop).repeat_interleave(count)
        return Images(torch.randint(0, 256, (len(y), *size.shape), dtype=torch.uint8, generator=generator), y)

    ranges = [range(k * size.classes, (k + 1) * size.classes) for k in range(tasks)]
    made = tuple(Task(k, r, images(r, size.per_class), images(r, size.per_class // 5)) for k, r in enumerate(ranges))
    total, channels = tasks * size.classes, size.shape[0]
    names = tuple(map(str, range(total)))
    return Benchmark("made", "made", tuple(range(total)), made, (0.5,) * channels, (0.25,) * channels, names, "made")


def begin_second_task(trainer: Trainer) -> Stage:
    """Go through the first task in a few steps, and begin the stage of the second that Flashback changes."""
    for task in trainer.benchmark.tasks[:2]:
        trainer.method.enter(task)
        for stage in trainer.method.stages():
            trainer.allocate(stage)
            stage.begin()
            if task.index == 1 and stage.main:
                return stage
            trainer.host.train()
            stream = stage.stream()
            step = TrainingStep(trainer.host, stage, stream, trainer.precision)
            for indices in torch.split(stream.order("bench"), stage.batch_size)[:FIRST_STEPS]:
                step(indices)
            stage.end()
    raise FlashbackError(f"{trainer.host.settings.name} has no main stage in its second task")


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
