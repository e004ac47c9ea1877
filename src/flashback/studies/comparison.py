"""Does flashback help this host on this benchmark, at equal cost? Both arms, every seed, and an honest answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from flashback.config import to_dict
from flashback.errors import FlashbackError, abbreviate, require
from flashback.files import ANOTHER_FOLDER, make_folder, write_atomically
from flashback.hosts.external import HostFiles, find_hosts
from flashback.recipes import check_free, config_from_dict, configure
from flashback.records import is_begun
from flashback.records.folder import COMPARISON
from flashback.records.terms import ARMS, FLASHBACK
from flashback.results import Comparison, Method, Run, read_run
from flashback.studies.jobs import Job, RunContext, group_failures, is_finished, run_jobs
from flashback.training.building import build_method, open_benchmark
from flashback.training.trainer import Observer

SEED_FOLDER = re.compile(r"seed-(0|[1-9]\d{0,17})")


class NothingToCompareError(FlashbackError):
    """All runs of an arm have failed; what is known of the others is in `comparison`."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        failed = (f"{name}: {problem}" for name, problem in group_failures(comparison.failures).items())
        super().__init__(f"there is no pair to compare, for runs have failed ({'; '.join(failed)})")


def compare(
    host: str,
    benchmark: str | Path = "split-fashion-mini",
    *,
    seeds: Sequence[int] | int = (0, 1, 2),
    out: str | Path,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
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
        recipe: "controlled", "anchor", "as-published", "defaults" or the path of a recipe file.
        settings: Settings by dotted key, for both arms; they win over the recipe.
        jobs: How many runs train at a time, each in a process of its own. By default one on a CPU, and on a GPU as many
            as cores and memory allow, at most eight.
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
    seeds = chosen_seeds(seeds)
    require(len(seeds) >= 1, "a comparison needs at least one seed")
    require(len(set(seeds)) == len(seeds), f"each seed counts once; {', '.join(map(str, seeds))} repeats one")
    check_free(settings or {}, "a comparison")
    find_hosts(host_file)
    context = RunContext.of(data, device, host_file, jobs, track)

    def job_of(arm: str, seed: int) -> Job:
        config = configure(
            host, benchmark, flashback=arm == FLASHBACK, seed=seed, recipe=recipe, settings=settings, data=data
        )
        return Job(arm, config.seed, to_dict(config), Path(out) / arm / f"seed-{config.seed}", context)

    planned = [job_of(arm, seed) for seed in seeds for arm in ARMS]
    checksum = rehearse(planned[: len(ARMS)])
    reused = [job.name for job in planned if is_finished(job, checksum)]
    others = [job_of(arm, seed) for arm, seed in runs_in(Path(out)) if seed not in seeds]
    further = [job for job in others if is_finished(job, checksum)]
    require(not is_begun(Path(out)), f"{out} holds a run; {ANOTHER_FOLDER}")
    make_folder(Path(out))
    failures = run_jobs([job for job in planned if job.name not in reused], jobs, watch, Path(out))
    comparison = conclude(planned, failures, reused, further)
    write_atomically(Path(out) / COMPARISON, json.dumps(comparison.as_dict(), indent=1) + "\n")
    if comparison.equal_budget is None and failures:
        raise NothingToCompareError(comparison)
    return comparison


# ---------------------------------------------------------------- before anything is trained


def chosen_seeds(seeds: Sequence[int] | int) -> Sequence[int]:
    """A number says how many, as --seeds does."""
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        return range(int(seeds))
    if isinstance(seeds, str) or not isinstance(seeds, Iterable):
        raise FlashbackError(f"seeds are a list such as [0, 1, 2], or how many, not {abbreviate(seeds)}")
    return list(seeds)


def runs_in(out: Path) -> list[tuple[str, int]]:
    """The arm and the seed of every run that lies in the folder of a comparison, by seed."""
    names = [(arm, SEED_FOLDER.fullmatch(path.name)) for arm in ARMS for path in (out / arm).glob("seed-*")]
    return sorted(((arm, int(name[1])) for arm, name in names if name), key=lambda found: found[1])


def rehearse(jobs: Sequence[Job]) -> str:
    """Build all that one run of each arm needs: what is refused is refused now. Returns the checksum of the data."""
    configs = [config_from_dict(job.config) for job in jobs]
    benchmark = open_benchmark(configs[0], jobs[0].context.data)
    for config in configs:
        build_method(config, benchmark, "cpu")  # the device is for the runs
    return benchmark.checksum


# ---------------------------------------------------------------- the answer


def conclude(
    planned: Sequence[Job], failures: dict[str, str], reused: list[str], further: Sequence[Job] = ()
) -> Comparison:
    """Read all runs that did not fail, and further finished ones, and compare them."""
    left, right = (
        Method(
            next(job.config for job in planned if job.arm == arm),
            {
                job.seed: read_finished(job.folder)
                for job in (*planned, *further)
                if job.arm == arm and job.name not in failures
            },
        )
        for arm in ARMS
    )
    return Comparison(
        left,
        right,
        failures=failures,
        reused=reused,
        planned_seeds=list(dict.fromkeys(job.seed for job in planned)),
        further_seeds=sorted({job.seed for job in further}),
    )


def read_finished(folder: Path) -> Run:
    try:
        return read_run(folder)
    except FlashbackError as error:
        raise FlashbackError(f"{folder} is not a whole record: {error}; remove the folder to run it again") from None
