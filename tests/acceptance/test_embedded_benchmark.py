"""On the embedded benchmark, over three seeds, methods that remember beat finetune, and joint training beats all."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from flashback import configure, run

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)
SHORTER: dict[str, dict[str, Any]] = {  # than their recipes: enough to tell, and quick
    "icarl": {"training__epochs": 4},
    "foster": {"training__epochs": 4, "host__compression_epochs": 3},
}
Accuracies = Callable[..., list[float]]


@pytest.fixture
def accuracies(tmp_path_factory: pytest.TempPathFactory) -> Accuracies:
    """Final average accuracies of a host over the seeds; every run is made once, also by parallel test processes."""
    shared = tmp_path_factory.getbasetemp().parent / "embedded-benchmark"
    shared.mkdir(exist_ok=True)

    def measure(host: str, setting: str = "class_incremental", **settings: Any) -> list[float]:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        return [once(shared, host, seed, dotted)[setting]["average_accuracy"] for seed in SEEDS]

    return measure


def once(shared: Path, host: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    name = "-".join([host, str(seed), *(f"{key}={value}" for key, value in settings.items())])
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        answer = shared / f"{name}.json"
        if not answer.exists():
            result = run(configure(host, seed=seed, settings=settings), device="cpu")
            answer.write_text(json.dumps(result.as_dict()))
        document: dict[str, Any] = json.loads(answer.read_text())
        return document


@pytest.mark.parametrize("host", ["icarl", "lwf-mc", "foster"])
def test_hosts_that_remember_beat_finetune_by_ten_points(host: str, accuracies: Accuracies) -> None:
    assert mean(accuracies(host, **SHORTER.get(host, {}))) >= mean(accuracies("finetune")) + 10


def test_online_ewc_beats_finetune_task_incrementally_at_the_same_training_settings(accuracies: Accuracies) -> None:
    config = configure("oewc").training
    same = {"training__lr": config.lr, "training__momentum": config.momentum, "training__epochs": config.epochs}
    oewc, plain = accuracies("oewc", "task_incremental"), accuracies("finetune", "task_incremental", **same)
    assert mean(oewc) - mean(plain) > max(stdev(oewc), stdev(plain))


def test_joint_training_is_highest(accuracies: Accuracies) -> None:
    joint = mean(accuracies("joint"))
    for host in ("icarl", "lwf-mc", "foster", "oewc", "finetune"):
        assert joint > mean(accuracies(host, **SHORTER.get(host, {})))
