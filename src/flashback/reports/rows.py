"""Runs as rows for an analysis of one's own: plain dictionaries, as pandas.DataFrame takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from flashback.records import RunRecord
from flashback.records.terms import SETTINGS
from flashback.reports.departures import flat_settings
from flashback.reports.pairings import Pairing, Report
from flashback.reports.reading import Run
from flashback.reports.words import written

ABOUT = ("method", "folder", "host", "benchmark", "recipe", "arm", "seed")
TASK_COLUMNS = (*ABOUT, "setting", "classifier", "after_task", "task", "accuracy")
TOLD = {"host.name", "benchmark.name", "recipe", "flashback.enabled"}  # have columns of their own


def run_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, setting and classifier, with all metrics and every setting that differs among the runs."""
    varying = varying_settings(report.runs)
    return [
        {**about, **settings_in(run, varying), **metrics_in(record, about["setting"])}
        for run, about, record in measured(report)
    ]


def accuracy_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, setting, classifier and cell of the accuracy matrix, tasks counted from 1."""
    varying = varying_settings(report.runs)
    return [
        {**about, "after_task": k + 1, "task": j + 1, "accuracy": accuracy, **settings_in(run, varying)}
        for run, about, record in measured(report)
        for k, row in enumerate(record.results[about["setting"]]["matrix"])
        for j, accuracy in enumerate(row)
    ]


def measured(report: Report) -> Iterator[tuple[Run, dict[str, Any], RunRecord]]:
    """Every run once, by each of its classifiers in both settings."""
    for method in report.methods:
        for run in method.runs.values():
            for setting in SETTINGS:
                for classifier, record in by_classifier(run).items():
                    yield run, {**about_run(method, run), "setting": setting, "classifier": classifier}, record


def about_run(method: Pairing, run: Run) -> dict[str, Any]:
    return dict(
        zip(ABOUT, (method.name, run.name, run.host, run.benchmark, run.recipe, run.arm, run.seed), strict=True)
    )


def by_classifier(run: Run) -> dict[str, RunRecord]:
    return {run.classifier: run.record, **run.others}


def metrics_in(record: RunRecord, setting: str) -> dict[str, float | None]:
    return {name: value for name, value in record.results[setting].items() if name != "matrix"}


def varying_settings(runs: Iterable[Run]) -> list[str]:
    """The dotted keys of settings that have several values among the runs that have them."""
    values: dict[str, set[str]] = {}
    for run in runs:
        for key, value in flat_settings(run).items():
            values.setdefault(key, set()).add(written(value))
    return [key for key, own in values.items() if len(own) > 1 and key not in TOLD]


def settings_in(run: Run, keys: Iterable[str]) -> dict[str, Any]:
    """None where a run has no such setting, as those of flashback where it is off; lists as text."""
    own = flat_settings(run)
    return {key: written(own[key]) if isinstance(own.get(key), (list, dict)) else own.get(key) for key in keys}
