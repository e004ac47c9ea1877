"""What is trained to measure speed: made images, and a trainer for them."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from flashback.benchmarks import Benchmark, Images, Task
from flashback.hosts import HOSTS
from flashback.hosts.outside import HostFiles
from flashback.recipes import configure
from flashback.training.building import build_method
from flashback.training.environment import prepare_device
from flashback.training.trainer import Trainer

EXEMPLARS = 20  # per class
FIRST_PHASE = 6  # phase 1 is a sixth of the epochs (the paper's Table 6)


@dataclass(frozen=True)
class Size:
    """What is measured: images like CIFAR's with ResNet-18 on a GPU, a small version on a CPU."""

    shape: tuple[int, int, int]
    net: str
    classes: int  # per task
    per_class: int
    batches: tuple[int, ...]
    seconds: float  # of steady state for each figure
    tasks: int  # of the whole run, where nothing else is asked for
    epochs: int  # likewise

    @property
    def images(self) -> int:
        """Of one task."""
        return self.classes * self.per_class


ON_GPU = Size((3, 32, 32), "resnet18", 10, 500, (32, 128, 512), 1.0, 3, 6)
ON_CPU = Size((1, 28, 28), "smallcnn", 2, 100, (32,), 0.3, 3, 2)


def size_for(device: torch.device) -> Size:
    return ON_GPU if device.type == "cuda" else ON_CPU


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


@dataclass(frozen=True)
class Setup:
    """Where and at which size figures are taken."""

    size: Size
    device: torch.device
    precision: str
    host_file: HostFiles = None  # for the processes of whole runs

    def trainer(
        self,
        host: str,
        flashback: bool = False,
        mode: str = "captured",
        *,
        tasks: int | None = None,
        epochs: int | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Trainer:
        tasks, epochs = tasks or self.size.tasks, epochs or self.size.epochs
        values = {
            "host.net": self.size.net,
            "training.epochs": epochs,
            "training.precision": self.precision,
            "flashback.epochs": max(1, epochs // FIRST_PHASE),
            "capture": mode != "eager",
            "fast": mode == "fast",
        }
        if hasattr(HOSTS[host].Settings(), "memory_size"):
            values["host.memory_size"] = EXEMPLARS * self.size.classes * tasks
        config = configure(host, "made", flashback=flashback, settings={**values, **(settings or {})})
        prepare_device(config, self.device, self.precision)
        benchmark = made_benchmark(self.size, tasks)
        return Trainer(build_method(config, benchmark, self.device), benchmark, precision=self.precision)

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def free(self) -> None:
        """Give back the memory of earlier figures."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.forget_peak()

    def forget_peak(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak_bytes(self) -> int:
        """Of the device since it was forgotten; a CPU does not say."""
        return torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
