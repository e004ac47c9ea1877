"""How many runs share a GPU, and how they share it: NVIDIA's Multi-Process Service (MPS) and portions of the device."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from flashback.training.environment import PORTION

MOST_RUNS = 8  # that eight runs pay is measured (docs/speed.md)
BYTES_PER_RUN = 4 << 30  # of the GPU: CUDA itself, a ResNet-18, its knowledge and its images
MPS = "nvidia-cuda-mps-control"
OVERLAP = 2.0  # the portions of all runs add up to so many devices


def jobs_at_a_time(jobs: int | None, runs: int, device: str) -> int:
    """How many of these runs train at a time: `jobs` if given, else 1 on a CPU and on a GPU as many as it holds.

    On a GPU every run needs a core of the CPU and `BYTES_PER_RUN` of free memory, and there are at most `MOST_RUNS`.
    """
    if jobs is None:
        jobs = 1 if device != "cuda" else min(MOST_RUNS, usable_cores(), torch.cuda.mem_get_info()[0] // BYTES_PER_RUN)
    return max(1, min(jobs, runs))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def sharing_gpu(device: str) -> Iterator[bool]:
    """Let processes started inside share the GPU through MPS if it can be started; yields whether they do.

    Without it their kernels take turns, and small ones leave most of the device idle. If MPS runs already, it is used.
    """
    if device != "cuda":
        yield False
    elif "CUDA_MPS_PIPE_DIRECTORY" in os.environ or control(words="get_server_list\n"):
        yield True
    else:
        torch.cuda.mem_get_info()  # starts CUDA in this process before MPS, so that it does not depend on MPS
        with started_mps() as started:
            yield started


@contextmanager
def started_mps() -> Iterator[bool]:
    with tempfile.TemporaryDirectory(prefix="flashback-mps-", ignore_cleanup_errors=True) as folder:
        folders = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        with environment(folders):
            try:
                started = control("-d")
                with environment({} if started else dict.fromkeys(folders)):
                    yield started
            finally:
                control(words="quit\n")


def portion(runs: int) -> str:
    """Percent of the multiprocessors for each of so many runs, unless the user has set it.

    Kernels of small batches are short and few. Spread over the whole device, those of all runs queue behind each other;
    on parts of it they run side by side, and parts that overlap use what one run leaves idle.
    """
    return os.environ.get(PORTION) or f"{min(100.0, 100 * OVERLAP / runs):.3g}"


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables for processes started inside; None removes one."""
    before = {name: os.environ.get(name) for name in values}
    set_environment(values)
    try:
        yield
    finally:
        set_environment(before)


def set_environment(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def control(*options: str, words: str = "") -> bool:
    """Whether the program that controls MPS is there and did what it was asked."""
    program = shutil.which(MPS)
    if program is None:
        return False
    try:
        subprocess.run([program, *options], input=words, text=True, capture_output=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True
