"""Which runs answer one question: the same host, benchmark, recipe and settings, without and with flashback."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from flashback.errors import require, unknown
from flashback.metrics import PairedTest, paired_over_methods, paired_over_tasks, paired_test, verdict
from flashback.recipes.catalogue import AS_PUBLISHED
from flashback.records import RunRecord, differing_keys
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.departures import changes, is_whole
from flashback.reports.naming import name_pairs, name_protocols, protocol, short_code
from flashback.reports.printed import Printed, printed_for
from flashback.reports.reading import Found, Run, Similarity, find
from flashback.reports.series import mean_matrix
from flashback.reports.words import (
    ABSENT,
    ARM_TITLES,
    SETTING_TITLES,
    SIGNIFICANT,
    TITLES,
    metric_called,
    missing_values,
    plural,
    unmatched_seeds,
    unvalued_seeds,
)
from flashback.studies.comparison import (
    Comparison,
    Row,
    differing_environment,
    has_equal_budget,
    measure_cost,
    metrics_of,
    tabulate,
)

NOT_SETTINGS = ("seed", "flashback", "checkpoint")  # may differ between the runs of one arm or of one pairing


class Outcome(IntEnum):
    """What a comparison may come to."""

    BETTER = 1
    WORSE = 2
    ALIKE = 3
    UNTESTED = 4


@dataclass(frozen=True)
class Pairing:
    """The runs of one question, by arm and seed; an arm may be missing."""

    name: str
    runs: dict[tuple[str, int], Run]

    def of(self, arm: str) -> list[Run]:
        return [run for (own, _), run in self.runs.items() if own == arm]

    @property
    def any_run(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def last_run(self) -> Run:
        """Of flashback, where both arms are there."""
        return list(self.runs.values())[-1]

    @property
    def arms(self) -> list[str]:
        return [arm for arm in ARMS if self.of(arm)]

    @property
    def short_name(self) -> str:
        """Of an arm by itself, whatever its settings."""
        run = self.any_run
        return f"{run.host} {ARM_TITLES[FLASHBACK]}" if run.arm == FLASHBACK else run.host

    @property
    def is_single(self) -> bool:
        """Whether one arm stands alone, with nothing to compare it with."""
        return len(self.arms) < len(ARMS)

    @property
    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.runs})

    @property
    def common_seeds(self) -> list[int]:
        """Those that both arms have."""
        return [seed for seed in self.seeds if all((arm, seed) in self.runs for arm in ARMS)]

    @property
    def tasks(self) -> int:
        return self.any_run.tasks

    @cached_property
    def protocol(self) -> str:
        """Equal for methods that learned and were tested on the same."""
        return canonical({key: value for key, value in protocol(self.any_run).items() if value is not None})

    @cached_property
    def is_whole(self) -> bool:
        """Whether none of its runs was shortened or tested on validation images."""
        return all(map(is_whole, self.runs.values()))

    @property
    def is_bound(self) -> bool:
        """Whether it learned all tasks at once: what the others aim at, and no competitor of theirs."""
        return self.measured(SETTINGS[0], "average_incremental_accuracy")[0] is None

    @cached_property
    def changes(self) -> dict[str, Any]:
        """Its settings that are not those of its recipe."""
        return changes(self.runs.values())

    @property
    def printed(self) -> list[Printed]:
        """What the paper prints for such runs; nothing stands beside runs of another length.

        Where flashback is not set up as in the recipe, only values that are about just that.
        """
        if not self.is_whole:
            return []
        special = {key for key in self.changes if key.startswith("flashback.")}
        settings = self.of(self.arms[-1])[0].settings  # with flashback, where there is such a run
        return [
            printed
            for printed in printed_for(settings)
            if printed.metric in self.metrics
            and special <= printed.of_flashback
            and bool(special) == bool(printed.of_flashback)
        ]

    @property
    def metrics(self) -> list[str]:
        return metrics_of([self.any_run.record])

    @cached_property
    def comparison(self) -> Comparison:
        records = {key: run.record for key, run in self.runs.items()}
        return Comparison(
            host=self.any_run.host,
            benchmark=self.any_run.benchmark,
            recipe=self.any_run.recipe,
            seeds=self.seeds,
            rows=[tabulate(records, self.seeds, setting, metric) for setting in SETTINGS for metric in self.metrics],
            cost={arm: measure_cost([run.record for run in self.of(arm)]) for arm in self.arms},
            equal_budget=has_equal_budget(records, self.seeds),
            differing_settings=self.differing_settings(NOT_SETTINGS),
            differing_environment=differing_environment(records.values()),
            failures={},
            reused=[],
        )

    def differing_settings(self, ignored: Sequence[str] = ("seed", "checkpoint")) -> list[str]:
        """The settings in which the arms differ."""
        if self.is_single:
            return []
        host, flashback = (self.of(arm)[0].settings for arm in ARMS)
        return differing_keys(host, flashback, ignored)

    def measured(self, setting: str, metric: str = "average_accuracy") -> tuple[float | None, float | None]:
        """Mean and deviation of its one arm, or of flashback where both are there."""
        arm = self.arms[-1]
        row = self.row(setting, metric) if metric in self.metrics else None
        return (None, None) if row is None else (row.mean[arm], row.deviation[arm])

    def row(self, setting: str, metric: str = "average_accuracy") -> Row:
        return next(row for row in self.comparison.rows if (row.setting, row.metric) == (setting, metric))

    def answer(self, setting: str) -> str:
        """Does flashback help this host? One sentence."""
        if self.is_single:
            return f"Only runs of one arm ({ARM_TITLES[self.arms[0]]}) are here, so there is nothing to compare."
        apart = ", ".join(self.comparison.differing_settings)
        budget = self.budget + (f", arms that also differ in {apart}" if apart else "")
        return f"Average accuracy, {SETTING_TITLES[setting]}, {budget}: {self.verdict(setting)}"

    def verdict(self, setting: str) -> str:
        """The answer for readers who see setting and budget beside it."""
        return verdict(self.row(setting).test)

    @property
    def budget(self) -> str:
        """Whether the arms spent the same; nothing of an arm that stands alone."""
        return ABSENT if self.is_single else self.comparison.budget

    def outcome(self, setting: str) -> Outcome:
        """How the test by seed of the average accuracy came out; of arms that are both there."""
        test = self.row(setting).test
        if test.p is None:
            return Outcome.UNTESTED
        if test.p >= SIGNIFICANT:
            return Outcome.ALIKE
        return Outcome.BETTER if (test.difference or 0) > 0 else Outcome.WORSE

    def over_tasks(self, setting: str) -> PairedTest:
        """The paper's test for oEWC: one pair per task, of average accuracies that are means over common seeds."""
        seeds = self.common_seeds
        if not seeds:
            return paired_test([], [], unit="task")
        host, flashback = (mean_matrix([self.runs[arm, seed].record for seed in seeds], setting) for arm in ARMS)
        return paired_over_tasks(host, flashback)

    @property
    def classifiers(self) -> list[str]:
        """The further classifiers of the host that all of its runs have."""
        return [name for name in self.any_run.others if all(name in run.others for run in self.runs.values())]

    def other_classifiers(self) -> dict[str, list[Row]]:
        """Average accuracies by the further classifiers."""
        return {name: [self.by_classifier(name, setting) for setting in SETTINGS] for name in self.classifiers}

    def by_classifier(self, name: str, setting: str, metric: str = "average_accuracy") -> Row:
        """A row by one of the further classifiers."""
        records: dict[tuple[str, int], RunRecord] = {key: run.others[name] for key, run in self.runs.items()}
        return tabulate(records, self.seeds, setting, metric)


