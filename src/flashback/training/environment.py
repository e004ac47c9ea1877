"""Device, precision, determinism and versions of a run, and what its record says about them."""

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

from flashback import ranks
from flashback.benchmarks import Benchmark
from flashback.benchmarks.from_record import DATA, describe_data
from flashback.config import RunConfig
from flashback.errors import require
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
    gpu, has_gpu = f"cuda:{ranks.local_rank()}", torch.cuda.is_available()  # the GPU of this rank
    name = "cuda" if str(device) in ("cuda:0", gpu) else str(device)
    require(
        name in ("auto", "cpu", "cuda"),
        f"device (--device) must be auto, cpu or cuda, not '{name}'; set CUDA_VISIBLE_DEVICES to choose a GPU",
    )
    require(name != "cuda" or has_gpu, "device (--device) is cuda, but there is no CUDA device; use cpu or auto")
    name = ("cuda" if has_gpu else "cpu") if name == "auto" else name
    if name == "cuda" and ranks.launched():
        ranks.check_gpus(int(os.environ["LOCAL_WORLD_SIZE"]))
        return torch.device(gpu)
    return torch.device(name)


def select_precision(config: RunConfig, device: torch.device) -> str:
    precision, on_gpu = config.training.precision, device.type == "cuda"
    require(
        on_gpu or precision not in ("tf32", "bf16"),
        f"training.precision {precision} needs a CUDA device; on the CPU use fp32",
    )
    return precision or ("bf16" if on_gpu else "fp32")


@contextmanager
def prepared_device(config: RunConfig, device: torch.device, precision: str) -> Iterator[None]:
    """Set the switches of torch, deterministic unless `fast`, and restore them afterwards."""
    threads, deterministic = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    switches = SWITCHES if device.type == "cuda" else ()
    before = [(holder, name, getattr(holder, name)) for holder, name in switches]
    prepare_device(config, device, precision)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(deterministic)
        for holder, name, value in before:
            setattr(holder, name, value)


def prepare_device(config: RunConfig, device: torch.device, precision: str) -> None:
    if device.type != "cuda":
        if "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)  # results depend on it, and small networks gain little from a second thread
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when CUDA starts
    torch.use_deterministic_algorithms(not config.fast)
    # Deterministic mode also fills every new tensor, which takes a seventh of the step.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = config.fast
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"


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
            **({"ranks": ranks.world_size()} if ranks.world_size() > 1 else {}),
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
    """The commit of the source tree, marked where files differ from it; None for an installed package.

    A package may be installed inside another repository, so its own file has to be in the repository asked.
    """
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, timeout=10, check=True)
        head = subprocess.run(
            [*git, "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+changes"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
        return head.stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


@cache
def source_digest() -> str:
    here = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(path for path in here.rglob("*") if path.suffix in (".py", ".yaml")):
        digest.update(f"{path.relative_to(here).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def compare(folder: RunFolder, facts: dict[str, Any]) -> list[str]:
    """Refuse other data and another kind of device; return what else differs from the start of the run."""
    before = {**facts, **folder.read_run()}
    require(
        before["data_checksum"] == facts["data_checksum"],
        f"the data have changed since the run in {folder.path} began; start a new run",
    )
    require(
        before["device_type"] == facts["device_type"],
        f"the run in {folder.path} began on another kind of device; use --device {before['device_type']}",
    )
    must_match = before["must_match"] if isinstance(before["must_match"], dict) else facts["must_match"]
    source = ["source"] if before["source"] != facts["source"] else []
    return differing_keys(must_match, facts["must_match"]) + source


def changed_on_resume(folder: RunFolder, keys: Sequence[str]) -> list[str]:
    """Everything that has changed since a run began; warns of what is new."""
    if keys:
        what = ", ".join(keys)
        warnings.warn(
            f"the run in {folder.path} continues in another environment ({what}), so its results may differ",
            stacklevel=2,
        )
    earlier = folder.read_run().get("changed_on_resume")
    return sorted({*keys, *(map(str, earlier) if isinstance(earlier, list) else ())})
