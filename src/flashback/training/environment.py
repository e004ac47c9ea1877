"""Device, precision, determinism and versions of a run, and what its record says about them."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from flashback.benchmarks import Benchmark
from flashback.benchmarks.from_record import DATA, describe_data
from flashback.config import RunConfig
from flashback.errors import FlashbackError
from flashback.hosts.external import external_code
from flashback.nets import net_for
from flashback.records import RunFolder, differing_keys

PORTION = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"  # share of the GPU that a process may use; ignored without MPS
WHOLE = "100"
SWITCHES = (
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    (torch.backends.cudnn, "benchmark"),
    (torch.backends.cudnn, "allow_tf32"),
    (torch.backends.cuda.matmul, "allow_tf32"),
)


def select_device(device: str | torch.device = "auto") -> torch.device:
    """The device to train on; "auto" takes a GPU if there is one."""
    device = "cuda" if str(device) == "cuda:0" else str(device)
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise FlashbackError(
            f"device (--device) must be auto, cpu or cuda, not '{device}'; set CUDA_VISIBLE_DEVICES to choose a GPU"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise FlashbackError("device (--device) is cuda, but there is no CUDA device; use cpu or auto")
    return torch.device(device)


def select_precision(config: RunConfig, device: torch.device) -> str:
    if device.type != "cuda" and config.training.precision in ("tf32", "bf16"):
        raise FlashbackError(f"training.precision {config.training.precision} needs a CUDA device; on the CPU use fp32")
    return config.training.precision or ("bf16" if device.type == "cuda" else "fp32")


@contextmanager
def prepared_device(config: RunConfig, device: torch.device, precision: str) -> Iterator[None]:
    """Call `prepare_device`, and restore the global switches of torch afterwards."""
    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    switches = ((holder, name, getattr(holder, name)) for holder, name in SWITCHES)
    before = list(switches) if device.type == "cuda" else []
    prepare_device(config, device, precision)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        for holder, name, value in before:
            setattr(holder, name, value)


def prepare_device(config: RunConfig, device: torch.device, precision: str) -> None:
    """Set the switches of torch: deterministic unless `fast`.

    A CPU run uses one thread unless OMP_NUM_THREADS is set: results depend on the number of threads, and small
    networks gain little from a second one.
    """
    if device.type != "cuda":
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when CUDA starts
    torch.use_deterministic_algorithms(not config.fast)
    # Deterministic mode also fills every new tensor, which takes a seventh of the step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = config.fast
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


# ---------------------------------------------------------------- records


def describe(config: RunConfig, benchmark: Benchmark, device: torch.device, precision: str) -> dict[str, Any]:
    """The first part of run.json. Runs of equal settings and equal `must_match` give equal results."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "host": config.host.name,
        "benchmark": benchmark.name,
        "flashback": config.flashback.enabled,
        "equal_budget": config.flashback.equal_budget(config.training.epochs),
        "seed": config.seed,
        "net": config.host.net or net_for(benchmark.image_shape),
        "class_order": list(benchmark.order),
        "task_sizes": list(benchmark.sizes),
        "data_checksum": benchmark.checksum,
        DATA: describe_data(benchmark),
        "device": name,
        "device_type": device.type,
        "precision": precision,
        "deterministic": device.type == "cpu" or not config.fast,
        "must_match": {
            "device": name,
            "precision": precision,
            **rounding_of(device),
            **external_code(config.host.name, config.host.net),
            **versions(),
        },
        "versions": versions(),
        "commit": commit(),
        "source": source_digest(),
    }


def rounding_of(device: torch.device) -> dict[str, Any]:
    """What decides how sums are rounded: the share of the device that a run has, its instructions and libraries."""
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return {"portion": os.environ.get(PORTION, WHOLE), "cuda": torch.version.cuda, "cudnn": cudnn}
    build = torch.__config__.show()
    blas = re.findall(r"BLAS_INFO=\w+|Math Kernel Library Version \S+|MKL-DNN v\S+", build)
    return {
        "threads": torch.get_num_threads(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "blas": ", ".join(sorted(blas)),
    }


def versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("flashback-cl", "torch", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # run from a source tree
            versions[package] = "source"
    return versions


def commit() -> str | None:
    """The commit of the source tree, or None for an installed package."""
    here = Path(__file__).resolve()

    def git(*words: str) -> str:
        command = ["git", "-C", str(here.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", here.name)  # an installed package may lie in another repository
        return git("rev-parse", "HEAD") or None
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def source_digest() -> str:
    """A digest of the code and recipes of this package."""
    here = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in here.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compare_environment(folder: RunFolder, facts: dict[str, Any]) -> list[str]:
    """Refuse other data and another kind of device; return what else differs from the start of the run."""
    before = folder.read_run()
    for key, sentence in (
        ("data_checksum", "the data have changed since the run in {} began; start a new run"),
        ("device_type", "the run in {} began on another kind of device; use --device {}"),
    ):
        if before.get(key, facts[key]) != facts[key]:
            raise FlashbackError(sentence.format(folder.path, before[key]))
    must_match = before.get("must_match")
    differing = differing_keys(must_match, facts["must_match"]) if isinstance(must_match, dict) else []
    differing += ["source"] if before.get("source", facts["source"]) != facts["source"] else []
    return differing


def changed_on_resume(folder: RunFolder, differing: Sequence[str]) -> list[str]:
    """Everything that has changed since a run began; warns of what is new."""
    if differing:
        warnings.warn(
            f"the run in {folder.path} continues in another environment ({', '.join(differing)}), so its results may "
            "differ",
            stacklevel=2,
        )
    earlier = folder.read_run().get("changed_on_resume")
    return sorted({*differing, *(map(str, earlier) if isinstance(earlier, list) else ())})