def resumed_otherwise(runs: Iterable[Run]) -> list[str]:
    """The runs that are not what their settings and surroundings alone make of them."""
    changed = {run.name: run.record.run.get("changed_on_resume") or [] for run in runs}
    return [
        f"{name} went on after an interruption in other surroundings ({', '.join(what)})."
        for name, what in changed.items()
        if what
    ]


@dataclass(frozen=True)
class Report:
    """What there is to report: the pairings, and what was found beside them."""

    pairings: list[Pairing]
    similarities: list[Similarity]
    skipped: dict[str, str]
    baseline: str = ""  # the method that others are tested against, as the user calls it
    chosen: tuple[str, ...] = ()  # metrics, in the order of the tables; all where none is named

    @property
    def comparisons(self) -> list[Pairing]:
        """Those with both arms."""
        return [pairing for pairing in self.pairings if not pairing.is_single]

    @property
    def singles(self) -> list[Pairing]:
        return [pairing for pairing in self.pairings if pairing.is_single]

    @cached_property
    def methods(self) -> list[Pairing]:
        """Every arm by itself and once, though a host may stand in several pairings."""
        arms = [{key: run for key, run in p.runs.items() if run.arm == arm} for p in self.pairings for arm in p.arms]
        distinct = list({tuple(run.name for run in runs.values()): runs for runs in arms}.values())
        return list(map(Pairing, name_pairs(distinct, with_arm=True), distinct))

    @cached_property
    def protocols(self) -> dict[str, str]:
        """Each with its name, by benchmark; of one benchmark that of whole runs first."""
        known = {one.protocol: protocol(one.any_run) for one in self.pairings}
        ordered = sorted(known, key=lambda one: str(known[one]["name"]))
        return dict(zip(ordered, name_protocols([known[one] for one in ordered]), strict=True))

    def ranked(self, setting: str) -> list[Pairing]:
        """The methods, on each protocol best first by average accuracy."""
        place = {one: k for k, one in enumerate(self.protocols)}
        order = {one.name: (place[one.protocol], -(one.measured(setting)[0] or 0)) for one in self.methods}
        return sorted(self.methods, key=lambda method: order[method.name])

    @property
    def has_overview(self) -> bool:
        """Whether there is more to look over than the two arms of one host."""
        return bool(self.singles) or len(self.methods) > len(ARMS)

    def method_of(self, pairing: Pairing, arm: str) -> Pairing:
        """An arm of a pairing under the name that it has by itself."""
        return next(method for method in self.methods if method.of(arm) == pairing.of(arm))

    def called(self, name: str) -> list[Pairing]:
        """The method of this name, or all settings of the host or of the host with flashback of this name."""
        exactly = [method for method in self.methods if method.name == name]
        found = exactly or [one for one in self.methods if one.short_name == name]
        if not found:
            raise unknown("method", name, (method.name for method in self.methods))
        return found

    @property
    def title(self) -> str:
        return "Does flashback help?" if self.comparisons else "How do the methods compare?"

    @property
    def contents(self) -> str:
        """What there is, in the same words and counts wherever a report begins."""
        runs = f"{plural(len(self.runs), 'finished run')} on {self.where}"
        if not self.comparisons:
            return f"{runs}: {plural(len(self.methods), 'method')}"
        kinds = {"comparison": len(self.comparisons), "single arm": len(self.singles)}
        return f"{runs}: {', '.join(plural(count, noun) for noun, count in kinds.items() if count)}"

    @property
    def singles_in_words(self) -> str:
        hosts = ", ".join(dict.fromkeys(pairing.any_run.host for pairing in self.singles))
        return f"{plural(len(self.singles), 'single arm')}, with nothing to compare: {hosts}"

    @property
    def runs(self) -> list[Run]:
        """Every run once, though a host arm may stand in several pairings; in the order of names."""
        named = sorted(self.pairings, key=lambda pairing: (pairing.any_run.benchmark, pairing.name))
        return list({run.name: run for pairing in named for run in pairing.runs.values()}.values())

    @property
    def seed_remarks(self) -> list[str]:
        """Of which pairings the means of a table rest on other seeds than the differences, or not on all."""
        said = {
            p.name: [unmatched_seeds(p.comparison), *unvalued_seeds(p.comparison, self.metrics)] for p in self.pairings
        }
        return [f"{name}: {remark}" for name, remarks in said.items() for remark in remarks if remark]

    @property
    def code_remarks(self) -> list[str]:
        """Runs that would be a comparison, had the files of their host or net been the same; and runs of two codes."""
        alike: dict[str, list[Run]] = {}
        for run in self.runs:
            alike.setdefault(canonical(but_for_code(run)), []).append(run)
        codes: dict[str, set[str]] = {}
        for runs in alike.values():
            if len(own := {short_code(run) for run in runs}) > 1:
                codes.setdefault(runs[0].host, set()).update(own)
        return [*resumed_otherwise(self.runs)] + [
            f"{host}: its runs were made with different code ({', '.join(sorted(own))}), so they are not compared with "
            "each other; run those of the old code again in another folder."
            for host, own in codes.items()
        ]

    @property
    def value_remarks(self) -> list[str]:
        return self.empty(self.metrics)

    def empty(self, metrics: Sequence[str]) -> list[str]:
        """Why columns of a table are empty for a host."""
        said: dict[str, list[str]] = {}
        for method in self.methods:
            for why in missing_values(method.comparison, metrics):
                said.setdefault(why, []).append(method.any_run.host)
        return [f"{', '.join(dict.fromkeys(hosts))}: {why}" for why, hosts in said.items()]

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(pairing.any_run.benchmark for pairing in self.pairings))

    @property
    def where(self) -> str:
        """The benchmarks by name, wherever their files lie."""
        return ", ".join(Path(benchmark).stem for benchmark in self.benchmarks)

    @property
    def metrics(self) -> list[str]:
        return [
            metric for metric in self.chosen or TITLES if any(metric in pairing.metrics for pairing in self.pairings)
        ]

    def over_methods(self, benchmark: str) -> PairedTest | None:
        """The paper's test: one pair per method and setting, of means over common seeds; None for a single method.

        A method that ran with several settings would count more than once, so it does not count. Nor do runs that
        were shortened or tested on validation images.
        """
        complete = [p for p in self.pairings if p.any_run.benchmark == benchmark and p.common_seeds and p.is_whole]
        times = Counter(p.any_run.host for p in complete)
        complete = [p for p in complete if times[p.any_run.host] == 1]
        if len(complete) < 2:
            return None
        host, flashback = (
            {p.name: {s: mean for s in SETTINGS if (mean := p.row(s).matched[arm]) is not None} for p in complete}
            for arm in ARMS
        )
        return paired_over_methods(host, flashback)


