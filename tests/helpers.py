"""Small made data and quick configurations shared by the tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from flashback import configure
from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import RunConfig
from flashback.hosts import HOSTS, Host
from flashback.plugin import Flashback
from flashback.training import build_host


def tiny_benchmark(
    sizes: Sequence[int] = (2, 3, 2),
    per_class: int = 12,
    test_per_class: int = 6,
    shape: tuple[int, int, int] = (1, 12, 12),
) -> Benchmark:
    """Classes that a small network can tell apart: a fixed random pattern per class, plus noise."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randint(40, 216, (sum(sizes), *shape), generator=generator)

    def images(classes: range, count: int) -> Images:
        y = torch.arange(classes.start, classes.stop).repeat_interleave(count)
        noise = torch.randint(-40, 40, (len(y), *shape), generator=generator)
        return Images((patterns[y] + noise).clamp(0, 255).to(torch.uint8), y)

    tasks, start = [], 0
    for index, size in enumerate(sizes):
        classes = range(start, start + size)
        tasks.append(Task(index, classes, images(classes, per_class), images(classes, test_per_class)))
        start += size
    channels = shape[0]
    return Benchmark(
        name="tiny",
        dataset="tiny",
        order=tuple(range(start)),
        tasks=tuple(tasks),
        mean=(0.5,) * channels,
        std=(0.25,) * channels,
        class_names=tuple(map(str, range(start))),
        checksum="made",
    )


QUICK: dict[str, Any] = {
    "training.epochs": 2,
    "training.batch_size": 8,
    "training.lr": 0.05,
    "training.momentum": 0.0,
    "training.weight_decay": 0.0,
    "training.schedule": "step",
    "training.views": ["crop", "flip"],
    "flashback.epochs": 1,
    "flashback.alpha": 0.1,
}


def small_settings(name: str) -> dict[str, Any]:
    """Settings that make any host quick on the tiny benchmark: a small memory and short further stages."""
    small = {"memory_size": 21, "minibatch": 6, "contrastive_batch": 6}
    fields = [field.name for field in dataclasses.fields(HOSTS[name].Settings)]
    short = {field: 1 for field in fields if field.endswith("_epochs")}
    return {f"host__{field}": value for field, value in {**small, **short}.items() if field in fields}


def quick_config(host: str, flashback: bool = False, **settings: Any) -> RunConfig:
    """A configuration of a few steps; settings are dotted keys with '__' for the dot."""
    own = {key.replace("__", "."): value for key, value in settings.items()}
    return configure(host, "tiny", flashback=flashback, settings={**QUICK, **own})


def quick_host(host: str, benchmark: Benchmark | None = None, **settings: Any) -> Host:
    return build_host(quick_config(host, **settings), benchmark or tiny_benchmark(), "cpu")


def quick_flashback(host: str, benchmark: Benchmark | None = None, **settings: Any) -> Flashback:
    return Flashback(build_host(quick_config(host, flashback=True, **settings), benchmark or tiny_benchmark(), "cpu"))
