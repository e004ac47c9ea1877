"""Does flashback help this host on this benchmark, at equal cost? Both arms, every seed, and an honest answer."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from flashback.config import to_dict
from flashback.errors import FlashbackError, abbreviate, require
from flashback.files import ANOTHER_FOLDER, write_atomically
from flashback.hosts.external import HostFiles
from flashback.recipes import check_not_fixed_by_user, config_from_dict, configure
from flashback.records import COMPARISON, is_begun
from flashback.records.terms import ARMS, FLASHBACK
from flashback.results import Comparison, Method, Run, read_run
from flashback.studies.executors import find_executor, take_shard
from flashback.studies.jobs import Executor, Job, RunContext, group_failures, is_finished, run_jobs
from flashback.training.building import build_method, open_benchmark
from flashback.training.trainer import Observer

MOST_SEEDS = 10_000
SEED_FOLDER = re.compile(r"seed-(0|[1-9]\d{0,17})")


class NothingToCompareError(FlashbackError):
    """All runs of an arm have failed; what is known of the others is in `comparison`."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        failed = (f"{name}: {problem}" for name, problem in group_failures(comparison.failures).items())
        super().__init__(f"there is no pair to compare, because runs have failed ({'; '.join(failed)})")


def compare(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    seeds: Sequence[int] | int = (0, 1, 2),
    out: str | Path,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    on: str | Executor = "local",
    shard: str | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    track: Sequence[str] = (),
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Comparison:
    """Train a host with and without flashback, with the same settings and seeds, and compare them by seed.

    Finished runs in `out` are reused, and finished seeds that were not asked for count too, so that the answer of a
    folder does not depend on the last call. The answer is also written to comparison.json in `out`.

    Args:
        host: The name of the method.
        benchmark: The name of a benchmark, or the path of an .npz file or of a folder of images.
        seeds: The seeds, or how many: 3 stands for 0, 1 and 2.
        out: The folder for all runs and for comparison.json.
        recipe: "controlled", "anchor", "as-published", "improved", "defaults" or the path of a recipe
            file.
        settings: Settings by dotted key, for both arms; they win over the recipe.
        jobs: How many runs train at a time, each in a process of its own. By default one on a CPU, and on a GPU as many
            as cores and memory allow, at most eight.
        on: Where runs train: "local", "ray", "ray://HOST", "slurm", or an executor such as `studies.Ray(gpus=0.5)`.
        shard: Train only this part of the seeds: "2/8" is the second of eight. Finished seeds of other parts count.
        data: The folder the data sets are in; by default the cache folder.
        device: "auto", "cpu" or "cuda".
        host_file: A file, or several, that register hosts or nets.
        track: Trackers: "tensorboard", "wandb", "mlflow".
        watch: Gives the observer of a run by its name, such as "host, seed 0".

    Returns:
        The comparison. Runs that failed are in its `failures`.

    Raises:
        FlashbackError: The input makes no sense, or runs failed and no pair is left (NothingToCompareError).
    """
    all_seeds = chosen_seeds(seeds)
    seeds = take_shard(all_seeds, shard)
    require(bool(seeds), f"shard {shard} of {len(all_seeds)} seeds is empty; use at most {len(all_seeds)} shards")
    check_not_fixed_by_user(settings or {}, "a comparison")
    executor = find_executor(on, jobs)
    context = RunContext.of(data, device, host_file, track, executor)

    def job_of(arm: str, seed: int) -> Job:
        options: dict[str, Any] = {"recipe": recipe, "settings": settings, "data": data}
        config = configure(host, benchmark, flashback=arm == FLASHBACK, seed=seed, **options)
        return Job(arm, config.seed, to_dict(config), Path(out) / arm / f"seed-{config.seed}", context)

    planned = [job_of(arm, seed) for seed in seeds for arm in ARMS]
    both_arms = [config_from_dict(job.config) for job in planned[: len(ARMS)]]
    loaded = open_benchmark(both_arms[0], data)
    for config in both_arms:  # what a run would refuse is refused now
        build_method(config, loaded, "cpu")
    reused = [job.name for job in planned if is_finished(job, loaded.checksum)]
    require(not is_begun(Path(out)), f"{out} holds a run; {ANOTHER_FOLDER}")

    def further_runs() -> list[Job]:
        others = [job_of(arm, seed) for arm, seed in runs_in(Path(out)) if seed not in seeds]
        return [job for job in others if is_finished(job, loaded.checksum)]

    further_runs()  # refuses runs that do not belong here
    failures = run_jobs([job for job in planned if job.name not in reused], executor, watch, Path(out))
    comparison = conclude(planned, failures, reused, further_runs())  # other shards may have finished some since
    write_atomically(Path(out) / COMPARISON, json.dumps(comparison.as_dict(), indent=1) + "\n")
    if comparison.equal_budget is None and failures:
        raise NothingToCompareError(comparison)
    return comparison


def chosen_seeds(seeds: Sequence[int] | int) -> Sequence[int]:
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        require(seeds <= MOST_SEEDS, f"at most {MOST_SEEDS} seeds, not {seeds}; a list names them")
        seeds = range(int(seeds))
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise FlashbackError(f"seeds are a list such as [0, 1, 2], or how many, not {abbreviate(seeds)}")
    seeds = list(seeds)
    require(bool(seeds), "a comparison needs at least one seed")
    require(len(set(seeds)) == len(seeds), f"each seed counts once; {abbreviate(seeds)} repeats one")
    return seeds


def runs_in(out: Path) -> list[tuple[str, int]]:
    names = [(arm, SEED_FOLDER.fullmatch(path.name)) for arm in ARMS for path in (out / arm).glob("seed-*")]
    return sorted(((arm, int(name[1])) for arm, name in names if name), key=lambda run: run[1])


def conclude(
    planned: Sequence[Job], failures: dict[str, str], reused: list[str], further: Sequence[Job] = ()
) -> Comparison:
    runs: dict[str, dict[int, Run]] = {arm: {} for arm in ARMS}
    for job in (*planned, *further):
        if job.name not in failures:
            runs[job.arm][job.seed] = read_finished(job.folder)
    left, right = (Method(next(job.config for job in planned if job.arm == arm), runs[arm]) for arm in ARMS)
    seeds = list(dict.fromkeys(job.seed for job in planned))
    others = sorted({job.seed for job in further})
    return Comparison(left, right, failures=failures, reused=reused, planned_seeds=seeds, further_seeds=others)


def read_finished(folder: Path) -> Run:
    try:
        return read_run(folder)
    except FlashbackError as error:
        raise FlashbackError(f"{folder} is not a whole record: {error}; remove the folder to run it again") from None
