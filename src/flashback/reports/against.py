"""One method against another on the same seeds: the paired test of a report, between any two methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from flashback.errors import require
from flashback.metrics import verdict
from flashback.metrics.statistics import holm
from flashback.records import RunRecord, differing_keys
from flashback.records.terms import FLASHBACK, HOST, SETTINGS
from flashback.reports.departures import flat_settings
from flashback.reports.naming import protocol
from flashback.reports.pairings import Pairing, Report
from flashback.reports.reading import Run
from flashback.reports.words import SETTING_TITLES
from flashback.studies.comparison import Row, differing_environment, has_equal_budget, tabulate

OWN = {"host.name", "recipe"}  # differ between methods by their nature
MEMORY = "host.memory"


@dataclass(frozen=True)
class Versus:
    """A method and the one that it is tested against. In rows these take the places of flashback and host."""

    base: Pairing
    method: Pairing

    @property
    def name(self) -> str:
        return f"{self.method.name} against {self.base.name}"

    @cached_property
    def records(self) -> dict[tuple[str, int], RunRecord]:
        sides = {HOST: self.base, FLASHBACK: self.method}
        return {(side, seed): run.record for side, own in sides.items() for (_, seed), run in own.runs.items()}

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.records})

    @cached_property
    def differing(self) -> list[str]:
        """In what they differ beside being two methods: settings that both have, devices, versions."""
        one, two = self.base.any_run, self.method.any_run
        settings = [key for key in common_differences(one, two) if key not in OWN]
        around = differing_environment(self.records.values())
        return [*settings, *(key for key in around if key != "code" or one.host == two.host)]

    def has(self, metric: str) -> bool:
        return metric in self.base.metrics and metric in self.method.metrics

    def row(self, setting: str, metric: str = "average_accuracy") -> Row:
        return tabulate(self.records, self.seeds, setting, metric)

    @property
    def budget(self) -> str:
        return "equal budget" if has_equal_budget(self.records, self.seeds) else "unequal budget"

    @property
    def apart(self) -> str:
        return f"they also differ in {', '.join(self.differing)}" if self.differing else ""

    @property
    def reservation(self) -> str:
        """What else may have made the difference; nothing where all else was alike."""
        return ", ".join(part for part in (self.budget, self.apart) if part not in ("", "equal budget"))

    def answer(self, setting: str) -> str:
        apart = f" ({self.apart})" if self.apart else ""
        found = verdict(self.row(setting).test, subject=self.method.name)
        return f"Average accuracy, {SETTING_TITLES[setting]}, {self.budget}{apart}: {found}"


def tested_against(report: Report) -> list[Versus]:
    """Every method beside the one that the report is asked to test against; of its settings the most alike one."""
    bases = report.called(report.baseline) if report.baseline else []
    return [Versus(nearest(fitting, own), own) for own in others(report, bases) if (fitting := allowed(bases, own))]


def untested(report: Report) -> list[str]:
    """The methods that cannot be tested against it, and why."""
    bases = report.called(report.baseline) if report.baseline else []
    why = {
        own.name: min((obstacles(base, own) for base in bases), key=len)
        for own in others(report, bases)
        if not allowed(bases, own)
    }
    return [f"{name} is not tested against {report.baseline}: {' and '.join(own)}." for name, own in why.items()]


def others(report: Report, bases: Sequence[Pairing]) -> list[Pairing]:
    return [method for method in report.ranked(SETTINGS[0]) if method not in bases] if bases else []


def allowed(bases: Sequence[Pairing], method: Pairing) -> list[Pairing]:
    return [base for base in bases if not obstacles(base, method)]


def obstacles(base: Pairing, method: Pairing) -> list[str]:
    """Why two methods cannot be tested against each other: not the same tasks or seeds, or not the same memory."""
    one, two = base.any_run, method.any_run
    data = differing_keys(protocol(one), protocol(two))
    memory = [key for key in common_differences(one, two) if key.startswith(MEMORY)] if one.host != two.host else []
    found = [f"{', '.join([*data, *memory])} differs"] if data or memory else []
    common = {seed for _, seed in base.runs} & {seed for _, seed in method.runs}
    return found + ([] if common else ["no seed in common"])


def common_differences(one: Run, two: Run) -> list[str]:
    """The settings that both have with different values."""
    first, second = flat_settings(one), flat_settings(two)
    return [key for key in first if key in second and first[key] != second[key]]


def nearest(bases: Sequence[Pairing], method: Pairing) -> Pairing:
    distance: Mapping[str, int] = {base.name: len(Versus(base, method).differing) for base in bases}
    closest = [base for base in bases if distance[base.name] == min(distance.values())]
    named = ", ".join(base.name for base in closest)
    require(len(closest) == 1, f"{method.name} may be tested against several methods; name one of: {named}")
    return closest[0]


def adjusted(tests: Sequence[Row]) -> list[float | None]:
    """p adjusted for the number of tests by Holm's method; None where there is no test."""
    known = iter(holm([row.test.p for row in tests if row.test.p is not None]))
    return [None if row.test.p is None else next(known) for row in tests]
