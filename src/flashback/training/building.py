"""From a configuration to what is trained: the benchmark, the host, and Flashback around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks import Benchmark, class_order, load_benchmark
from flashback.benchmarks.orders import task_sizes
from flashback.config import RunConfig
from flashback.errors import FlashbackError, abbreviate, require
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.outside import find_hosts
from flashback.plugin import Flashback
from flashback.recipes import configure
from flashback.recipes.resolving import dotted_keys
from flashback.training.environment import select_device

SINGLE_IMAGE = (
    "batch norm has nothing to compare a single image with, in a network whose last maps are single pixels; raise "
    "training.batch_size, host.minibatch or host.memory_size, or use larger images"
)
LACK_OF_MEMORY = (
    "the device has run out of memory; lower training.batch_size or training.evaluation_batch, or what the host keeps"
)


def open_benchmark(
    config: RunConfig, data: str | Path | None = None, download: bool = True, labels_only: bool = False
) -> Benchmark:
    """The benchmark of a configuration; a sketch has labels alone."""
    chosen = asdict(config.benchmark)
    return load_benchmark(**chosen, data=data, seed=config.seed, download=download, labels_only=labels_only)


def build_host(
    config: RunConfig | str, benchmark: Benchmark, device: torch.device | str = "auto", **settings: Any
) -> Host:
    """The host of a configuration, ready to train on a benchmark, by default on a GPU where there is one.

    Instead of a configuration, a name with settings by their plain names: "icarl", memory_size=200, epochs=5, seed=1.
    What a configuration says of flashback is for `Flashback(host)`, which takes it over, or for `run`.
    """
    device = select_device(device)
    check_loaded(benchmark, "fb.build_host")
    if isinstance(config, str):
        find_hosts()
        own = {"benchmark.validation": benchmark.validation, **dotted_keys(HOSTS[config], settings)}
        config = configure(config, benchmark.name, settings=own)
    elif settings:
        raise FlashbackError(
            f"a configuration has its settings already; give {', '.join(settings)} to fb.configure, not fb.build_host"
        )
    require(
        isinstance(config, RunConfig),
        f"fb.build_host takes the name of a host or what fb.configure returns, not {type(config).__name__}",
    )
    check_benchmark(config, benchmark)
    with saying_what_to_change():
        host = HOSTS[config.host.name](config, benchmark, device)
    host.check()
    return host


def check_loaded(benchmark: Benchmark, what: str) -> None:
    require(
        isinstance(benchmark, Benchmark),
        f"{what} takes a benchmark that is loaded, not {type(benchmark).__name__}; load it with fb.load_benchmark",
    )


def check_benchmark(config: RunConfig, given: Benchmark) -> None:
    """Refuse a benchmark that contradicts a configuration; what the configuration leaves open, None, cannot."""
    chosen = config.benchmark
    is_named = given.name in (chosen.name, Path(chosen.name).stem)  # files of one's own are named by their stem
    order = None if chosen.order is None else class_order(chosen.order, len(given.order), config.seed)
    sizes = None if chosen.sizes is None else list(task_sizes(chosen.sizes, len(given.order))[: chosen.tasks])
    for key, said, found in (
        ("name", None if is_named else chosen.name, given.name),
        ("order", order, given.order),
        ("sizes", sizes, given.sizes),
        ("tasks", chosen.tasks, len(given.tasks)),
        ("validation", chosen.validation, given.validation),
    ):
        require(
            said is None or said == found,
            f"benchmark.{key} is {abbreviate(said)} in the configuration but {abbreviate(found)} in the benchmark; "
            "give fb.configure and fb.load_benchmark the same",
        )


def build_method(config: RunConfig, benchmark: Benchmark, device: torch.device | str = "auto") -> Host | Flashback:
    """The host, wrapped by Flashback where the configuration asks for it."""
    host = build_host(config, benchmark, device)
    return Flashback(host) if config.flashback.enabled else host


@contextmanager
def saying_what_to_change() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_lack_of_memory(error):
            raise
        raise FlashbackError(LACK_OF_MEMORY) from None
    except ValueError as error:
        if "Expected more than 1 value per channel" not in str(error):
            raise
        raise FlashbackError(SINGLE_IMAGE) from None


def is_lack_of_memory(error: Exception) -> bool:
    """Only CUDA's allocator has an exception of its own; the others are known by what they say."""
    words = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Storage size calculation overflowed")
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(word in str(error) for word in words)
