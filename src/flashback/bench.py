"""Measure how fast the training step is on this machine."""

import gc
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashback.benchmarks import Benchmark, load_benchmark
from flashback.config import RunConfig, TrainingConfig, build, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.files import make_folder, write_atomically
from flashback.hosts import HOSTS, Stage
from flashback.hosts.external import HostFiles, find_hosts, in_one_line
from flashback.recipes import configure
from flashback.training import Trainer, build_method, select_device
from flashback.training.environment import prepare_device, select_precision, versions
from flashback.training.fast import CapturedStep, make_step
from flashback.training.step import TrainingStep, set_rate

FILE = "bench.json"
MODES = ("eager", "captured", "fast")  # captured: what a run on a GPU does by default; fast: without determinism
TASKS = 3
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
    modes: tuple[str, ...]
    seconds: float  # that steps are measured for


ON_GPU = Size((3, 32, 32), "resnet18", 10, 500, (32, 128, 512), MODES, 1.0)
ON_CPU = Size((1, 28, 28), "smallcnn", 2, 100, (32,), MODES[:1], 0.3)


@dataclass(frozen=True)
class Figure:
    """The speed of the training step of one method in one mode at one batch size."""

    host: str
    flashback: bool
    mode: str
    batch_size: int
    images_per_second: float = 0.0
    steps_per_second: float = 0.0
    preparation_seconds: float = 0.0  # first steps, captures, compilations
    peak_bytes: int = 0  # of the device since the method was built; 0 on a CPU, which does not tell
    problem: str = ""  # why there is no figure


@dataclass
class Bench:
    """All figures of one machine."""

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
    device: str = "auto",
    precision: str | None = None,
    host_file: HostFiles = None,
    out: str | Path | None = None,
    show: Callable[[Figure], None] = lambda figure: None,
) -> Bench:
    """Measure training steps of hosts with and without flashback.

    Args:
        hosts: The hosts; all if empty.
        batches: The batch sizes; those for the device if empty.
        modes: "eager" or, on a GPU, modes that capture the step; those for the device if empty.
        flashback: Measure only with it or only without it; None: both.
        device: "cpu", "cuda", or "auto".
        precision: "fp32", "tf32" or "bf16"; None: the default of the device.
        host_file: A file or files that register hosts or networks.
        out: A folder for bench.json; None: write nothing.
        show: Called with every figure as soon as it is measured.

    Returns:
        All figures; one that could not be measured has a `problem`.

    Raises:
        FlashbackError: If a host, a mode or a batch size cannot be measured.
    """
    find_hosts(host_file)
    place = select_device(device)
    for name in hosts:
        require(HOSTS[name].task_by_task, f"{name} does not learn task by task; leave it out")
    for mode in set(modes).difference(MODES):
        raise unknown("mode", mode, MODES)
    eager = place.type == "cuda" or set(modes) <= {MODES[0]}
    require(eager, "only --mode eager can be measured on a CPU; the other modes capture CUDA graphs")
    require(all(batch >= 1 for batch in batches), "--batch is at least 1")
    if out is not None:
        make_folder(Path(out))
    result = begin_bench(place, precision)
    hosts = hosts or [name for name in HOSTS if HOSTS[name].task_by_task]
    arms = (False, True) if flashback is None else (flashback,)
    cases = product(hosts, batches or result.size.batches, modes or result.size.modes, arms)
    for host, batch, mode, arm in cases:
        if arm and not HOSTS[host].has_knowledge:
            continue
        figure = Figure(host, arm, mode, batch)
        try:
            figure = measure_steps(figure, result, place)
        except (RuntimeError, FlashbackError) as problem:
            figure = replace(figure, problem=in_one_line(problem)[:300])
        result.figures.append(figure)
        show(figure)
    if out is not None:
        write_atomically(Path(out) / FILE, json.dumps(to_dict(result), indent=1) + "\n")
    return result


def begin_bench(device: torch.device, precision: str | None) -> Bench:
    config = RunConfig(training=build(TrainingConfig, {"precision": precision}, "training."))
    run_precision = select_precision(config, device)
    prepare_device(config, device, run_precision)  # sets the number of threads
    if device.type == "cuda":
        return Bench(torch.cuda.get_device_name(device), run_precision, versions(), ON_GPU)
    return Bench(f"{platform.machine()}, {torch.get_num_threads()} CPU threads", run_precision, versions(), ON_CPU)


def measure_steps(case: Figure, bench: Bench, device: torch.device) -> Figure:
    """Steps of the second task, where there is something to remember, after everything is captured and compiled."""
    trainer = make_trainer(case, bench, device)
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
        seconds = time.monotonic() - began
    return replace(
        case,
        images_per_second=round(count * positions.shape[1] / seconds, 1),
        steps_per_second=round(count / seconds, 2),
        preparation_seconds=round(preparation, 2),
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0,
    )


def make_trainer(case: Figure, bench: Bench, device: torch.device) -> Trainer:
    torch.compiler.reset()  # compiled code holds the networks of the last figure
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    captured = case.mode != MODES[0]
    settings = {
        "host.net": bench.size.net,
        "training.epochs": 6,
        "flashback.epochs": 1,  # a sixth, as in the paper's Table 6
        "training.batch_size": case.batch_size,
        "training.precision": bench.precision,
        "capture": captured,
        "compile": captured,
        "fast": case.mode == MODES[2],
    }
    if hasattr(HOSTS[case.host].Settings(), "memory_size"):
        settings["host.memory_size"] = EXEMPLARS * bench.size.classes * TASKS
    config = configure(case.host, "arrays", flashback=case.flashback, settings=settings)
    prepare_device(config, device, bench.precision)
    benchmark = random_benchmark(bench.size)
    return Trainer(build_method(config, benchmark, device), benchmark, precision=bench.precision)


@lru_cache(maxsize=1)
def random_benchmark(size: Size) -> Benchmark:
    """Random images: speed does not depend on what they show."""
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for part, count in (("train", size.per_class), ("test", size.per_class // 5)):
        labels = np.arange(TASKS * size.classes).repeat(count)
        shape = (len(labels), *size.shape[1:], size.shape[0])
        arrays |= {f"x_{part}": draw.integers(0, 256, shape, np.uint8), f"y_{part}": labels}
    return load_benchmark(arrays, sizes=[size.classes] * TASKS)


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
