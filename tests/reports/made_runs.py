"""Run folders written by hand: what training leaves on disk, with small made matrices."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from flashback.config import to_dict
from flashback.metrics import TradeOff, summarise
from flashback.recipes import configure, find_recipe
from flashback.results.frontier import FRONTIER, Curve, Frontier

Matrix = list[list[float]]
SETTINGS = ("class_incremental", "task_incremental")


def made_config(host: str = "icarl", benchmark: str = "split-cifar100", **changes: Any) -> dict[str, Any]:
    """The configuration of the host's recipe, or a small one; changes are dotted keys with '__' for the dot."""
    config: dict[str, Any] = {
        "host": {"name": host, "net": "resnet18", "memory_size": 2000},
        "benchmark": {"name": benchmark, "order": None, "sizes": None, "tasks": None, "validation": 0.0},
        "training": {"epochs": 6, "batch_size": 32, "lr": 0.3, "milestones": [0.7, 0.9], "schedule": "step"},
        "flashback": {"enabled": False, "epochs": 1, "second_epochs": None, "alpha": 0.01},
        "checkpoint": {"minutes": 2.0, "epochs": 0},
        "seed": 0,
        "recipe": "controlled",
    }
    if find_recipe(host, benchmark, "controlled"):
        config = to_dict(configure(host, benchmark))
    for key, value in changes.items():
        *parents, leaf = key.split("__")
        inner = config
        for parent in parents:
            inner = inner[parent]
        inner[leaf] = value
    return config


def made_matrix(tasks: int, seed: int = 0, shift: float = 0.0, fall: float = 5.0) -> Matrix:
    """Each task learned to about 80 %, then falling."""
    draw = random.Random(seed)
    return [
        [round(max(0.0, 80 + shift - fall * (k - j) + draw.uniform(-2, 2)), 2) for j in range(k + 1)]
        for k in range(tasks)
    ]


def made_results(
    matrices: Mapping[str, Matrix], sizes: Sequence[int] | None = None, confusion: Matrix | None = None
) -> dict[str, Any]:
    values: dict[str, Any] = {
        setting: {
            "matrix": matrix,
            "zero_shot": [10.0] * (len(matrix) - 1),
            "untrained": [8.0] * len(matrix),
            **summarise(matrix, sizes or [100] * len(matrix), [10.0] * (len(matrix) - 1), [8.0] * len(matrix)),
        }
        for setting, matrix in matrices.items()
    }
    of_classifier = values if confusion is None else {**values, "confusion": confusion}
    return {**values, "classifier": "linear", "classifiers": {"linear": of_classifier}}


def made_log(tasks: int, epochs: int, flashback: bool, first: int = 1) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for task in range(tasks):
        stages = [("phase 1", first), ("phase 2", epochs - first)] if flashback and task else [("learn", epochs)]
        for stage, count in stages:
            events.append({"event": "stage", "task": task, "stage": stage, "epochs": count, "steps_per_epoch": 4})
            for epoch in range(count):
                losses = {"task": 1.5 / (epoch + 1)} | ({"stability": 0.2 + 0.02 * epoch} if task else {})
                if stage == "phase 2":
                    losses["plasticity"] = 0.01 / (epoch + 1)
                where = {"task": task, "stage": stage, "epoch": epoch, "epochs": count}
                events.append({"event": "epoch", **where, "lr": 0.3, "losses": losses, "time": 0.5})
    return events


