"""Two methods compared seed by seed: a host without and with flashback, or any other two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from flashback.config import FlashbackConfig
from flashback.metrics import PairedTest, paired_test, verdict
from flashback.metrics.accuracy import METRICS
from flashback.metrics.statistics import SIGNIFICANT, mean
from flashback.recipes import config_from_dict
from flashback.recipes.catalogue import AS_PUBLISHED, IMPROVED
from flashback.recipes.resolving import is_recipe_file
from flashback.records import differing_keys
from flashback.records.terms import ARMS, CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS
from flashback.results.method import Cost, Method, Sample, canonical, pair_key
from flashback.results.naming import run_names

FIELDS = (
    "host", "benchmark", "recipe", "seeds", "rows", "cost", "equal_budget", "differing_settings",
    "differing_environment", "failures", "reused", "further_seeds", "flashback", "budget", "sentence",
)  # fmt: skip
IN_WORDS = ("enabled", "teacher", "decay", "alpha", "epochs", "second_epochs")  # of the settings of flashback
SAMPLE_FIELDS = ("values", "mean", "deviation")


@dataclass(frozen=True)
class Row:
    """One metric in one setting: both samples and the paired test of right minus left."""

    setting: str
    metric: str
    left: Sample
    right: Sample
    test: PairedTest

    @classmethod
    def of(cls, setting: str, metric: str, left: Sample, right: Sample) -> Row:
        if left.missing or right.missing:  # a mean over the other seeds would be biased
            return cls(setting, metric, Sample(left.values), Sample(right.values), paired_test({}, {}))
        return cls(setting, metric, left, right, paired_test(left.values, right.values))

    @property
    def paired_means(self) -> tuple[float | None, float | None]:
        """Both means over the seeds with both values; they differ by exactly the difference that is tested."""
        left, right = self.left.values, self.right.values
        pairs = [(left[seed], right[seed]) for seed in left if seed in right]
        complete = np.array([pair for pair in pairs if None not in pair], dtype=float).reshape(-1, 2)
        return mean(complete[:, 0]), mean(complete[:, 1])


@dataclass(frozen=True)
class Comparison:
    """A paired comparison of two methods.

    One side may be without runs, where all of them failed or were never made.
    """

    left: Method
    right: Method
    name: str = ""
    failures: dict[str, str] = field(default_factory=dict)
    reused: list[str] = field(default_factory=list)
    planned_seeds: list[int] = field(default_factory=list)  # asked for, though runs may have failed
    further_seeds: list[int] = field(default_factory=list)  # finished in the folder already, though not asked for
    _cache: dict[tuple[str, str], Row] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def methods(self) -> list[Method]:
        """The sides that have runs, left first."""
        return [method for method in (self.left, self.right) if method.runs]

    @property
    def is_single(self) -> bool:
        return len(self.methods) < 2

    @property
    def compares_arms(self) -> bool:
        """Whether a host stands on the left and the same host with flashback on the right."""
        return (self.left.arm, self.right.arm) == ARMS and self.left.host == self.right.host

    @property
    def host(self) -> str:
        return self.left.host

    @property
    def benchmark(self) -> str:
        return self.left.benchmark

    @property
    def recipe(self) -> str:
        return self.left.recipe

    @property
    def seeds(self) -> list[int]:
        return list(dict.fromkeys([*self.planned_seeds, *sorted({*self.left.runs, *self.right.runs})]))

    @property
    def common_seeds(self) -> list[int]:
        return [seed for seed in self.seeds if seed in self.left.runs and seed in self.right.runs]

    @cached_property
    def metric_names(self) -> list[str]:
        first, *others = [method.metric_names for method in self.methods] or [list(METRICS)]
        return [name for name in first if all(name in other for other in others)]

    @cached_property
    def is_full_length(self) -> bool:
        return all(method.is_full_length for method in self.methods)

    @cached_property
    def changes(self) -> dict[str, Any]:
        return {key: value for method in self.methods for key, value in method.changes.items()}

    @cached_property
    def rows(self) -> list[Row]:
        return [self.row(setting, metric) for setting in SETTINGS for metric in self.metric_names]

    def row(self, setting: str = CLASS_INCREMENTAL, metric: str = "average_accuracy") -> Row:
        """One metric, by the methods' own classifiers."""
        if (setting, metric) not in self._cache:
            samples = [method.sample(metric, setting) for method in (self.left, self.right)]
            self._cache[setting, metric] = Row.of(setting, metric, *samples)
        return self._cache[setting, metric]

    @property
    def cost(self) -> dict[str, Cost]:
        return {HOST: self.left.cost, FLASHBACK: self.right.cost}

    @property
    def equal_budget(self) -> bool | None:
        """Whether both sides took the same steps and images at every seed; None without a common seed."""
        pairs = [[method.runs[seed].record.run for method in self.methods] for seed in self.common_seeds]
        equal = [left[what] == right[what] for left, right in pairs for what in ("steps", "images")]
        return all(equal) if equal else None

    @property
    def budget(self) -> str:
        return {True: "equal budget", False: "unequal budget", None: "budget unknown"}[self.equal_budget]

    @cached_property
    def differing_settings(self) -> list[str]:
        left, right = self.left.flat_settings, self.right.flat_settings
        both = (left.keys() & right.keys()) - {"host.name", "recipe"}
        return sorted(key for key in both if left[key] != right[key])

    @cached_property
    def differing_environment(self) -> list[str]:
        """Devices, versions and code that differ among the runs; the share of a GPU changes only rounding."""
        all_runs = [run.environment for method in self.methods for run in method.runs.values()]
        keys = {key for facts in all_runs for key in differing_keys(all_runs[0], facts, ignored=["portion"])}
        return sorted(keys - ({"code"} if self.left.host != self.right.host else set()))

    @property
    def differing(self) -> list[str]:
        return self.differing_settings + self.differing_environment

    @property
    def flashback(self) -> str:
        if self.right.arm != FLASHBACK:
            return ""
        config = config_from_dict(self.right.config)
        settings, default = config.flashback, FlashbackConfig()
        form = "".join(
            f", {name} {getattr(settings, name)}"
            for name in (item.name for item in fields(settings))
            if name not in IN_WORDS and getattr(settings, name) != getattr(default, name)
        )
        if settings.teacher == "running":
            return f"alpha_p {settings.alpha:g}, a running teacher with decay {settings.decay:g}{form}"
        first, second = settings.split(config.training.epochs)
        return f"alpha_p {settings.alpha:g}, E1 {first} of {first + second} epochs a task{form}"

    def outcome(self, setting: str = CLASS_INCREMENTAL) -> str:
        """The paired test of average accuracy: better, worse, not significant or untested."""
        test = self.row(setting).test
        if test.p is None or test.difference is None:
            return "untested"
        return "not significant" if test.p >= SIGNIFICANT else "better" if test.difference > 0 else "worse"

    def verdict(self, setting: str = CLASS_INCREMENTAL) -> str:
        return verdict(self.row(setting).test, subject="" if self.compares_arms else self.right.name)

    def answer(self, setting: str = CLASS_INCREMENTAL) -> str:
        """The verdict, with the setting, the budget and the settings that differ."""
        if self.is_single:
            return f"Only one method ({self.methods[0].name}) has runs, so there is nothing to compare."
        keys = self.differing_settings if self.compares_arms else self.differing
        remark, title = f", with different {', '.join(keys)}" if keys else "", setting.replace("_", "-")
        return f"Average accuracy, {title}, {self.budget}{remark}: {self.verdict(setting)}"

    @property
    def sentence(self) -> str:
        return f"Average accuracy, class-incremental, {self.budget}: {self.verdict()}"

    def __repr__(self) -> str:
        failed = f" Failed: {', '.join(self.failures)} (see failures)." if self.failures else ""
        return f"{self.host} on {self.benchmark}, {len(self.seeds)} seeds: {self.sentence}{failed}"

    def as_dict(self) -> dict[str, Any]:
        rows = [
            {"setting": row.setting, "metric": row.metric}
            | {key: {HOST: getattr(row.left, key), FLASHBACK: getattr(row.right, key)} for key in SAMPLE_FIELDS}
            | {"test": asdict(row.test)}
            for row in self.rows
        ]
        fields = {name: getattr(self, name) for name in FIELDS}
        return fields | {"rows": rows, "cost": {arm: asdict(cost) for arm, cost in self.cost.items()}}


