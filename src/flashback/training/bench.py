"""How fast it is: images per second for every host, eager and captured, and the cost of everything around the step."""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import CheckpointConfig
from flashback.errors import FlashbackError
from flashback.hosts import HOSTS
from flashback.hosts.base import features_of
from flashback.hosts.stages import Stage
from flashback.knowledge.fisher import fisher_diagonal
from flashback.memory import class_means, herd_classes
from flashback.plugin import Flashback
from flashback.recipes import configure
from flashback.records import write_atomically
from flashback.training.checkpoints import Checkpoints
from flashback.training.evaluation import evaluate
from flashback.training.fast import CapturedStep, make_step
from flashback.training.run import build_method, prepare_device, select_device, select_precision, versions
from flashback.training.step import TrainingStep, set_rate
from flashback.training.trainer import Position, Trainer


@dataclass(frozen=True)
class Size:
    """What is measured: images like CIFAR's with ResNet-18 on a GPU, a small version on a CPU."""

    shape: tuple[int, int, int]
    net: str
    classes: int  # per task
    per_class: int
    batches: tuple[int, ...]
    seconds: float  # of steady state for each figure
    epochs: int  # of the whole run


ON_GPU = Size((3, 32, 32), "resnet18", 10, 500, (32, 128, 512), 1.0, 6)
ON_CPU = Size((1, 28, 28), "smallcnn", 2, 100, (32,), 0.3, 2)


FIRST_STEPS = 20  # of the first task, so that a memory holds something


@dataclass(frozen=True)
class Speed:
    host: str
    flashback: bool
    captured: bool
    fast: bool
    batch_size: int
    images_per_second: float
    preparation_seconds: float  # until the steady state: first steps, compilation, capture
    peak_bytes: int


@dataclass
class Bench:
    """All figures of one machine."""

    device: str
    date: str
    versions: dict[str, str]
    size: dict[str, Any]
    speeds: list[Speed] = field(default_factory=list)
    parts: dict[str, float] = field(default_factory=dict)  # seconds of single parts, and ratios
    runs: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def made_benchmark(size: Size, tasks: int = 3) -> Benchmark:
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


def bench(
    *,
    hosts: Iterable[str] = (),
    batches: Sequence[int] = (),
    device: str = "auto",
    out: str | Path | None = None,
    modes: Sequence[str] = ("eager", "captured", "fast"),
    show: Callable[[str], None] = lambda line: None,
) -> Bench:
    """Measure everything; `show` gets a line for each figure as it comes. With `out`, leave bench.json there."""
    target = select_device(device)
    size = ON_GPU if target.type == "cuda" else ON_CPU
    name = torch.cuda.get_device_name(target) if target.type == "cuda" else platform.processor() or platform.machine()
    result = Bench(name, datetime.now(UTC).isoformat(timespec="seconds"), versions(), asdict(size))
    chosen = list(hosts) or [name for name in HOSTS if HOSTS[name].task_by_task]
    usable = [mode for mode in modes if target.type == "cuda" or mode == "eager"]
    for host in chosen:
        for flashback in (False, True) if HOSTS[host].has_knowledge else (False,):
            for batch in batches or size.batches:
                for mode in usable:
                    measure(result, show, size, target, host, flashback, batch, mode)
    result.parts = parts(size, target)
    for name, value in result.parts.items():
        show(f"{name}: {value:.4f}")
    result.runs = [whole_run(size, target, flashback) for flashback in (False, True)]
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_atomically(Path(out) / "bench.json", json.dumps(asdict(result), indent=1) + "\n")
    return result


def measure(
    result: Bench,
    show: Callable[[str], None],
    size: Size,
    device: torch.device,
    host: str,
    flashback: bool,
    batch: int,
    mode: str,
) -> None:
    label = f"{host}{' + flashback' if flashback else ''}, batch {batch}, {mode}"
    try:
        speed = steady_state(size, device, host, flashback, batch, captured=mode != "eager", fast=mode == "fast")
    except (RuntimeError, FlashbackError) as problem:
        result.failures.append(f"{label}: {str(problem).splitlines()[0]}")
        show(result.failures[-1])
        return
    result.speeds.append(speed)
    show(f"{label}: {speed.images_per_second:,.0f} images/s")


# ---------------------------------------------------------------- the training step


def trainer_for(size: Size, device: torch.device, host: str, flashback: bool, **settings: Any) -> Trainer:
    memory = {"host.memory_size": 20 * size.classes * 3} if hasattr(HOSTS[host].Settings(), "memory_size") else {}
    values = {"host.net": size.net, "training.epochs": size.epochs, "flashback.epochs": 1, **memory, **settings}
    config = configure(host, "made", flashback=flashback, settings=values)
    precision = select_precision(config, device)
    prepare_device(config, device, precision)
    benchmark = made_benchmark(size)
    return Trainer(build_method(config, benchmark, device), benchmark, precision=precision)


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