def read_report(
    folders: str | Path | Sequence[str | Path], *, against: str = "", metrics: Sequence[str] = ()
) -> Report:
    """Read and group every finished run below a folder, or several.

    `against` names a method that all others are tested against; `metrics` those of the tables, in their order.
    """
    found = find([Path(folder) for folder in ([folders] if isinstance(folders, (str, Path)) else folders)])
    report = Report(
        pair(found), found.similarities, found.skipped, against, tuple(dict.fromkeys(map(metric_called, metrics)))
    )
    if report.pairings:
        require(bool(report.metrics), f"these runs have no {', '.join(metrics)}; choose other metrics (--metrics)")
    if against and report.pairings:
        report.called(against)
    return report


# ---------------------------------------------------------------- grouping


def pair(found: Found) -> list[Pairing]:
    groups: dict[str, dict[str, dict[str, list[Run]]]] = {}  # settings, arm, settings of flashback
    for run in found.runs:
        variant = canonical(run.settings["flashback"]) if run.arm == FLASHBACK else ""
        groups.setdefault(identity(run), {}).setdefault(run.arm, {}).setdefault(variant, []).append(run)
    pairs = []
    for group in join_arms(list(groups.values())):
        host = [run for runs in group.get(HOST, {}).values() for run in runs]
        for runs in group.get(FLASHBACK, {"": []}).values():
            pairs.append(by_seed([*host, *runs], found.skipped))
    names = name_pairs(pairs)
    return sorted(map(Pairing, names, pairs), key=weight)


