"""Sweeps: many runs from one file that names hosts, benchmarks, seeds, arms and a grid of settings."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from flashback.config import build, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts import HOSTS, Host
from flashback.hosts.external import HostFiles, find_hosts
from flashback.plain_yaml import read_yaml
from flashback.recipes import check_free, configure
from flashback.records.terms import FLASHBACK
from flashback.studies.jobs import Job, RunContext, ensure_data, gets_another_chance, is_finished, run_jobs
from flashback.training.trainer import Event, Observer

LONGEST_NAME = 120  # letters of a folder; file systems take 255 bytes
STATES = DONE, WAITING, RUNNING, FAILED = "done", "waiting", "running", "failed"


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

    def check(self, source: str) -> None:
        for name in ("hosts", "benchmarks", "seeds", "arms"):
            require(len(getattr(self, name)) >= 1, f"{source}: {name} is empty; name at least one")
        for key, values in self.grid.items():
            require(isinstance(values, list) and len(values) >= 1, f"{source}: grid.{key} must be a list of values")
        check_free({**self.settings, **self.grid}, "a sweep")


@dataclass(frozen=True)
class Sweep:
    """The content of a sweep file."""

    title: str
    parts: tuple[Part, ...]


def shipped_sweeps() -> dict[str, str]:
    """The text of every sweep that comes with the package, by name."""
    folder = resources.files("flashback.recipes") / "sweeps"
    files = [file for file in folder.iterdir() if file.name.endswith(".yaml")]
    return {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}


def read_sweep(name: str | Path) -> Sweep:
    """Read a sweep by the path of its file or by the name of a shipped one.

    Raises:
        FlashbackError: There is no such sweep, or it makes no sense.
    """
    shipped = shipped_sweeps()
    if str(name) in shipped:
        return parse_sweep(shipped[str(name)], str(name))
    path = Path(name)
    if not path.is_file():
        raise unknown("sweep", str(name), shipped)
    try:
        return parse_sweep(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError:
        raise FlashbackError(f"{path} is not text in UTF-8; save it so") from None


def parse_sweep(text: str, source: str) -> Sweep:
    """Read a sweep from YAML; `source` is named in error messages.

    Raises:
        FlashbackError: The text is not a sweep.
    """
    document = read_yaml(text, source)
    if not isinstance(document, dict):
        raise FlashbackError(f"{source} is not a sweep: it holds no mapping of keys")
    title = str(document.pop("title", Path(source).stem))
    parts = document.pop("parts", [{}])
    require(isinstance(parts, list) and all(isinstance(part, dict) for part in parts), f"{source}: parts is a list")
    written = [merged(document, part) for part in parts]
    for count in (part["seeds"] for part in written if type(part.get("seeds")) is int):
        meant = list(range(count)) if 1 <= count <= 10 else [count]  # so many, or just this one
        raise FlashbackError(f"{source}: seeds is a list of seeds, not {count}; write {meant}")
    try:
        built = tuple(build(Part, part) for part in written)
    except FlashbackError as error:
        raise FlashbackError(f"{source}: {error}") from None
    for part in built:
        part.check(source)
    return Sweep(title, built)


def merged(common: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """A part on top of what all parts share; settings of both count."""
    given = [entry.get("settings") or {} for entry in (common, part)]
    require(all(isinstance(settings, Mapping) for settings in given), "the settings of a sweep are a mapping of keys")
    settings = {**given[0], **given[1]}
    return {**common, **part, **({"settings": settings} if settings else {})}


# ---------------------------------------------------------------- planning


def plan(sweep: Sweep, out: Path, context: RunContext) -> list[Job]:
    """Every run of a sweep once; the arm without flashback is the same for all values of flashback settings."""
    jobs: dict[Path, Job] = {}
    for part in sweep.parts:
        for host, benchmark, arm, seed in itertools.product(part.hosts, part.benchmarks, part.arms, part.seeds):
            if arm == FLASHBACK and is_bare(host):
                continue
            for choice in combinations(part.grid, arm):
                options: dict[str, Any] = {"recipe": part.recipe, "settings": {**part.settings, **choice}}
                try:
                    config = configure(
                        host, benchmark, flashback=arm == FLASHBACK, seed=seed, data=context.data, **options
                    )
                except FlashbackError as error:
                    raise FlashbackError(f"{host}: {error}") from None
                folder = out / slug(benchmark) / slug(host) / slug(part.recipe) / label(choice) / arm / f"seed-{seed}"
                job = Job(arm, seed, to_dict(config), folder, context, str(folder.relative_to(out)))
                require(
                    jobs.setdefault(folder, job).config == job.config,
                    f"two parts plan different runs for {job.title}; put what differs into the grid",
                )
    require(bool(jobs), "the sweep plans no run: none of its hosts can have flashback; add the arm host")
    return list(jobs.values())


def is_bare(host: str) -> bool:
    """Whether a host keeps no knowledge, so that flashback has nothing to attach to."""
    return not find_host(host).has_knowledge


def find_host(host: str) -> type[Host]:
    if host not in HOSTS:
        find_hosts()
    return HOSTS[host]


def left_out(sweep: Sweep) -> list[str]:
    """The hosts that have no arm with flashback although the sweep names one."""
    named = (host for part in sweep.parts if FLASHBACK in part.arms for host in part.hosts)
    return [host for host in dict.fromkeys(named) if is_bare(host)]


def combinations(grid: Mapping[str, Sequence[Any]], arm: str) -> Iterator[dict[str, Any]]:
    keys = [key for key in grid if arm == FLASHBACK or not key.startswith("flashback.")]
    for values in itertools.product(*(grid[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def label(choice: Mapping[str, Any]) -> str:
    """A folder name for one combination of the grid."""
    return fitting(",".join(f"{slug(key)}={slug(str(value))}" for key, value in choice.items()) or "recipe")


def slug(text: str) -> str:
    """Text as a folder name. A minus sign is kept, so that -1.0 and 1.0 differ."""
    sign = "-" if re.match(r"\W*-[.\d]", text) else ""
    return fitting(sign + (re.sub(r"[^A-Za-z0-9.+_-]+", "-", text).strip("-.") or "-"))


def fitting(name: str) -> str:
    """Shorten a name that is too long for a file system to its beginning and a digest of the whole."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:12]
    return name if len(name) <= LONGEST_NAME else f"{name[:80].rstrip('-')}-{digest}"