def steady_state(
    size: Size, device: torch.device, host: str, flashback: bool, batch: int, captured: bool, fast: bool
) -> Speed:
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    settings = {"training.batch_size": batch, "capture": captured, "fast": fast, "compile": captured}
    trainer = trainer_for(size, device, host, flashback, **settings)
    with torch.compiler.set_stance("force_eager"):
        stage = begin_second_task(trainer)
        stream = stage.stream()
        trainer.host.train()
        trainer.host.generator.manual_seed(0)
        step = make_step(trainer.host, stage, stream, trainer.precision)
        set_rate(step.optimiser, 1e-4)
        stage.before_epoch(0)
        positions = torch.randint(0, len(stream), (64, min(batch, len(stream))), device=device)
        began = time.monotonic()
        for k in range(8):
            step(positions[k])
        wait(device)
        preparation = time.monotonic() - began
        if isinstance(step, CapturedStep) and not step.graphs:
            raise RuntimeError("the step could not be captured")
        rate = repeat(lambda k: step(positions[k % 64]), size.seconds, device) * positions.shape[1]
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Speed(host, flashback, captured, fast, batch, round(rate, 1), round(preparation, 2), peak)


def repeat(action: Callable[[int], None], seconds: float, device: torch.device) -> float:
    """How often per second an action runs, measured over at least so many seconds."""
    count, block = 0, 16
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(block):
            action(count)
            count += 1
        wait(device)
    return count / (time.monotonic() - began)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# ---------------------------------------------------------------- everything around it


def parts(size: Size, device: torch.device) -> dict[str, float]:
    """Seconds of the work at the end of a task, of a checkpoint, and the trainer's own share of a step."""
    trainer = trainer_for(size, device, "icarl", False)
    host, task = trainer.host, trainer.benchmark.tasks[0]
    images = task.train.x.to(device)
    features = host.embed(images, features_of).reshape(size.classes, size.per_class, -1)
    labels = task.train.y.to(device)

    def herd() -> None:
        herd_classes(features, 20)
        class_means(features.flatten(0, 1), labels, size.classes)

    with tempfile.TemporaryDirectory() as folder:
        keeper = Checkpoints(Path(folder), CheckpointConfig())
        return {
            "fisher": seconds_of(
                lambda: fisher_diagonal(host.net, images, labels, host.views.plain, "empirical"), device
            ),
            "herding and class means": seconds_of(herd, device),
            "evaluation of a task": seconds_of(lambda: evaluate(host, [task]), device),
            "checkpoint": seconds_of(lambda: keeper.write(trainer.state()), device),
            "trainer over a bare loop": trainer_overhead(size, device),
        }


def seconds_of(
    action: Callable[[], object], device: torch.device, clock: Callable[[], float] = time.monotonic
) -> float:
    """The second time counts: the first one loads kernels."""
    action()
    wait(device)
    began = clock()
    action()
    wait(device)
    return round(clock() - began, 5)


def trainer_overhead(size: Size, device: torch.device) -> float:
    """Time of an eager epoch through the trainer over that of a bare loop with the same mathematics.

    Both in turn, several times, and the best of each; on a CPU by the time it worked, so that others do not count.
    """
    trainer = trainer_for(size, device, "finetune", False, **{"capture": False, "training.lr": 0.01})
    host = trainer.host.train()
    trainer.method.enter(trainer.benchmark.tasks[0])
    stage = trainer.method.stages()[0]
    trainer.allocate(stage)
    stream = stage.stream()
    order = stream.order("bench")
    optimiser = torch.optim.SGD(host.net.parameters(), lr=0.01, foreach=True)
    trainer.step = make_step(host, stage, stream, "fp32")
    trainer.history.budget.append({"steps": 0, "images": 0})

    def bare() -> None:
        total = torch.zeros((), device=device)
        for indices in torch.split(order, stage.batch_size):
            x = host.views.weak(stream.images[indices], host.generator)
            optimiser.zero_grad(set_to_none=True)
            loss = F.cross_entropy(host.net(x).logits, stream.labels[indices])
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            total += loss.detach()
        float(total)

    def trained() -> None:
        trainer.position = Position()
        trainer.run_epoch(stage, stream, 0, order)

    clock = time.process_time if device.type == "cpu" else time.monotonic
    times = [(seconds_of(trained, device, clock), seconds_of(bare, device, clock)) for _ in range(5)]
    return round(min(time[0] for time in times) / min(time[1] for time in times), 4)


def whole_run(size: Size, device: torch.device, flashback: bool) -> dict[str, Any]:
    """A whole run of iCaRL: images per second over everything, and the share of time outside training steps."""
    trainer = trainer_for(size, device, "icarl", flashback)
    trainer.run()
    history = trainer.history
    images = sum(entry["images"] for entry in history.budget)
    return {
        "host": "icarl",
        "flashback": isinstance(trainer.method, Flashback),
        "seconds": round(history.seconds, 3),
        "images_per_second": round(images / history.seconds, 1),
        "share_outside_steps": round(1 - history.training_seconds / history.seconds, 4),
        "knowledge_bytes": history.bytes,
    }
