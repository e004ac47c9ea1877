"""A host for test_ray.py and test_slurm.py that takes its time where the environment says so."""

from __future__ import annotations

import os
import time
from typing import Any

from flashback.hosts import HOSTS


@HOSTS.register("slow")
class Slow(HOSTS["finetune"]):  # type: ignore[misc]
    def after_step(self, step: Any) -> None:
        super().after_step(step)
        time.sleep(float(os.environ.get("SECONDS_PER_STEP", "0")))
