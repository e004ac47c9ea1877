"""Does flashback help this host on this benchmark, at equal cost? Both arms, every seed, and an honest answer."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashback.config import to_dict, within
from flashback.hosts.outside import find_hosts
from flashback.metrics import PairedTest, deviation, mean, paired_test, verdict
from flashback.recipes import check_free, config_from_dict, configure
from flashback.records import RunRecord, differing_keys, make_folder, read_record, write_atomically
from flashback.training.evaluation import SETTINGS
from flashback.training.jobs import ARMS, FLASHBACK, HOST, Job, Place, carry_out, is_finished
from flashback.training.run import build_method, open_benchmark
from flashback.training.trainer import Observer

METRICS = {  # what is compared, and whether more of it is better
    "average_accuracy": True,
    "average_incremental_accuracy": True,
    "forgetting": False,
    "backward_transfer": True,
    "forward_transfer": True,
    "stability_plasticity_ratio": False,
    "new_task_accuracy": True,
    "mean_new_task_accuracy": True,
}


@dataclass(frozen=True)
class Row:
    """One metric in one setting: values by seed, their mean and deviation in each arm, and the paired test."""

    setting: str
    metric: str
    values: dict[str, dict[int, float | None]]
    mean: dict[str, float | None]
    deviation: dict[str, float | None]
    test: PairedTest


@dataclass(frozen=True)
class Cost:
    """What an arm was measured to spend in one run: the mean over seeds; of bytes the largest."""

    steps: float | None
    images: float | None
    seconds: float | None
    bytes: dict[str, int]


@dataclass(frozen=True)
class Comparison:
    """The answer, with everything it rests on."""

    host: str
    benchmark: str
    recipe: str
    seeds: list[int]
    rows: list[Row]
    cost: dict[str, Cost]
    equal_budget: bool | None  # measured, step by step and image by image; None where no seed has both arms
    differing_settings: list[str]  # of the host, between the arms
    differing_surroundings: list[str]  # devices, versions, threads that were not the same for all runs
    failures: dict[str, str]
    reused: list[str]

    @property
    def budget(self) -> str:
        return {True: "equal budget", False: "unequal budget", None: "budget unknown"}[self.equal_budget]

    @property
    def sentence(self) -> str:
        row = next(row for row in self.rows if (row.setting, row.metric) == (SETTINGS[0], "average_accuracy"))
        return f"Average accuracy, class-incremental, {self.budget}: {verdict(row.test)}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "budget": self.budget, "sentence": self.sentence}


def compare(
    host: str,
    benchmark: str = "split-fashion-mini",
    *,
    seeds: Sequence[int] = (0, 1, 2),
    out: str | Path,
    recipe: str = "controlled",
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    host_file: str | Path | None = None,
    watch: Callable[[str], Observer] = lambda name: lambda event: None,
) -> Comparison:
    """Run both arms with the same settings and seeds, reuse what is finished, and leave comparison.json in `out`.

    `jobs` runs go on at a time, each in its own process; by default one on a CPU, on a GPU as many as make all
    together faster. `watch` gives the observer of a run by its name.
    """
    within(len(seeds) >= 1, "a comparison needs at least one seed")
    within(len(set(seeds)) == len(seeds), f"each seed counts once; {', '.join(map(str, seeds))} repeats one")
    check_free(settings or {}, "a comparison")
    find_hosts(host_file)
    place = Place.of(data, device, host_file, jobs)
    planned = []
    for seed in seeds:
        for arm in ARMS:
            config = configure(host, benchmark, flashback=arm == FLASHBACK, seed=seed, recipe=recipe, settings=settings)
            planned.append(Job(arm, seed, to_dict(config), Path(out) / arm / f"seed-{seed}", place))
    checksum = rehearse(planned[: len(ARMS)])
    reused = [job.name for job in planned if is_finished(job, checksum)]
    make_folder(Path(out))
    failures = carry_out([job for job in planned if job.name not in reused], jobs, watch)
    comparison = conclude(planned, failures, reused)
    write_atomically(Path(out) / "comparison.json", json.dumps(comparison.as_dict(), indent=1) + "\n")
    return comparison


# ---------------------------------------------------------------- before anything is trained


def rehearse(jobs: Sequence[Job]) -> str:
    """Build all that one run of each arm needs: what is refused is refused now. Returns the checksum of the data."""
    configs = [config_from_dict(job.config) for job in jobs]
    benchmark = open_benchmark(configs[0], jobs[0].place.data)
    for config in configs:
        build_method(config, benchmark, jobs[0].place.device)
    return benchmark.checksum


# ---------------------------------------------------------------- the answer

Records = Mapping[tuple[str, int], RunRecord]


def conclude(planned: Sequence[Job], failures: dict[str, str], reused: list[str]) -> Comparison:
    """Read the records of all runs that did not fail, and compare them."""
    records = {(job.arm, job.seed): read_measured(job.folder) for job in planned if job.name not in failures}
    host, flashback = (next(job.config for job in planned if job.arm == arm) for arm in ARMS)
    seeds = list(dict.fromkeys(job.seed for job in planned))
    return Comparison(
        host=host["host"]["name"],
        benchmark=host["benchmark"]["name"],
        recipe=host["recipe"],
        seeds=seeds,
        rows=[tabulate(records, seeds, setting, metric) for setting in SETTINGS for metric in METRICS],
        cost={arm: measure_cost([records[key] for key in records if key[0] == arm]) for arm in ARMS},
        equal_budget=has_equal_budget(records, seeds),
        differing_settings=differing_keys(host, flashback, ignored=["flashback", "seed"]),
        differing_surroundings=differing_surroundings(records.values()),
        failures=failures,
        reused=reused,
    )


def differing_surroundings(records: Iterable[RunRecord]) -> list[str]:
    """In what else than settings the runs differ. Their parts of a GPU change no more than how sums are rounded."""
    around = [record.run.get("must_match", {}) for record in records]
    return sorted({key for one in around for key in differing_keys(around[0], one, ignored=["portion"])})


def read_measured(folder: Path) -> RunRecord:
    """A finished run, once everything a comparison takes from it is there and of its kind."""
    record = read_record(folder)
    sizes, around = record.run.get("knowledge_bytes"), record.run.get("must_match", {})
    costs = [record.run.get(name) for name in ("steps", "images", "seconds")]
    settings = [record.results.get(setting) for setting in SETTINGS]
    within(
        isinstance(sizes, dict) and isinstance(around, dict) and all(map(is_number, [*costs, *sizes.values()])),
        f"{folder} is not a whole record: run.json lacks what the run cost; remove the folder to run it again",
    )
    within(
        all(isinstance(one, dict) and METRICS.keys() <= one.keys() for one in settings)
        and all(one[metric] is None or is_number(one[metric]) for one in settings if one for metric in METRICS),
        f"{folder} is not a whole record: results.json lacks metrics; remove the folder to run it again",
    )
    return record


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def tabulate(records: Records, seeds: Sequence[int], setting: str, metric: str) -> Row:
    values: dict[str, dict[int, float | None]] = {
        arm: {seed: records[arm, seed].results[setting][metric] for seed in seeds if (arm, seed) in records}
        for arm in ARMS
    }
    known = {arm: [value for value in values[arm].values() if value is not None] for arm in ARMS}
    return Row(
        setting,
        metric,
        values,
        {arm: mean(known[arm]) for arm in ARMS},
        {arm: deviation(known[arm]) for arm in ARMS},
        paired_test(values[HOST], values[FLASHBACK]),
    )


def measure_cost(records: Sequence[RunRecord]) -> Cost:
    steps, images, seconds = (mean([record.run[name] for record in records]) for name in ("steps", "images", "seconds"))
    largest: dict[str, int] = {}
    for record in records:
        for kind, size in record.run["knowledge_bytes"].items():
            largest[kind] = max(size, largest.get(kind, 0))
    return Cost(steps, images, seconds, largest)


def has_equal_budget(records: Records, seeds: Sequence[int]) -> bool | None:
    pairs = [[records[arm, seed].run for arm in ARMS] for seed in seeds if all((arm, seed) in records for arm in ARMS)]
    if not pairs:
        return None
    return all(first[quantity] == second[quantity] for first, second in pairs for quantity in ("steps", "images"))
