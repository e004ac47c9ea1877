"""Sweeps: many runs from one file that names hosts, benchmarks, seeds, arms and a grid of settings."""

import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from flashback.benchmarks.load import fetch_data
from flashback.config import build, to_dict
from flashback.engines.following import DONE, RUNNING, WAITING
from flashback.errors import FlashbackError, require, shorten, unknown
from flashback.files import make_folder, sha256, write_atomically
from flashback.hosts import HOSTS
from flashback.hosts.external import HostFiles
from flashback.plain_yaml import read_yaml
from flashback.recipes import check_not_fixed_by_user, configure
from flashback.records import PLAN
from flashback.records.terms import FLASHBACK
from flashback.studies.executors import find_executor, take_shard
from flashback.studies.jobs import ELSEWHERE, Executor, Job, RunContext, is_finished, run_jobs, was_killed
from flashback.training.building import LACK_OF_MEMORY
from flashback.training.trainer import Event, Observer

LONGEST_NAME = 120  # letters of a folder; file systems take 255 bytes
QUEUED_STATES = {"queued": WAITING, "placed": RUNNING}  # by the events of runs on other machines
FAILED = "failed"  # other states are DONE, WAITING, RUNNING and ELSEWHERE


@dataclass(frozen=True)
class Part:
    """A block of runs: every host on every benchmark, with every combination of the grid, for every arm and seed."""

    hosts: tuple[str, ...]
    benchmarks: tuple[str, ...] = ("split-fashion-mini",)
    seeds: tuple[int, ...] = (0,)
    arms: tuple[Literal["host", "flashback"], ...] = ("host", "flashback")
    recipe: str = "controlled"
    settings: dict[str, Any] = field(default_factory=dict)  # dotted keys, for all runs
    grid: dict[str, Any] = field(default_factory=dict)  # dotted keys with a list of values each

    def __post_init__(self) -> None:
        for name in ("hosts", "benchmarks", "seeds", "arms"):
            require(len(getattr(self, name)) >= 1, f"{name} is empty; name at least one")
        for key, values in self.grid.items():
            require(isinstance(values, list) and len(values) >= 1, f"grid.{key} must be a list of values")
        check_not_fixed_by_user({**self.settings, **self.grid}, "a sweep")


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    title: str
    parts: tuple[Part, ...]


def shipped_sweeps() -> dict[str, str]:
    folder = resources.files("flashback.recipes") / "sweeps"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}


def read_sweep(name: str | Path) -> Sweep:
    """Read a sweep.

    Args:
        name: The path of its file, or the name of a shipped sweep.

    Returns:
        The sweep.

    Raises:
        FlashbackError: There is no such sweep, or it makes no sense.
    """
    shipped = shipped_sweeps()
    if str(name) not in shipped and not os.path.isfile(name):
        raise unknown("sweep", str(name), shipped)
    try:
        text = shipped.get(str(name)) or Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FlashbackError(f"{name} is not text in UTF-8; save it so") from None
    return parse_sweep(text, str(name))


def parse_sweep(text: str, source: str) -> Sweep:
    """Read a sweep from YAML.

    Args:
        text: The YAML.
        source: A name for it in error messages.

    Returns:
        The sweep.

    Raises:
        FlashbackError: The text is not a sweep.
    """
    document = read_yaml(text, source)
    if not isinstance(document, dict):
        raise FlashbackError(f"{source} is not a sweep: it holds no mapping of keys")
    title = str(document.pop("title", Path(source).stem))
    parts = document.pop("parts", [{}])
    require(isinstance(parts, list) and all(isinstance(part, dict) for part in parts), f"{source}: parts is a list")
    for entry in (document, *parts):
        entry["settings"] = entry.get("settings") or {}
        require(isinstance(entry["settings"], dict), f"{source}: settings is a mapping of keys to values")
    full_parts = [{**document, **part, "settings": {**document["settings"], **part["settings"]}} for part in parts]
    for count in (part["seeds"] for part in full_parts if type(part.get("seeds")) is int):
        example = list(range(count)) if 1 <= count <= 10 else [count]  # this many, or just this one
        raise FlashbackError(f"{source}: seeds is a list of seeds, not {count}; write {example}")
    try:
        return Sweep(title, tuple(build(Part, part) for part in full_parts))
    except FlashbackError as error:
        raise FlashbackError(f"{source}: {error}") from None


