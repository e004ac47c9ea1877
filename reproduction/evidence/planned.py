"""Which records a shipped sweep asks for. They are recognised by their settings, wherever they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from flashback.records import differing_keys
from flashback.records.folder import dotted
from flashback.records.terms import ARMS, FLASHBACK, SETTINGS
from flashback.reports.departures import BESIDE
from flashback.reports.pairings import Pairing, by_seed, canonical
from flashback.reports.reading import Run
from flashback.studies.jobs import Job, RunContext
from flashback.studies.sweeps import plan, read_sweep

SWEEPS = Path(__file__).resolve().parents[1] / "sweeps"
DECIDE_DATA = ("name", "order", "sizes")  # settings of a benchmark; a shorter run and one that validates read the same


@dataclass(frozen=True)
class Study:
    """A shipped sweep and the runs there are of it, with the seeds it names or any other; at a seed computed alike."""

    sweep: str
    folder: str  # below results/, where its records are kept
    jobs: list[Job]
    runs: list[Run]
    left_out: dict[str, str]  # runs that repeat another or were computed otherwise than those they belong to

    @property
    def done(self) -> int:
        return sum(any(is_of(run, job) and run.seed == job.seed for run in self.runs) for job in self.jobs)

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(name_of(job) for job in self.jobs))

    @property
    def references(self) -> list[str]:
        """The hosts that are planned without flashback alone."""
        with_flashback = {name_of(job) for job in self.jobs if job.arm == FLASHBACK}
        return [host for host in self.hosts if host not in with_flashback]

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys(job.seed for job in self.jobs))

    def values(self, key: str, arms: Sequence[str] = ARMS) -> dict[Any, list[str]]:
        """The values planned for a setting, in order, each with its hosts; some have no such setting."""
        found: dict[Any, list[str]] = {}
        for job in self.jobs:
            settings = dotted(job.config)
            if job.arm in arms and key in settings:
                own = found.setdefault(settings[key], [])
                own += [name_of(job)] if name_of(job) not in own else []
        return found

    def said(self, key: str, arms: Sequence[str] = ARMS) -> str:
        """The planned value of a setting, and in brackets the hosts that have another."""
        (usual, _), *others = sorted(self.values(key, arms).items(), key=lambda item: -len(item[1]))
        exceptions = "; ".join(f"{', '.join(hosts)}: {value}" for value, hosts in others)
        return f"{usual} ({exceptions})" if exceptions else str(usual)

    @cached_property
    def pairings(self) -> list[Pairing]:
        """One for each host of which there is a run."""
        runs = {host: [run for run in self.runs if run.host == host] for host in self.hosts}
        return [pair_up(host, own) for host, own in runs.items() if own]

    @property
    def compared(self) -> list[Pairing]:
        """Those with a seed that both arms have."""
        return [pairing for pairing in self.pairings if pairing.row(SETTINGS[0]).test.pairs]

    def pairing(self, host: str) -> Pairing | None:
        return next((pairing for pairing in self.pairings if pairing.name == host), None)

    def job(self, host: str, arm: str) -> Job:
        return next(job for job in self.jobs if (name_of(job), job.arm) == (host, arm))

    def of(self, job: Job) -> list[Run]:
        return [run for run in self.runs if is_of(run, job)]


def on_one_data(runs: Sequence[Run]) -> tuple[list[Run], dict[str, str]]:
    """Of runs with the same benchmark settings those on the data that most of them have; why the others are not.

    Sections compare hosts and sweeps too, so it is one choice for the whole page.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(canonical([run.settings["benchmark"].get(key) for key in DECIDE_DATA]), []).append(run)
    left_out: dict[str, str] = {}
    for own in groups.values():
        counts = Counter(canonical(run.data) for run in own)
        usual = next(run for run in own if canonical(run.data) == counts.most_common(1)[0][0])
        for run in own:
            if odd := differing_keys(usual.data, run.data):
                left_out[run.name] = (
                    f"not the {' and '.join(odd)} that most runs on {run.benchmark} have ({usual.name})"
                )
    return [run for run in runs if run.name not in left_out], left_out


def read_study(sweep: str, folder: str, runs: Sequence[Run]) -> Study:
    jobs = planned_jobs(sweep)
    asked = [(run, job) for run in runs if (job := next((job for job in jobs if is_of(run, job)), None)) is not None]
    return Study(sweep, folder, jobs, *choose_alike((run, job.name, how_computed(run, job)) for run, job in asked))


def choose_alike(candidates: Iterable[tuple[Run, str, str]]) -> tuple[list[Run], dict[str, str]]:
    """Of runs, each with its kind and how it was computed: at every seed of a host one of a kind, all computed alike.

    Where there is a choice it is what gives most kinds. The others are left out, each with the reason.
    """
    left_out: dict[str, str] = {}
    seeds: dict[tuple[str, int], dict[str, dict[str, Run]]] = {}
    for run, kind, how in candidates:
        alike = seeds.setdefault((run.host, run.seed), {}).setdefault(how, {})
        first = alike.setdefault(kind, run)
        if first is not run:
            left_out[run.name] = f"repeats {first.name}: the same settings and seed"
    kept: list[Run] = []
    for ways in seeds.values():
        chosen = max(ways, key=lambda how: len(ways[how]))
        kept += ways[chosen].values()
        for how, runs in ways.items():
            if how != chosen:
                said = f"computed {how}; the runs it belongs to were computed {chosen}"
                left_out |= {run.name: said for run in runs.values()}
    return kept, left_out


def how_computed(run: Run, job: Job) -> str:
    """What may change a result beside its settings: the precision, where the job leaves it open, and `fast`."""
    fixed = job.config["training"]["precision"]
    precision = [] if fixed else [f"in {run.record.run.get('precision')}"]
    return ", ".join([*precision, "fast" if run.record.config.get("fast") else "deterministically"])


@cache
def planned_jobs(sweep: str) -> list[Job]:
    return plan(read_sweep(SWEEPS / f"{sweep}.yaml"), Path(), RunContext(None, "cpu", None))


def pair_up(host: str, runs: Iterable[Run]) -> Pairing:
    """Of runs no two of which have the same arm and seed."""
    return Pairing(host, by_seed(runs, {}))


def name_of(job: Job) -> str:
    return str(job.config["host"]["name"])


def is_of(run: Run, job: Job, free: Sequence[str] = ()) -> bool:
    """Whether a run did what a job asks for, whatever its seed and the keys left free.

    A key that one of them lacks came or went with a version.
    """
    if run.host != name_of(job):
        return False
    wanted, found = deciding(job.config), deciding(run.settings)
    precision = job.config["training"]["precision"]
    if precision is not None and run.record.run.get("precision") != precision:
        return False
    return all(wanted[key] == found[key] for key in (wanted.keys() & found.keys()) - set(free))


def deciding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that decide what a run computes; those of flashback only where it is on."""
    settings = {key: value for key, value in dotted(config).items() if key not in BESIDE}
    enabled = settings["flashback.enabled"]
    ignored = ("checkpoint.",) if enabled else ("checkpoint.", "flashback.")
    return {key: value for key, value in settings.items() if not key.startswith(ignored)} | {"arm": enabled}
