"""How many runs share a GPU, and how they share it: NVIDIA's Multi-Process Service (MPS) and portions of the device."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from flashback.training.environment import PORTION

MOST_RUNS = 8  # up to eight runs share a GPU with a gain in speed (measured in docs/speed.md)
BYTES_PER_RUN = 4 << 30  # of the GPU: CUDA itself, a ResNet-18, its knowledge and its images
MPS = "nvidia-cuda-mps-control"
OVERLAP = 2.0  # sum of the portions of all runs, in devices: a run leaves part of its own portion idle


def jobs_at_a_time(jobs: int | None, runs: int, device: str) -> int:
    """How many of these runs train at a time: `jobs` if given, else 1 on a CPU and on a GPU as many as it holds."""
    if jobs is None:
        jobs = 1 if device != "cuda" else min(MOST_RUNS, usable_cores(), torch.cuda.mem_get_info()[0] // BYTES_PER_RUN)
    return max(1, min(jobs, runs))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def sharing_gpu(device: str, runs: int) -> Iterator[None]:
    """Let this many processes, started inside, share a GPU through MPS, each on a portion; else they take turns."""
    if device != "cuda":
        yield
        return
    portions = {PORTION: portion(runs)}
    if mps_is_on():
        with environment(portions):
            yield
        return
    torch.cuda.mem_get_info()  # starts CUDA in this process before MPS, so that it does not depend on MPS
    with tempfile.TemporaryDirectory(prefix="flashback-mps-", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        try:
            with environment(variables):
                started = control("-d")
            with environment({**variables, **portions} if started else {}):
                yield
        finally:
            with environment(variables):
                control(words="quit\n")


def mps_is_on() -> bool:
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ or control(words="get_server_list\n")


def portion(runs: int) -> str:
    """Percent of the multiprocessors for each of n runs that share a GPU; the user may have set it."""
    return os.environ.get(PORTION) or f"{min(100.0, 100 * OVERLAP / runs):.3g}"


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(before)


def control(*options: str, words: str = "") -> bool:
    """Whether the program that controls MPS is there and did what it was asked."""
    try:
        subprocess.run([MPS, *options], input=words, text=True, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
