"""Work for the processes of test_processes.py; in a module of its own, since it is sent to them by name."""

from __future__ import annotations

import os
import signal
import warnings
from typing import Any


def tell_portion(job: None, observer: Any) -> None:
    observer({"event": "portion", "portion": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")})


def tell_process(job: str, observer: Any) -> None:
    observer({"event": "process", "pid": os.getpid()})
    if job == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "warns":
        warnings.warn("a word of a process", stacklevel=1)
