"""Build what a configuration describes: the benchmark, the host, and Flashback around it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flashback.benchmarks import Benchmark, class_order, load_benchmark
from flashback.benchmarks.splits import task_sizes
from flashback.config import RunConfig
from flashback.errors import FlashbackError, abbreviate, require
from flashback.hosts.base import HOSTS, Host
from flashback.hosts.external import find_hosts
from flashback.nets import Backbone, ModuleNets, Shape, build_backbone
from flashback.plugin import Flashback
from flashback.recipes import configure
from flashback.recipes.resolving import dotted_keys
from flashback.training.environment import select_device

SINGLE_IMAGE = (
    "batch norm cannot train on a single image where the last feature maps are single pixels; raise "
    "training.batch_size, host.minibatch or host.memory_size, or use larger images"
)
LACK_OF_MEMORY = (
    "the device is out of memory; lower training.batch_size, training.evaluation_batch or the host's memory"
)


def open_benchmark(
    config: RunConfig, data: str | Path | None = None, download: bool = True, labels_only: bool = False
) -> Benchmark:
    return load_benchmark(
        **asdict(config.benchmark), data=data, seed=config.seed, download=download, labels_only=labels_only
    )


def build_host(
    config: RunConfig | str,
    benchmark: Benchmark,
    device: torch.device | str = "auto",
    *,
    net: nn.Module | str | None = None,
    pretrained: bool = True,
    **settings: Any,
) -> Host:
    """Build a host that is ready to train on a benchmark.

    A configuration's flashback settings take effect in `Flashback(host)` or `run`, not here.

    Args:
        config: What `configure` returns, or the name of a host.
        benchmark: A loaded benchmark.
        device: "cpu", "cuda", or "auto" for a GPU if there is one.
        net: The name of a net, or any `nn.Module` that maps images [n, C, H, W] to feature vectors [n, width]; remove
            its classification layer if it has one. The host trains a copy, which starts from the module's weights.
            A host that needs more than one network initialises further copies through `reset_parameters()`.
        pretrained: Whether to load the weights that the name of a net asks for; False if a checkpoint replaces them.
        settings: With the name of a host, settings by their plain names: memory_size=200, epochs=5, seed=1.

    Returns:
        The host, untrained.

    Raises:
        FlashbackError: If a name or setting is unknown, or the configuration does not fit the benchmark.
    """
    device = select_device(device)
    check_loaded(benchmark, "fb.build_host")
    if isinstance(net, str):
        settings["net"] = net
    if isinstance(config, str):
        find_hosts()
        overrides = {"benchmark.validation": benchmark.validation, **dotted_keys(HOSTS[config], settings)}
        config = configure(config, benchmark.name, settings=overrides)
    elif settings:
        raise FlashbackError(f"give {', '.join(settings)} to fb.configure, which makes the configuration")
    require(
        isinstance(config, RunConfig),
        f"fb.build_host takes the name of a host or what fb.configure returns, not {type(config).__name__}",
    )
    check_benchmark(config, benchmark)
    backbones: Callable[[Shape, float], Backbone] | None = None
    if config.host.net and not pretrained:
        backbones = partial(build_backbone, config.host.net, pretrained=False)
    if isinstance(net, nn.Module):
        backbones = modules = ModuleNets(net)
        config = replace(config, host=replace(config.host, net=modules.name))
    with explaining_failures():
        host = HOSTS[config.host.name](config, benchmark, device, backbones)
    host.check()
    for task in benchmark.tasks:
        host.check_revisits(task)
    return host


def check_loaded(benchmark: Benchmark, function: str) -> None:
    require(
        isinstance(benchmark, Benchmark),
        f"{function} takes a loaded benchmark, not {type(benchmark).__name__}; load it with fb.load_benchmark",
    )


def check_benchmark(config: RunConfig, benchmark: Benchmark) -> None:
    """Refuse a benchmark that contradicts a configuration; None in the configuration leaves a value open."""
    section, classes = config.benchmark, len(benchmark.order)
    is_named = benchmark.name in (section.name, Path(section.name).stem)  # a file is named by its stem
    order = (
        None if section.order is None else class_order(section.order, classes, config.seed, benchmark.names_by_label)
    )
    sizes = None if section.sizes is None else list(task_sizes(section.sizes, classes)[: section.tasks])
    for key, expected, actual in (
        ("name", None if is_named else section.name, benchmark.name),
        ("order", order, benchmark.order),
        ("sizes", sizes, benchmark.sizes),
        ("tasks", section.tasks, len(benchmark.tasks)),
        ("validation", section.validation, benchmark.validation),
    ):
        require(
            expected is None or expected == actual,
            f"benchmark.{key} is {abbreviate(expected)} in the configuration but {abbreviate(actual)} in the "
            "benchmark; give fb.configure and fb.load_benchmark the same",
        )


def build_method(
    config: RunConfig, benchmark: Benchmark, device: torch.device | str = "auto", pretrained: bool = True
) -> Host | Flashback:
    host = build_host(config, benchmark, device, pretrained=pretrained)
    return Flashback(host) if config.flashback.enabled else host


@contextmanager
def explaining_failures() -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError, ValueError) as error:
        if is_lack_of_memory(error):
            raise FlashbackError(LACK_OF_MEMORY) from None
        if "Expected more than 1 value per channel" in str(error):
            raise FlashbackError(SINGLE_IMAGE) from None
        raise


def is_lack_of_memory(error: Exception) -> bool:
    """Only CUDA's allocator has its own exception; the others are recognised by their messages."""
    words = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)
