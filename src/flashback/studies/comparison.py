"""Does flashback help this host on this benchmark, at equal cost? Both arms, every seed, and an honest answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any

import torch

from flashback.config import to_dict
from flashback.errors import FlashbackError, abbreviate, require
from flashback.files import ANOTHER_FOLDER, make_folder, write_atomically
from flashback.hosts.external import HostFiles, find_hosts
from flashback.metrics import PairedTest, deviation, mean, paired_test, summarise, verdict
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.recipes import check_free, config_from_dict, configure
from flashback.records import RunRecord, differing_keys, is_begun, read_record
from flashback.records.folder import COMPARISON
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.studies.jobs import Job, RunContext, group_failures, is_finished, run_jobs
from flashback.training.building import build_method, open_benchmark
from flashback.training.trainer import Observer

SEED_FOLDER = re.compile(r"seed-(0|[1-9]\d{0,17})")


@dataclass(frozen=True)
class Row:
    """One metric in one setting: values by seed, their mean and deviation in each arm, and the paired test."""

    setting: str
    metric: str
    values: dict[str, dict[int, float | None]]
    mean: dict[str, float | None]
    deviation: dict[str, float | None]
    test: PairedTest

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """Host and flashback at every seed for which both have a value."""
        return [
            (host, flashback)
            for seed, host in self.values[HOST].items()
            if host is not None and (flashback := self.values[FLASHBACK].get(seed)) is not None
        ]

    @property
    def matched(self) -> dict[str, float | None]:
        """The mean of each arm over the seeds of its pairs; these differ by what the test is about."""
        return {arm: mean([pair[k] for pair in self.pairs]) for k, arm in enumerate(ARMS)}


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
    differing_environment: list[str]  # devices, versions, threads that were not the same for all runs
    failures: dict[str, str]
    reused: list[str]
    further_seeds: list[int] = field(default_factory=list)  # not asked for, but finished in the folder already
    flashback: str = ""  # alpha_p and E1, in words

    @property
    def budget(self) -> str:
        return {True: "equal budget", False: "unequal budget", None: "budget unknown"}[self.equal_budget]

    @property
    def unmatched(self) -> dict[str, list[int]]:
        """The seeds that only one arm has, by arm; of an arm that stands alone there is nothing to match."""
        host, flashback = (self.rows[0].values[arm] for arm in ARMS)
        alone = {HOST: sorted(host.keys() - flashback), FLASHBACK: sorted(flashback.keys() - host)}
        return {arm: seeds for arm, seeds in alone.items() if seeds and host and flashback}

    def __repr__(self) -> str:
        failed = f" Failed: {', '.join(self.failures)} (see failures)." if self.failures else ""
        return f"{self.host} on {self.benchmark}, {len(self.seeds)} seeds: {self.sentence}{failed}"

    def table(self) -> list[dict[str, Any]]:
        """A flat row for every setting and metric, for a data frame; `rows` has the values of every seed."""
        return [
            {
                "setting": row.setting,
                "metric": row.metric,
                **{f"{arm}_mean": row.mean[arm] for arm in ARMS},
                **{f"{arm}_deviation": row.deviation[arm] for arm in ARMS},
                **{name: getattr(row.test, name) for name in ("difference", "low", "high", "p", "pairs")},
            }
            for row in self.rows
        ]

    @property
    def sentence(self) -> str:
        row = next(row for row in self.rows if (row.setting, row.metric) == (SETTINGS[0], "average_accuracy"))
        return f"Average accuracy, class-incremental, {self.budget}: {verdict(row.test)}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "budget": self.budget, "sentence": self.sentence}


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

Records = Mapping[tuple[str, int], RunRecord]


def conclude(
    planned: Sequence[Job], failures: dict[str, str], reused: list[str], further: Sequence[Job] = ()
) -> Comparison:
    """Read the records of all runs that did not fail, and of further finished ones, and compare them."""
    jobs = [*planned, *further]
    records = {(job.arm, job.seed): read_finished(job.folder) for job in jobs if job.name not in failures}
    host, flashback = (next(job.config for job in planned if job.arm == arm) for arm in ARMS)
    seeds = list(dict.fromkeys(job.seed for job in jobs))
    return Comparison(
        host=host["host"]["name"],
        benchmark=host["benchmark"]["name"],
        recipe=host["recipe"],
        seeds=seeds,
        rows=[
            tabulate(records, seeds, setting, metric) for setting in SETTINGS for metric in metrics_of(records.values())
        ],
        cost={arm: measure_cost([records[key] for key in records if key[0] == arm]) for arm in ARMS},
        equal_budget=has_equal_budget(records, seeds),
        differing_settings=differing_keys(host, flashback, ignored=["flashback", "seed"]),
        differing_environment=differing_environment(records.values()),
        failures=failures,
        reused=reused,
        further_seeds=sorted({job.seed for job in further}),
        flashback=flashback_in_words(flashback),
    )


def metrics_of(records: Iterable[RunRecord]) -> list[str]:
    """Averages over images are something of their own only where tasks differ in size, in classes (B50) or images."""
    runs = [record.run for record in records]
    told = [run.get("task_sizes") for run in runs] + [(run.get("data") or {}).get("test_images") for run in runs]
    unequal = any(size != sizes[0] for sizes in told if isinstance(sizes, list) for size in sizes)
    return [*METRICS, *OVER_IMAGES] if unequal else list(METRICS)


def flashback_in_words(config: Mapping[str, Any]) -> str:
    chosen, epochs = config_from_dict(config).flashback, config["training"]["epochs"]
    first, second = chosen.split(epochs)
    return f"alpha_p {chosen.alpha:g}, E1 {first} of {first + second} epochs a task"


def differing_environment(records: Iterable[RunRecord]) -> list[str]:
    """In what else than settings the runs differ. Their parts of a GPU change no more than how sums are rounded."""
    around = [record.run.get("must_match", {}) for record in records]
    return sorted({key for one in around for key in differing_keys(around[0], one, ignored=["portion"])})


def tabulate(records: Records, seeds: Sequence[int], setting: str, metric: str) -> Row:
    values: dict[str, dict[int, float | None]] = {
        arm: {seed: records[arm, seed].results[setting][metric] for seed in seeds if (arm, seed) in records}
        for arm in ARMS
    }
    # Where some seeds have no value, as an SPR of negative forgetting, the others are a choice by outcome: no mean.
    found = {arm: list(values[arm].values()) for arm in ARMS}
    partly = any(None in own and any(value is not None for value in own) for own in found.values())
    known = {arm: [value for value in own if value is not None and not partly] for arm, own in found.items()}
    return Row(
        setting,
        metric,
        values,
        {arm: mean(known[arm]) for arm in ARMS},
        {arm: deviation(known[arm]) for arm in ARMS},
        paired_test({}, {}) if partly else paired_test(values[HOST], values[FLASHBACK]),
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


# ---------------------------------------------------------------- reading what was measured


def read_finished(folder: Path) -> RunRecord:
    """The record of a run of this comparison; whatever is wrong with it, running it again helps."""
    record = read_record(folder)
    try:
        return check_measured(record)
    except FlashbackError as error:
        raise FlashbackError(f"{folder} is not a whole record: {error}; remove the folder to run it again") from None


def check_measured(record: RunRecord) -> RunRecord:
    """The record, once all that is told of a run is there and of its kind; its metrics follow from its matrices."""
    for quantity in ("steps", "images", "seconds"):
        require(is_number(record.run.get(quantity), 1e18), f"run.json does not say how many {quantity} the run took")
    sizes = record.run.get("knowledge_bytes")
    require(
        isinstance(sizes, dict) and all(is_number(size, 1e18) for size in sizes.values()),
        "run.json does not say how many bytes of knowledge the run kept",
    )
    require(isinstance(record.run.get("must_match", {}), dict), "run.json does not hold a mapping under must_match")
    return replace(record, results=measured(record.results))


def measured(results: Any) -> dict[str, Any]:
    """Matrices and metrics of both settings, as one classifier has them."""
    require(isinstance(results, dict), "results.json holds no settings")
    return {setting: measured_in(setting, results.get(setting)) for setting in SETTINGS}


def measured_in(setting: str, values: Any) -> dict[str, Any]:
    require(isinstance(values, dict), f"results.json has no {setting} results")
    matrix = lower_triangle(values.get("matrix"), setting)
    ahead = {name: percentages(values.get(name), f"{setting} {name}") for name in ("zero_shot", "untrained")}
    # The number of test images is not in the record, so what depends on it is taken over.
    over_images = {name: values[name] if is_number(values.get(name), 100) else None for name in OVER_IMAGES}
    metrics = {**summarise(matrix, [1] * len(matrix), **ahead), **over_images}
    # What the record says has no value has none, whatever the matrix would give: joint training has no history.
    return {"matrix": matrix, **{name: None if values.get(name, 0) is None else metrics[name] for name in metrics}}


def lower_triangle(matrix: Any, setting: str) -> list[list[float]]:
    whole = isinstance(matrix, list) and len(matrix) > 0 and all(isinstance(row, list) for row in matrix)
    require(whole, f"results.json has no {setting} matrix")
    rows: list[list[float]] = [row[: k + 1] for k, row in enumerate(matrix)]
    complete = all(len(row) == k + 1 and all(is_number(value, 100) for value in row) for k, row in enumerate(rows))
    require(complete, f"the {setting} matrix of results.json is not a triangle of percentages")
    return rows


def percentages(values: Any, what: str) -> list[float | None] | None:
    right = isinstance(values, list) and all(value is None or is_number(value, 100) for value in values)
    require(values is None or right, f"{what} of results.json is not a list of percentages")
    return values  # type: ignore[no-any-return]


def is_number(value: Any, most: float) -> bool:
    """A number from 0 to `most`; not NaN, not infinite, not a truth value."""
    return type(value) in (int, float) and 0 <= value <= most
