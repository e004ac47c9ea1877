"""Work for processes of the tests of packing; in a module of its own, since it travels to them by name."""

from __future__ import annotations

import os
import time
from typing import Any


def sleep_through_epochs(epochs: int, observer: Any) -> None:
    """A run on a device that never gets slower: epochs of 20 ms."""
    for epoch in range(epochs):
        time.sleep(0.02)
        observer({"event": "epoch", "stage": "learn", "task": 0, "steps": 10 * (epoch + 1), "epoch": epoch})


def tell_portion(job: None, observer: Any) -> None:
    observer({"event": "portion", "portion": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")})
