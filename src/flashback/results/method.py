"""A method: the runs of one configuration, which differ only in the seed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from flashback.metrics.statistics import deviation, mean, number
from flashback.records.terms import CLASS_INCREMENTAL, FLASHBACK
from flashback.results.naming import changed_settings, run_names, shortens_run
from flashback.results.run import ConfigView, Run

NOT_SETTINGS = ("seed", "flashback", "checkpoint")  # may differ between the runs that are compared


@dataclass(frozen=True)
class Sample:
    """Values of one metric by seed, with mean and sample deviation."""

    values: dict[int, float | None]
    mean: float | None = None
    deviation: float | None = None

    @classmethod
    def of(cls, values: dict[int, float | None]) -> Sample:
        """Mean and deviation are None where some seeds have no value: a mean over the others would be biased."""
        known = [value for value in values.values() if value is not None]
        return cls(values, mean(known), deviation(known)) if len(known) == len(values) else cls(values)

    @property
    def missing(self) -> list[int]:
        """The seeds without a value where others have one."""
        return [seed for seed, value in self.values.items() if value is None] if len(self) else []

    def __len__(self) -> int:
        return sum(value is not None for value in self.values.values())

    def __str__(self) -> str:
        return number(self.mean) + ("" if self.deviation is None else f" ± {number(self.deviation)}")


@dataclass(frozen=True)
class Cost:
    """What a run took: means over seeds, and the maximum bytes of each kind of knowledge."""

    steps: float | None
    images: float | None
    seconds: float | None
    bytes: dict[str, int]

    @property
    def amounts(self) -> dict[str, float | None]:
        stable, plastic = self.bytes.get("stable"), self.bytes.get("plastic")
        titles = ("optimiser steps", "images", "seconds", "stable bytes", "plastic bytes")
        return dict(zip(titles, (self.steps, self.images, self.seconds, stable, plastic), strict=True))


@dataclass(frozen=True)
class Method(ConfigView):
    """Runs of one configuration by seed; there may be none where all have failed."""

    config: Mapping[str, Any]
    runs: dict[int, Run] = field(default_factory=dict)
    name: str = ""

    @property
    def any_run(self) -> Run:
        return next(iter(self.runs.values()))

    @property
    def seeds(self) -> list[int]:
        return list(self.runs)

    @property
    def tasks(self) -> int:
        return self.any_run.tasks

    @property
    def metric_names(self) -> list[str]:
        return self.any_run.metric_names

    def sample(
        self, metric: str = "average_accuracy", setting: str = CLASS_INCREMENTAL, classifier: str | None = None
    ) -> Sample:
        return Sample.of({seed: run.metric(metric, setting, classifier) for seed, run in self.runs.items()})

    @property
    def cost(self) -> Cost:
        records = [run.record.run for run in self.runs.values()]
        largest: dict[str, int] = {}
        for record in records:
            for kind, size in record["knowledge_bytes"].items():
                largest[kind] = max(size, largest.get(kind, 0))
        steps, images, seconds = (mean([record[name] for record in records]) for name in ("steps", "images", "seconds"))
        return Cost(steps, images, seconds, largest)

    @cached_property
    def changes(self) -> dict[str, Any]:
        return {key: value for run in self.runs.values() for key, value in changed_settings(run).items()}

    @property
    def is_full_length(self) -> bool:
        """Whether it was trained on all tasks and training images, with the epochs of its recipe."""
        return not any(map(shortens_run, self.changes))

    @property
    def is_bound(self) -> bool:
        """Whether it learned all tasks at once, so that it is an upper bound and no competitor."""
        return self.sample("average_incremental_accuracy").mean is None

    @cached_property
    def protocol(self) -> str:
        return canonical({key: value for key, value in self.any_run.protocol.items() if value is not None})


def group_methods(runs: Iterable[Run]) -> list[Method]:
    """Group runs of one label that differ only in the seed, and name each method by what distinguishes it.

    Args:
        runs: Finished runs.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(method_key(run), []).append(run)
    by_seed = [sorted(group, key=lambda run: run.seed) for group in groups.values()]
    methods = [Method(group[0].config, {run.seed: run for run in group}) for group in by_seed]
    names = run_names([method.any_run for method in methods], [method.changes for method in methods])
    return [replace(method, name=name) for method, name in zip(methods, names, strict=True)]


def method_key(run: Run) -> str:
    """Equal for runs of one label that differ only in the seed."""
    return canonical([run.arm, pair_key(run), run.settings["flashback"] if run.arm == FLASHBACK else None])


def pair_key(run: Run) -> str:
    """Equal for runs of one label that also differ in the arm and the settings of flashback."""
    return canonical([run.label, run.code, *setup(run)])


def setup(run: Run) -> list[Any]:
    """Settings, data and tasks, whatever the code."""
    return [{key: value for key, value in run.settings.items() if key not in NOT_SETTINGS}, run.data, run.tasks]


def canonical(value: Any) -> str:
    return json.dumps(_plain_keys(value), sort_keys=True, default=str)


def _plain_keys(value: Any) -> Any:
    """YAML allows keys that JSON cannot sort."""
    if isinstance(value, Mapping):
        return {str(key): _plain_keys(item) for key, item in value.items()}
    return [_plain_keys(item) for item in value] if isinstance(value, list) else value
