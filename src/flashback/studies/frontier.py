"""Trace accuracy on old tasks against accuracy on new ones by the weight of a host's stability loss."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from flashback.config import RunConfig
from flashback.errors import require
from flashback.files import ANOTHER_FOLDER, write_atomically
from flashback.hosts.external import HostFiles
from flashback.metrics import TradeOff, trade_off
from flashback.recipes import check_not_fixed_by_user, config_from_dict, configure
from flashback.records import dotted, is_begun
from flashback.records.terms import FLASHBACK, HOST, SETTINGS
from flashback.results import Run
from flashback.results.frontier import FRONTIER, WEIGHT, Curve, Frontier
from flashback.studies.comparison import chosen_seeds, read_finished
from flashback.studies.executors import find_executor
from flashback.studies.jobs import Executor, Job, RunContext, is_finished
from flashback.studies.sweeps import Part, Sweep, plan, run_sweep
from flashback.studies.variants import Variant, check_equal_cost, of_recipe, parse_form, phase_1_share
from flashback.training.building import build_method, open_benchmark
from flashback.training.trainer import Observer

WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0)
ALONE = "host alone"


def trace_frontier(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    forms: Sequence[str] = ("printed",),
    weights: Sequence[float] = WEIGHTS,
    seeds: Sequence[int] | int = (0, 1, 2),
    out: str | Path,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    on: str | Executor = "local",
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    track: Sequence[str] = (),
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Frontier:
    """Train a host alone and in other forms with several weights of its stability loss, and compare the curves by seed.

    The runs are those of a sweep. Finished ones in `out` are reused, and runs that differ only in form and weight share
    their first task. The answer is also written to frontier.json in `out`, which a report shows.

    Args:
        host: The name of a method with a stability loss.
        benchmark: The name of a benchmark, or the path of an .npz file or of a folder of images.
        forms: Forms beside the host alone: names of the catalogue, or settings as "key=value,key=value".
        weights: Values of `training.stability`, at least two.
        seeds: The seeds, or how many: 3 stands for 0, 1 and 2.
        out: The folder for all runs and for frontier.json.
        recipe: The kind of recipe, or the path of a recipe file.
        settings: Settings by dotted key, for all runs; they win over the recipe.
        jobs: How many runs train at a time, as for `compare`.
        on: Where runs train, as for `compare`.
        data: The folder the data sets are in; by default the cache folder.
        device: "auto", "cpu" or "cuda".
        host_file: A file, or several, that register hosts or nets.
        track: Trackers: "tensorboard", "wandb", "mlflow".
        watch: Gives the observer of a run by its name.

    Returns:
        The curves of all forms. Runs that failed are in its `failures`.

    Raises:
        FlashbackError: The input makes no sense, or the host has no stability loss.
    """
    seeds, overrides, folder = list(chosen_seeds(seeds)), dotted(settings or {}), Path(out)
    check_not_fixed_by_user(overrides, "a frontier")
    weights = [float(weight) for weight in weights]
    require(len(set(weights)) == len(weights) > 1, "a frontier needs two or more different weights (--weights)")
    require(not is_begun(folder), f"{folder} holds a run; {ANOTHER_FOLDER}")
    executor = find_executor(on, jobs)
    context = RunContext.of(data, device, host_file, track, executor)
    bare = {key: value for key, value in overrides.items() if not key.startswith("flashback.")}
    base, of_the_recipe = (
        configure(host, benchmark, flashback=False, recipe=recipe, settings=values, data=data)
        for values in (overrides, of_recipe(overrides))
    )
    share = phase_1_share(of_the_recipe)
    all_forms = [Variant(ALONE, {}, False), *(parse_form(text, base, share) for text in forms)]
    names = [form.name for form in all_forms]
    require(len(set(names)) == len(names), f"each form counts once; {', '.join(names[1:])} repeats one")
    parts = []
    for form in all_forms:
        form_settings = form.at(base.training.epochs)
        for source in (overrides, form_settings):
            require(WEIGHT not in source, f"a frontier chooses {WEIGHT} itself; give its values by --weights")
        grid = {**{key: [value] for key, value in form_settings.items()}, WEIGHT: sorted(weights)}
        arm: Any = FLASHBACK if form.flashback else HOST
        common = overrides if form.flashback else bare
        others = {key: value for key, value in common.items() if key not in form_settings}
        parts.append(Part((host,), (str(benchmark),), tuple(seeds), (arm,), recipe, others, grid))
    check_parts(parts, base, folder, context)
    sweep = Sweep(f"frontier of {host}", tuple(parts))
    outcome = run_sweep(
        sweep, folder, on=executor, data=data, device=device, host_file=host_file, track=track,
        watch=lambda _, name: watch(name),
    )  # fmt: skip
    curves = [
        curve_of(form, plan(Sweep("", (part,)), folder, context), sorted(weights), seeds)
        for form, part in zip(all_forms, parts, strict=True)
    ]
    frontier = Frontier(host, base.benchmark.name, recipe, sorted(weights), seeds, curves, outcome.failures)
    write_atomically(folder / FRONTIER, json.dumps(frontier.as_dict(), indent=1) + "\n")
    return frontier


def check_parts(parts: Sequence[Part], base: RunConfig, folder: Path, context: RunContext) -> None:
    """Refuse before training what a run would refuse; the host alone comes first."""
    for part in parts:
        jobs = plan(Sweep("", (part,)), folder, context)
        config = config_from_dict(max(jobs, key=lambda job: abs(weight_of(job) - 1)).config)  # 1 suits every host
        check_equal_cost(config, base)
        loaded = open_benchmark(config, context.data)
        require(len(loaded.tasks) > 1, "a frontier needs at least two tasks: after the first, nothing is old")
        build_method(config, loaded, "cpu")


def weight_of(job: Job) -> float:
    return float(job.config["training"]["stability"])


def curve_of(form: Variant, jobs: Sequence[Job], weights: Sequence[float], seeds: Sequence[int]) -> Curve:
    runs = {(job.seed, weight_of(job)): read_finished(job.folder) for job in jobs if is_finished(job)}

    def point(seed: int, weight: float, setting: str) -> TradeOff | None:
        run: Run | None = runs.get((seed, weight))
        return None if run is None else trade_off(run.matrix(setting))

    points = {
        setting: {seed: [point(seed, weight, setting) for weight in weights] for seed in seeds} for setting in SETTINGS
    }
    return Curve(form.name, dict(form.settings), form.flashback, points)