def compare_methods(left: Method, right: Method) -> Comparison:
    """Compare two methods on their common seeds; differences are right minus left.

    Args:
        left: The method to compare with.
        right: The method that is compared.
    """
    return Comparison(left, right, f"{right.name} against {left.name}")


def pair_arms(methods: Sequence[Method]) -> list[Comparison]:
    """Every host beside the same host with flashback; a method without a counterpart stands alone.

    Whole runs come first, then comparisons with many common seeds.
    """
    groups: dict[str, list[Method]] = {}
    for method in methods:
        groups.setdefault(pair_key(method.any_run), []).append(method)
    pairs = []
    for group in join_published(list(groups.values())):
        host = next((method for method in group if method.arm == HOST), None)
        with_flashback = [method for method in group if method.arm == FLASHBACK]
        for right in with_flashback or [empty_arm(group[0], FLASHBACK)]:
            pairs.append(Comparison(host or empty_arm(right, HOST), right))
    runs = [pair.methods[-1].any_run for pair in pairs]
    changes = [pair.changes for pair in pairs]
    result = [replace(pair, name=name) for pair, name in zip(pairs, run_names(runs, changes, False), strict=True)]
    return sorted(
        result, key=lambda pair: (not pair.is_full_length, -len(pair.common_seeds), pair.benchmark, pair.name)
    )


def empty_arm(method: Method, arm: str) -> Method:
    return Method({**method.config, "flashback": {**method.config["flashback"], "enabled": arm == FLASHBACK}})


def join_published(groups: Sequence[list[Method]]) -> list[list[Method]]:
    """Some recipes may set up the host differently in each arm: join one of each with the same recipe and data."""
    halves: dict[str, list[list[Method]]] = {}
    for group in groups:
        run = group[0].any_run
        has_own_arms = run.recipe in (AS_PUBLISHED, IMPROVED) or is_recipe_file(run.recipe)
        if len({method.arm for method in group}) < len(ARMS) and has_own_arms:
            key = canonical([run.label, run.host, run.recipe, run.code, run.settings["benchmark"], run.data, run.tasks])
            halves.setdefault(key, []).append(group)
    couples = [two for two in halves.values() if len(two) == 2 and two[0][0].arm != two[1][0].arm]
    used = [id(group) for two in couples for group in two]
    return [group for group in groups if id(group) not in used] + [first + second for first, second in couples]