def write_run(
    folder: Path,
    config: Mapping[str, Any],
    matrices: Mapping[str, Matrix],
    log: Sequence[Mapping[str, Any]] | None = None,
    sizes: Sequence[int] | None = None,
    confusion: Matrix | None = None,
    **run: Any,
) -> Path:
    folder.mkdir(parents=True)
    tasks = len(matrices[SETTINGS[0]])
    enabled = config["flashback"]["enabled"]
    facts = {
        "host": config["host"]["name"],
        "benchmark": config["benchmark"]["name"],
        "flashback": enabled,
        "seed": config["seed"],
        "class_order": list(range(20)),  # of the whole benchmark, however short the run
        "task_sizes": list(sizes or [2] * tasks),
        "data_checksum": "made",
        "device": "made",
        "precision": "fp32",
        "must_match": {"device": "made", "torch": "2.13.0"},
        "commit": "0123456789abcdef",
        "steps": 640,
        "images": 20000,
        "knowledge_bytes": {"stable": 4000, **({"plastic": 3000} if enabled else {})},
        "seconds": 12.5,
        **run,
    }
    if log is None:
        log = made_log(tasks, min(6, config["training"]["epochs"]), enabled)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(facts), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(made_results(matrices, sizes, confusion)), encoding="utf-8")
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in log), encoding="utf-8")
    return folder


def write_comparison(
    folder: Path,
    host: str = "icarl",
    benchmark: str = "split-cifar100",
    seeds: int = 3,
    tasks: int = 4,
    gain: float = 3.0,
    sizes: Sequence[int] | None = None,
    run: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """Both arms of a host, as `flashback compare` lays them out; flashback is better by about `gain`."""
    for seed in range(seeds):
        for arm, shift in (("host", 0.0), ("flashback", gain)):
            config = made_config(host, benchmark, **{**changes, "seed": seed, "flashback__enabled": arm == "flashback"})
            draws = {"host": 2 * seed, "flashback": 2 * seed + 1}
            matrices = {
                SETTINGS[0]: made_matrix(tasks, draws[arm], shift, fall=60 / tasks),
                SETTINGS[1]: made_matrix(tasks, draws[arm] + 100, 12 + shift / 2, fall=12 / tasks),
            }
            write_run(folder / arm / f"seed-{seed}", config, matrices, sizes=sizes, **(run or {}))
    return folder


def write_similarity(folder: Path, host: str = "icarl", seeds: Sequence[int] = (123, 123)) -> None:
    values = {"host": [0.61, 0.58, 0.52, 0.44], "flashback": [0.66, 0.61, 0.58, 0.51]}
    layers = ["stage4.0.conv1", "stage4.0.conv2", "stage4.1.conv1", "stage4.1.conv2"]
    content = {"host": host, "seeds": dict(zip(values, seeds, strict=True)), "layers": layers, "old": values}
    content["new"] = {arm: [value + 0.1 for value in row] for arm, row in values.items()}
    (folder / "cka.json").write_text(json.dumps(content), encoding="utf-8")


def made_frontier(lifts: Mapping[str, float] | None = None, shift: float = 0.0, host: str = "icarl") -> Frontier:
    """A host on the line old = 100 - new, three weights and seeds, and forms that lie above it by `lifts`.

    Forms learn new tasks two points better at each weight. The lift of a seed is half a point lower or higher.
    """

    def points(lift: float, seed: int, ahead: float) -> list[TradeOff | None]:
        new = [20.0 + ahead + 5 * k + 0.3 * seed for k in range(3)]
        return [TradeOff(x, 100 - x + (lift + 0.5 * (seed - 1) if ahead else 0)) for x in new]

    def curve(name: str, lift: float, ahead: float) -> Curve:
        by_setting = {setting: {seed: points(lift, seed, ahead) for seed in range(3)} for setting in SETTINGS}
        return Curve(name, {"flashback.alpha": 0.1} if ahead else {}, ahead > 0, by_setting)

    forms = {"free-primary": 2.0} if lifts is None else lifts
    curves = [curve("host alone", 0.0, 0.0), *(curve(name, lift, 2.0 + shift) for name, lift in forms.items())]
    return Frontier(host, "split-cifar100", "controlled", [3.0, 1.0, 0.3], [0, 1, 2], curves)


def write_frontier(folder: Path) -> Frontier:
    frontier = made_frontier()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FRONTIER).write_text(json.dumps(frontier.as_dict()))
    return frontier