def plan(sweep: Sweep, out: Path, context: RunContext) -> list[Job]:
    jobs: dict[Path, Job] = {}
    for part in sweep.parts:
        for host, benchmark, arm, seed in itertools.product(part.hosts, part.benchmarks, part.arms, part.seeds):
            if arm == FLASHBACK and is_bare(host):
                continue
            keys = [key for key in part.grid if arm == FLASHBACK or not key.startswith("flashback.")]
            for values in itertools.product(*(part.grid[key] for key in keys)):
                choice = dict(zip(keys, values, strict=True))
                options: dict[str, Any] = {"recipe": part.recipe, "settings": {**part.settings, **choice}}
                options |= {"flashback": arm == FLASHBACK, "seed": seed, "data": context.data}
                try:
                    config = configure(host, benchmark, **options)
                except FlashbackError as error:
                    raise FlashbackError(f"{shorten(host)}: {error}") from None
                folder = out / slug(benchmark) / slug(host) / slug(part.recipe) / label(choice) / arm / f"seed-{seed}"
                job = Job(arm, seed, to_dict(config), folder, context, str(folder.relative_to(out)))
                same = jobs.setdefault(folder, job).config == job.config
                require(same, f"two parts plan different runs for {job.title}; put what differs into the grid")
    require(bool(jobs), "the sweep plans no run: none of its hosts can have flashback; add the arm host")
    return list(jobs.values())


def is_bare(host: str) -> bool:
    """Whether a host keeps no knowledge, so that flashback has nothing to attach to."""
    return not HOSTS[host].has_knowledge


def left_out(sweep: Sweep) -> list[str]:
    hosts = (host for part in sweep.parts if FLASHBACK in part.arms for host in part.hosts)
    return [host for host in dict.fromkeys(hosts) if is_bare(host)]


def label(choice: Mapping[str, Any]) -> str:
    return fitting(",".join(f"{slug(key)}={slug(str(value))}" for key, value in choice.items()) or "recipe")


def slug(text: str) -> str:
    """Text as a folder name. A minus sign is kept, so that -1.0 and 1.0 differ."""
    sign = "-" if re.match(r"\W*-[.\d]", text) else ""
    return fitting(sign + (re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).strip("-.") or "-"))


def fitting(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[:80].rstrip('-')}-{sha256(name)[:12]}"


@dataclass
class Outcome:
    """The state of every run of a sweep, by its name."""

    states: dict[str, str]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        return sum(state == DONE for state in self.states.values())


def benchmarks_of(jobs: Sequence[Job]) -> list[str]:
    return list(dict.fromkeys(job.config["benchmark"]["name"] for job in jobs))


def survey(planned: Sequence[Job]) -> tuple[Outcome, list[Job]]:
    states = {job.name: DONE if is_finished(job) else WAITING for job in planned}
    return Outcome(states), [job for job in planned if states[job.name] == WAITING]


def run_sweep(
    sweep: Sweep | str | Path,
    out: str | Path,
    *,
    jobs: int | None = None,
    on: str | Executor = "local",
    shard: str | None = None,
    data: str | Path | None = None,
    device: str | torch.device = "auto",
    host_file: HostFiles = None,
    track: Sequence[str] = (),
    watch: Callable[[Outcome, str], Observer] = lambda outcome, name: lambda event: None,
) -> Outcome:
    """Make the runs of a sweep that are not finished in `out`; records from other machines count.

    Args:
        sweep: The path of a sweep file, the name of a shipped sweep, or what `read_sweep` or `parse_sweep` returns.
        out: The folder for all runs.
        jobs: How many runs train at a time, as for `compare`.
        on: Where runs train, as for `compare`.
        shard: Make only this part of the runs: "2/8" is the second of eight.
        data: The folder the data sets are in; by default the cache folder.
        device: "auto", "cpu" or "cuda".
        host_file: A file, or several, that register hosts or nets.
        track: Trackers: "tensorboard", "wandb", "mlflow".
        watch: Gives the observer of a run by the state of the sweep and the name of the run.

    Returns:
        The state of every run, and what went wrong with those that failed.

    Raises:
        FlashbackError: The sweep makes no sense, or its data are missing.
    """
    sweep = sweep if isinstance(sweep, Sweep) else read_sweep(sweep)
    executor = find_executor(on, jobs)
    all_jobs = plan(sweep, Path(out), RunContext.of(data, device, host_file, track, executor))
    planned = take_shard(all_jobs, shard)
    outcome, missing = survey(planned)

    def observe(name: str) -> Observer:
        outcome.states[name] = RUNNING
        observer = watch(outcome, name)

        def note(event: Event) -> None:
            if event["event"] in QUEUED_STATES:
                outcome.states[name] = QUEUED_STATES[event["event"]]
            elif event["event"] == "end":
                problem = event["problem"]
                states = {None: DONE, ELSEWHERE: ELSEWHERE, LACK_OF_MEMORY: WAITING}
                outcome.states[name] = WAITING if was_killed(problem) else states.get(problem, FAILED)
            observer(event)

        return note

    for benchmark in benchmarks_of(missing):
        fetch_data(benchmark, data)
    if missing:
        make_folder(Path(out))
        runs = [str(job.folder.relative_to(out)) for job in all_jobs]
        write_atomically(Path(out) / PLAN, json.dumps({"title": sweep.title, "runs": runs}, indent=1) + "\n")
    outcome.failures = run_jobs(missing, executor, observe, Path(out))
    outcome.states |= dict.fromkeys(outcome.failures, FAILED)
    return outcome