# ---------------------------------------------------------------- running


@dataclass
class Outcome:
    """The state of every run of a sweep, by its name."""

    states: dict[str, str]
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> int:
        return sum(state == DONE for state in self.states.values())


def survey(planned: Sequence[Job]) -> tuple[Outcome, list[Job]]:
    """The states of the planned runs, and the runs that are not done."""
    states = {job.name: DONE if is_finished(job) else WAITING for job in planned}
    return Outcome(states), [job for job in planned if states[job.name] == WAITING]


def run_sweep(
    sweep: Sweep | str | Path,
    out: str | Path,
    *,
    jobs: int | None = None,
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
    find_hosts(host_file)
    sweep = sweep if isinstance(sweep, Sweep) else read_sweep(sweep)
    planned = plan(sweep, Path(out), RunContext.of(data, device, host_file, jobs, track))
    outcome, missing = survey(planned)

    def observe(name: str) -> Observer:
        outcome.states[name] = RUNNING
        observer = watch(outcome, name)

        def note(event: Event) -> None:
            if event["event"] == "end":
                problem = event["problem"]
                outcome.states[name] = DONE if problem is None else WAITING if gets_another_chance(problem) else FAILED
            observer(event)

        return note

    ensure_data(missing)
    outcome.failures = run_jobs(missing, jobs, observe, Path(out))
    outcome.states |= dict.fromkeys(outcome.failures, FAILED)
    return outcome
