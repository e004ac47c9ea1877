"""What a run would spend, before it is made."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from flashback.batches import count_batches
from flashback.config import RunConfig
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
