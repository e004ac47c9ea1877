"""A driver of test_shared_study.py: tunes in a folder of its own, and tells which choices it has tried."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from flashback.config import to_dict
from flashback.studies import jobs, tune


def run(config: Any, *, out: Path, **_: Any) -> None:
    """A run that answers at once: best at a rate of 0.3."""
    if out.name != "host":
        print(out.name, flush=True)
        time.sleep(0.05)
    out.mkdir(parents=True, exist_ok=True)
    accuracy = 80 - 10 * abs(config.training.lr - 0.3) + config.training.batch_size / 100
    for name, content in (
        ("config.yaml", yaml.safe_dump(to_dict(config))),
        ("run.json", "{}"),
        ("results.json", json.dumps({"class_incremental": {"average_accuracy": accuracy}})),
    ):
        (out / name).write_text(content)


if __name__ == "__main__":
    jobs.run = run
    over = {"training.lr": [0.01, 0.03, 0.1, 0.3, 1.0], "training.batch_size": [25, 50, 100]}
    tuned = tune("lwf-mc", out=sys.argv[1], storage=sys.argv[2], trials=int(sys.argv[3]), over=over)
    print(json.dumps(tuned.trials))
