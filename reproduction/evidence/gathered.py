"""All records, each where it belongs on the page of evidence, and what is drawn from several of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from evidence.planned import (
    Study,
    choose_alike,
    deciding,
    how_computed,
    is_of,
    on_one_data,
    pair_up,
    read_study,
)
from flashback.config import FlashbackConfig
from flashback.metrics import PairedTest, mean, paired_test
from flashback.records import RunRecord, differing_keys
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST
from flashback.reports.pairings import Pairing, Report
from flashback.reports.printed import Anchor, anchor_of
from flashback.reports.reading import Run
from flashback.reports.words import written

AA, FORGETTING, LEARNING = "average_accuracy", "forgetting", "mean_new_task_accuracy"
SHORTER = "shorter"  # the host alone with the epochs of phase 2
NEAR = 2.0  # points of accuracy within which a host counts as that of a publication


@dataclass(frozen=True)
class Switched:
    """What an anchor comes to with something changed: means over seeds."""

    words: str
    accuracy: float
    forgetting: float
    first_task: float
    seeds: int

    @classmethod
    def of(cls, words: str, records: Sequence[RunRecord]) -> Switched:
        measured = [record.results[CLASS_INCREMENTAL] for record in records]
        accuracy, forgetting = (fmean(one[metric] for one in measured) for metric in (AA, FORGETTING))
        return cls(words, accuracy, forgetting, on_first_task(records), len(records))


def on_first_task(records: Sequence[RunRecord]) -> float:
    """The accuracy on it when it was learned, before anything could be forgotten."""
    return fmean(record.results[CLASS_INCREMENTAL]["matrix"][0][0] for record in records)


def changes(before: Run, after: Run) -> str:
    """The settings that decide what a run computes, where those of another are different."""
    settings = deciding(after.settings)
    return ", ".join(f"{key} {written(settings[key])}" for key in differing_keys(deciding(before.settings), settings))


@dataclass(frozen=True)
class Anchored:
    """A host beside the value of an independent publication, and what may explain the difference."""

    pairing: Pairing
    anchor: Anchor
    switched: list[Switched]

    def here(self, metric: str) -> float:
        value = self.pairing.row(CLASS_INCREMENTAL, metric).mean[HOST]
        assert value is not None
        return value

    def off_by(self, accuracy: float) -> float:
        return accuracy - self.anchor.average_accuracy

    @property
    def difference(self) -> float:
        return self.off_by(self.here(AA))

    @property
    def near(self) -> bool:
        return abs(self.difference) <= NEAR

    @property
    def by_distance(self) -> list[Switched]:
        """The changes, first the one that comes nearest in accuracy and forgetting together."""

        def distance(one: Switched) -> float:
            return abs(self.off_by(one.accuracy)) + abs(one.forgetting - self.anchor.forgetting)

        return sorted(self.switched, key=distance)


@dataclass(frozen=True)
class Change:
    """What one run has that another may lack: flashback, a falling learning rate, more epochs."""

    flashback: bool
    rate: str
    epochs: tuple[int, ...]  # of a task after the first, by phase

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Change:
        training, flashback = config["training"], config["flashback"]
        first = training["first_schedule"] or training["schedule"]
        falls = [schedule != "none" for schedule in (first, training["schedule"])]
        where = {(True, True): "falls", (False, True): "falls after the first task", (True, False): "falls at first"}
        settings = FlashbackConfig(**flashback)
        epochs = settings.split(training["epochs"]) if settings.enabled else (training["epochs"],)
        return cls(settings.enabled, where.get((falls[0], falls[1]), "constant"), epochs)

    def since(self, base: Change) -> list[str]:
        """What was switched on since another run, in words."""
        longer = sum(self.epochs) - sum(base.epochs)
        found = {
            "flashback": self.flashback != base.flashback,
            "the falling learning rate": self.rate != base.rate,
            f"{abs(longer)} epochs {'more' if longer > 0 else 'fewer'} a task": longer != 0,
        }
        return [name for name, changed in found.items() if changed]


@dataclass(frozen=True)
class Variant:
    """The runs of one arm between the authors' two."""

    change: Change
    runs: list[Run]

    def value(self, setting: str, metric: str = AA) -> float | None:
        return mean([run.record.results[setting][metric] for run in self.runs])

    def difference(self, base: Variant, setting: str) -> float | None:
        """Of average accuracy, to another arm."""
        now, before = self.value(setting), base.value(setting)
        return None if now is None or before is None else now - before


@dataclass(frozen=True)
class AuthorsArms:
    """The arms of the authors, and those between them."""

    host: Variant
    falling: Variant  # the host, its rate falling as in the arm with flashback
    shorter: Variant  # the same with the epochs of phase 2
    flashback: Variant  # at the constant rate of the host
    both: Variant

    @classmethod
    def among(cls, variants: Sequence[Variant]) -> AuthorsArms:
        base = variants[0].change

        def arm(flashback: bool, falls: bool, fewer: bool = False) -> Variant:
            def fits(own: Change) -> bool:
                length = sum(own.epochs) < sum(base.epochs) if fewer else sum(own.epochs) == sum(base.epochs)
                return (own.flashback, own.rate != base.rate, length) == (flashback, falls, True)

            return next(variant for variant in variants if fits(variant.change))

        return cls(variants[0], arm(False, True), arm(False, True, fewer=True), arm(True, False), arm(True, True))