def weight(pairing: Pairing) -> tuple[bool, int, str, str]:
    """What a reader should see first: whole runs, then many pairs."""
    return not pairing.is_whole, -len(pairing.common_seeds), pairing.any_run.benchmark, pairing.name


def identity(run: Run) -> str:
    """Equal for runs that only differ in seed, arm and flashback's own settings: the same code on the same images."""
    return canonical([run.code, *but_for_code(run)])


def but_for_code(run: Run) -> list[Any]:
    config = {key: value for key, value in run.settings.items() if key not in NOT_SETTINGS}
    return [config, run.data, run.tasks]


def canonical(value: Any) -> str:
    return json.dumps(plain_keys(value), sort_keys=True, default=str)


def plain_keys(value: Any) -> Any:
    """YAML allows keys that JSON cannot sort."""
    if isinstance(value, Mapping):
        return {str(key): plain_keys(item) for key, item in value.items()}
    return [plain_keys(item) for item in value] if isinstance(value, list) else value


Arms = dict[str, dict[str, list[Run]]]


def join_arms(groups: Sequence[Arms]) -> list[Arms]:
    """Published recipes may set up the host differently in the arms: one of each, on the same data, belong together."""
    halves: dict[str, list[Arms]] = {}
    for group in groups:
        run = next(run for variants in group.values() for runs in variants.values() for run in runs)
        if len(group) < len(ARMS) and run.recipe == AS_PUBLISHED:
            key = canonical([run.host, run.code, run.settings["benchmark"], run.data, run.tasks])
            halves.setdefault(key, []).append(group)
    joined = [two[0] | two[1] for two in halves.values() if len(two) == 2 and two[0].keys() != two[1].keys()]
    used = [id(group) for two in halves.values() if len(two) == 2 and two[0].keys() != two[1].keys() for group in two]
    return [group for group in groups if id(group) not in used] + joined


def by_seed(runs: Iterable[Run], skipped: dict[str, str]) -> dict[tuple[str, int], Run]:
    kept: dict[tuple[str, int], Run] = {}
    for run in runs:
        first = kept.setdefault((run.arm, run.seed), run)
        if first is not run:
            skipped[run.name] = f"repeats {first.name}: the same configuration and seed"
    return dict(sorted(kept.items(), key=lambda item: (ARMS.index(item[0][0]), item[0][1])))
