"""What a run would spend, before it is made."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashback.batches import count_batches
from flashback.config import RunConfig
from flashback.errors import FlashbackError
from flashback.recipes import config_from_dict
from flashback.records import RunFolder, is_finished
from flashback.studies.jobs import Job
from flashback.training.building import build_method, open_benchmark


def preview_cost(config: RunConfig, data: str | Path | None) -> list[dict[str, Any]]:
    """Count what a run would spend, stage by stage; the data must be at hand.

    Counts depend on labels and settings alone, so a small untrained network goes through all stages. Only a memory
    carries images from one task to the next, so hosts without one skip the begin and the end of a stage.
    """
    host, training = replace(config.host, net="smallcnn"), replace(config.training, image_size=None)
    benchmark = open_benchmark(config, data, download=False, labels_only=True)
    method = build_method(replace(config, host=host, training=training), benchmark, "cpu")
    budget: list[dict[str, Any]] = []
    for task in benchmark.tasks:
        method.enter(task)
        for stage in method.stages():
            stage.allocate()
            if method.host.memory is not None:
                stage.begin()
            images, epochs = len(stage.stream()), stage.epochs
            steps = epochs * count_batches(images, stage.batch_size)
            names = {"task": task.index, "stage": stage.name}
            budget.append({**names, "epochs": epochs, "steps": steps, "images": epochs * images})
            if method.host.memory is not None:
                stage.end()
    return budget


@dataclass
class Estimate:
    """What the waiting runs of a host on a benchmark would spend; seconds by its finished runs, None without any."""

    runs: int = 0
    steps: int = 0
    images: int = 0
    seconds: float | None = None


def estimate_cost(planned: Sequence[Job], waiting: Sequence[Job]) -> dict[tuple[str, str], Estimate]:
    """Estimate the cost of the waiting runs by host and benchmark; the data must be at hand."""
    estimates: dict[tuple[str, str], Estimate] = {}
    costs: dict[str, list[dict[str, Any]]] = {}
    for job in waiting:
        key = json.dumps({**job.config, "seed": 0}, sort_keys=True)
        if key not in costs:
            costs[key] = preview_cost(config_from_dict(job.config), job.context.data)
        estimate = estimates.setdefault(kind_of(job), Estimate())
        estimate.runs += 1
        estimate.steps += sum(entry["steps"] for entry in costs[key])
        estimate.images += sum(entry["images"] for entry in costs[key])
    for kind, estimate in estimates.items():
        spent = [cost_of(job) for job in planned if kind_of(job) == kind and is_finished(job.folder)]
        steps, seconds = (sum(values) for values in zip(*spent, strict=True)) if spent else (0, 0)
        estimate.seconds = estimate.steps * seconds / steps if steps else None
    return estimates


def kind_of(job: Job) -> tuple[str, str]:
    return job.config["host"]["name"], job.config["benchmark"]["name"]


def cost_of(job: Job) -> tuple[float, float]:
    """Steps and seconds of a finished run; nothing for a record that does not tell them."""
    try:
        record = RunFolder(job.folder).read_run()
        return float(record["steps"]), float(record["seconds"])
    except (FlashbackError, KeyError, TypeError, ValueError):
        return 0.0, 0.0