@dataclass(frozen=True)
class Precisions:
    """The same runs of a host in two precisions, by precision and seed: the seeds that both have."""

    host: str
    runs: dict[str, dict[int, Run]]

    def values(self, precision: str, setting: str) -> dict[int, float | None]:
        return {seed: run.record.results[setting][AA] for seed, run in self.runs[precision].items()}

    def test(self, setting: str) -> PairedTest:
        """The first precision minus the second."""
        first, second = (self.values(name, setting) for name in self.runs)
        return paired_test(second, first)


@dataclass(frozen=True)
class Shorter:
    """A host alone, alone with the epochs of phase 2, and with flashback: what leads from one to the next."""

    host: str
    runs: dict[str, dict[int, Run]]  # by kind and seed: the seeds that all have

    @property
    def seeds(self) -> list[int]:
        return list(self.runs[SHORTER])

    @property
    def made_otherwise(self) -> dict[int, list[str]]:
        """In what the surroundings of a seed's runs differ, where equal ones would give equal first tasks."""
        found = {}
        for seed in self.seeds:
            first, *others = (own[seed].record.run.get("must_match") or {} for own in self.runs.values())
            if keys := sorted({key for other in others for key in differing_keys(first, other)}):
                found[seed] = keys
        return found

    def values(self, kind: str, setting: str, metric: str) -> dict[int, float | None]:
        return {seed: run.record.results[setting][metric] for seed, run in self.runs[kind].items()}

    def by_training(self, setting: str, metric: str) -> PairedTest:
        return paired_test(self.values(HOST, setting, metric), self.values(SHORTER, setting, metric))

    def by_knowledge(self, setting: str, metric: str) -> PairedTest:
        return paired_test(self.values(SHORTER, setting, metric), self.values(FLASHBACK, setting, metric))


def on_old_tasks(pairing: Pairing, setting: str) -> PairedTest:
    """What flashback does to the accuracy, after the last task, on all tasks before it."""
    left = {
        arm: {run.seed: mean(run.record.results[setting]["matrix"][-1][:-1]) for run in pairing.of(arm)} for arm in ARMS
    }
    return paired_test(left[HOST], left[FLASHBACK])


def known(values: Mapping[int, float | None]) -> list[float]:
    return [value for value in values.values() if value is not None]


