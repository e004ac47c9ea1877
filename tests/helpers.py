"""Small made data and quick configurations shared by the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from flashback import configure
from flashback.benchmarks import Benchmark, Images, Task
from flashback.config import RunConfig
from flashback.conformance import short_settings
from flashback.hosts import HOSTS, Host
from flashback.hosts.exemplars import herd_classes
from flashback.plugin import Flashback
from flashback.registry import Registry
from flashback.training import build_host


def lacking(what: str) -> NoReturn:
    """A test that cannot run is skipped; not in CI, where what passes must have been seen."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {what}")


@contextmanager
def forgetting(*registries: Registry[Any]) -> Iterator[None]:
    """What is registered inside is gone afterwards."""
    known = [dict(registry._entries) for registry in registries]
    try:
        yield
    finally:
        for registry, entries in zip(registries, known, strict=True):
            registry._entries = entries


def tiny_benchmark(
    sizes: Sequence[int] = (2, 3, 2),
    per_class: int = 12,
    test_per_class: int = 6,
    shape: tuple[int, int, int] = (1, 12, 12),
    revisited: Sequence[tuple[int, ...]] = (),
) -> Benchmark:
    """Classes that a small network can tell apart: a fixed random pattern per class, plus noise.

    `revisited` has the known classes of each task that come again.
    """
    generator = torch.Generator().manual_seed(7)
    patterns = torch.randint(40, 216, (sum(sizes), *shape), generator=generator)

    def images(classes: Sequence[int], count: int) -> Images:
        y = torch.tensor(classes).repeat_interleave(count)
        noise = torch.randint(-40, 40, (len(y), *shape), generator=generator)
        return Images((patterns[y] + noise).clamp(0, 255).to(torch.uint8), y)

    tasks, start = [], 0
    for index, size in enumerate(sizes):
        classes, again = range(start, start + size), revisited[index] if revisited else ()
        present = [*again, *classes]
        tasks.append(Task(index, classes, images(present, per_class), images(present, test_per_class), again))
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


def revisiting_benchmark(per_class: int = 6) -> Benchmark:
    """Two new classes; two new ones with one known again; all known ones alone."""
    return tiny_benchmark((2, 2, 0), per_class, test_per_class=3, revisited=[(), (1,), (0, 1, 2, 3)])


def write_tiny(path: Path, shift: int = 0) -> Path:
    """The tiny benchmark as a file; shifted it is another one."""
    arrays: dict[str, Any] = {}
    for part in ("train", "test"):
        images = [getattr(task, part) for task in tiny_benchmark().tasks]
        arrays[f"x_{part}"] = torch.cat([each.x for each in images]).permute(0, 2, 3, 1).numpy() + np.uint8(shift)
        arrays[f"y_{part}"] = torch.cat([each.y for each in images]).numpy()
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


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
    """Settings that make any host quick on the tiny benchmark, as `quick_config` takes them."""
    return {key.replace(".", "__"): value for key, value in short_settings(HOSTS[name]).items()}


def quick_config(host: str, flashback: bool = False, **settings: Any) -> RunConfig:
    """A configuration of a few steps; settings are dotted keys with '__' for the dot."""
    overrides = {key.replace("__", "."): value for key, value in settings.items()}
    return configure(host, "tiny", flashback=flashback, settings={**QUICK, **overrides})


def quick_host(host: str, benchmark: Benchmark | None = None, **settings: Any) -> Host:
    return build_host(quick_config(host, **settings), benchmark or tiny_benchmark(), "cpu")


def quick_flashback(host: str, benchmark: Benchmark | None = None, **settings: Any) -> Flashback:
    return Flashback(build_host(quick_config(host, flashback=True, **settings), benchmark or tiny_benchmark(), "cpu"))


def herd(features: torch.Tensor, quota: int, normalise: bool = False) -> torch.Tensor:
    """The herding order of a single class."""
    return herd_classes([features], quota, normalise)[0]