class Evidence:
    """The records of a report by section; each sweep is one, and some sections draw on several."""

    def __init__(self, report: Report) -> None:
        def study(sweep: str, folder: str) -> Study:
            return read_study(sweep, folder, self.runs)

        self.report = report
        self.runs, self.on_other_data = on_one_data(report.runs)
        self.anchors = study("anchors", "anchors")
        self.switches = study("anchor-switches", "anchor-switches")
        self.controlled = study("controlled", "controlled")
        self.phase2_alone = study("phase2-alone", "phase2-alone")
        self.differences = study("icarl-differences", "icarl-differences")
        self.tuning = study("tuning", "tuning")
        self.precision = study("precision", "precision")
        self.short = study("short-cifar100", "short-cifar100")

    # ------------------------------------------------------------ drawn from several sweeps

    @cached_property
    def anchored(self) -> list[Anchored]:
        found = []
        for pairing in self.anchors.pairings:
            anchor = anchor_of(pairing.any_run.benchmark, pairing.name)
            if anchor is not None:
                switched = [*by_other_classifiers(pairing), *self.anchors_switched(pairing.any_run)]
                found.append(Anchored(pairing, anchor, switched))
        return found

    def anchors_switched(self, anchor: Run) -> list[Switched]:
        switched: dict[str, list[RunRecord]] = {}
        for run in (run for run in self.switches.runs if run.host == anchor.host):
            switched.setdefault(changes(anchor, run), []).append(run.record)
        return [Switched.of(words, records) for words, records in switched.items()]

    @cached_property
    def retrained(self) -> dict[str, Switched]:
        """The anchored hosts at the controlled settings, and what differs."""
        hosts = {found.pairing.name: found.pairing.any_run for found in self.anchored}
        runs = {host: self.controlled.of(self.controlled.job(host, HOST)) for host in hosts}
        return {
            host: Switched.of(changes(hosts[host], own[0]), [run.record for run in own])
            for host, own in runs.items()
            if own
        }

    @cached_property
    def variants(self) -> list[Variant]:
        """The runs between the authors' arms, and the controlled arms of the same host."""
        jobs = [(job, self.differences) for job in self.differences.jobs]
        jobs += [(self.controlled.job(self.differences.hosts[0], arm), self.controlled) for arm in ARMS]
        return [Variant(Change.of(job.config), study.of(job)) for job, study in jobs]

    @property
    def authors_arms(self) -> AuthorsArms:
        return AuthorsArms.among(self.variants[: len(self.differences.jobs)])

    def noise(self, host: str, setting: str) -> float | None:
        """The deviation of a difference of two runs that only their seeds part."""
        pairing = self.controlled.pairing(host)
        own = pairing.row(setting).deviation[HOST] if pairing else None
        return None if own is None else math.sqrt(2) * own

    @cached_property
    def chosen(self) -> dict[str, Run]:
        """The best trial of every host on validation images; of equals the smallest weight."""
        trials = {host: [run for run in self.tuning.runs if run.host == host] for host in self.tuning.hosts}
        return {host: max(own, key=lambda run: (accuracy(run), -alpha(run))) for host, own in trials.items() if own}

    @cached_property
    def with_tuned(self) -> dict[str, tuple[list[Run], dict[str, str]]]:
        """The host alone and with flashback at the chosen weight, all else as in the controlled table; what not."""
        found = {}
        for host, trial in self.chosen.items():
            job = self.controlled.job(host, FLASHBACK)
            arm = [run for run in self.runs if is_of(run, job, free=["flashback.alpha"]) and alpha(run) == alpha(trial)]
            both = [*self.controlled.of(self.controlled.job(host, HOST)), *arm]
            if arm:
                found[host] = choose_alike((run, run.arm, how_computed(run, job)) for run in both)
        return found

    @cached_property
    def tuned(self) -> dict[str, Pairing]:
        return {host: pair_up(host, runs) for host, (runs, _) in self.with_tuned.items()}

    @property
    def newly_tuned(self) -> dict[str, Pairing]:
        """Where the chosen weight is not the recipe's own."""
        return {host: own for host, own in self.tuned.items() if alpha(own.of(FLASHBACK)[0]) != self.usual_weight(host)}

    def usual_weight(self, host: str) -> float:
        """The recipe's alpha_p."""
        return float(self.controlled.job(host, FLASHBACK).config["flashback"]["alpha"])

    @property
    def unanchored(self) -> list[Pairing]:
        """Hosts with flashback that no independent publication has a value for."""
        return [own for own in self.controlled.compared if anchor_of(own.any_run.benchmark, own.name) is None]

    @cached_property
    def shorter(self) -> list[Shorter]:
        """At the seeds of which all three runs are here, computed alike."""
        found = []
        for host in self.phase2_alone.hosts:
            arms = {arm: (self.controlled, self.controlled.job(host, arm)) for arm in ARMS}
            kinds = arms | {SHORTER: (self.phase2_alone, self.phase2_alone.job(host, HOST))}
            runs = {
                kind: {(run.seed, how_computed(run, job)): run for run in study.of(job)}
                for kind, (study, job) in kinds.items()
            }
            common = sorted(set.intersection(*(set(own) for own in runs.values())))
            if common:
                found.append(Shorter(host, {kind: {k[0]: own[k] for k in common} for kind, own in runs.items()}))
        return found

    @cached_property
    def precisions(self) -> list[Precisions]:
        found = []
        for host in self.precision.hosts:
            runs: dict[str, dict[int, Run]] = {job.config["training"]["precision"]: {} for job in self.precision.jobs}
            for run in self.precision.runs:
                if run.host == host:
                    runs[str(run.record.run["precision"])][run.seed] = run
            common = set.intersection(*(set(own) for own in runs.values()))
            if common:
                paired = {name: {seed: own[seed] for seed in own if seed in common} for name, own in runs.items()}
                found.append(Precisions(host, paired))
        return found

    @property
    def studies(self) -> list[Study]:
        first = [self.anchors, self.switches, self.controlled, self.phase2_alone]
        return [*first, self.differences, self.tuning, self.precision, self.short]

    @cached_property
    def shown(self) -> set[str]:
        chosen = [*(study.runs for study in self.studies), *(runs for runs, _ in self.with_tuned.values())]
        return {run.name for runs in chosen for run in runs}

    @property
    def others(self) -> list[Run]:
        """Runs that no section asks for."""
        return [run for run in self.runs if run.name not in self.shown | self.left_out.keys()]

    @cached_property
    def left_out(self) -> dict[str, str]:
        """What could not be read, and runs that were asked for but stand in no section."""
        reasons = [*(study.left_out for study in self.studies), *(why for _, why in self.with_tuned.values())]
        unshown = {name: why for one in reasons for name, why in one.items() if name not in self.shown}
        return self.report.skipped | self.on_other_data | unshown


def by_other_classifiers(pairing: Pairing) -> list[Switched]:
    """The same runs, their test images told apart by another classifier than the host's own."""
    runs = pairing.of(HOST)
    same = "the same run by its" if len(runs) == 1 else "the same runs by their"
    return [
        Switched.of(f"{same} {name} classifier", [run.others[name] for run in runs]) for name in pairing.classifiers
    ]


def accuracy(run: Run) -> float:
    return float(run.record.results[CLASS_INCREMENTAL][AA])


def alpha(run: Run) -> float:
    return float(run.settings["flashback"]["alpha"])
