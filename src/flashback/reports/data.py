"""Runs as rows for one's own analysis: plain dictionaries, as pandas.DataFrame takes them."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from flashback.metrics import class_accuracies
from flashback.records.terms import ARMS, SETTINGS
from flashback.reports.report import Report
from flashback.results import Comparison, Row, Run
from flashback.results.naming import value_in_words, varying_keys

ABOUT = ("host", "benchmark", "recipe", "arm", "seed")
NAMED = {"host.name", "benchmark.name", "recipe", "flashback.enabled"}  # have columns of their own


def run_rows(report: Report) -> list[dict[str, Any]]:
    """Return a row per run, setting and classifier, with all metrics and the settings that differ among the runs.

    Args:
        report: What `read_report` returned.
    """
    return [about | settings | run.metrics(*which) for run, about, which, settings in _evaluations(report)]


def metric_rows(report: Report) -> list[dict[str, Any]]:
    return [
        {**about, "metric": metric, "value": value, **settings}
        for run, about, which, settings in _evaluations(report)
        for metric, value in run.metrics(*which).items()
    ]


def accuracy_rows(report: Report) -> list[dict[str, Any]]:
    """Return a row per run, setting, classifier and cell of the accuracy matrix; tasks are counted from 1.

    Args:
        report: What `read_report` returned.
    """
    return [
        {**about, "after_task": k + 1, "task": j + 1, "accuracy": accuracy, **settings}
        for run, about, which, settings in _evaluations(report)
        for k, row in enumerate(run.matrix(*which))
        for j, accuracy in enumerate(row)
    ]


def class_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, classifier and class with its accuracy after the last task, where the records have it."""
    rows = []
    for run, about, (setting, classifier), _ in _evaluations(report):
        counts = run.confusion(classifier)
        if counts and setting == SETTINGS[0]:
            del about["setting"]
            for name, row, accuracy in zip(run.class_names, counts, class_accuracies(counts), strict=False):
                rows.append({**about, "class": name, "images": sum(row), "accuracy": accuracy})
    return rows


def _evaluations(report: Report) -> Iterator[tuple[Run, dict[str, Any], tuple[str, str], dict[str, Any]]]:
    """A run, what identifies it, the setting and classifier, and its settings that differ among all runs."""
    varying = varying_settings(report.runs)
    for method in report.methods:
        for run in method.runs.values():
            about = {"method": method.name, "folder": run.name} | {name: getattr(run, name) for name in ABOUT}
            for setting, classifier in product(SETTINGS, run.results):
                which = {"setting": setting, "classifier": classifier}
                yield run, about | which, (setting, classifier), settings_in(run, varying)


def varying_settings(runs: Iterable[Run]) -> list[str]:
    return [key for key in varying_keys([run.flat_settings for run in runs]) if key not in NAMED]


def settings_in(run: Run, keys: Iterable[str]) -> dict[str, Any]:
    """None where a run has no such setting, as those of flashback where it is off; lists as text."""
    values = {key: run.flat_settings.get(key) for key in keys}
    return {key: value_in_words(value) if isinstance(value, list | dict) else value for key, value in values.items()}


def settings_of_arms(pairing: Comparison, keys: Iterable[str]) -> dict[str, Any]:
    """Settings of a comparison; both values, host / flashback, where the arms differ."""
    left, right = (settings_in(method.any_run, keys) for method in (pairing.methods[0], pairing.methods[-1]))
    differing = set(pairing.differing_settings)
    return {
        key: f"{value_in_words(left[key])} / {value_in_words(value)}" if key in differing else value
        for key, value in right.items()
    }


def comparison_rows(report: Report) -> list[dict[str, Any]]:
    varying, rows = varying_settings(report.runs), []
    for pairing in report.pairings:
        about = {"method": pairing.name} | {name: getattr(pairing, name) for name in ("host", "benchmark", "recipe")}
        settings = settings_of_arms(pairing, varying)
        beside = [reference for other, reference in report.references_beside if other is pairing]
        for row in pairing.rows:
            references = [cell for cell in beside if (cell.setting, cell.metric) == (row.setting, row.metric)]
            values = {arm: [cell.value[arm] for cell in references if arm in cell.value] for arm in ARMS}
            published: dict[str, Any] = {
                f"{arm}_published": some[0] if len(some) == 1 else "; ".join(map(str, some))
                for arm, some in values.items()
            }
            published["published_in"] = "; ".join(cell.where for cell in references)
            rows.append(about | _numbers(row, *ARMS) | {"budget": pairing.budget} | published | settings)
    return rows


def against_rows(report: Report) -> list[dict[str, Any]]:
    return [
        {"method": test.right.name, "against": test.left.name, "benchmark": test.benchmark}
        | _numbers(row, "against", "method")
        | {"p_adjusted": adjusted, "differing": "; ".join(test.differing)}
        for setting in SETTINGS
        for test, row, adjusted in report.baseline_rows(setting, report.metrics)
    ]


def _numbers(row: Row, left: str, right: str) -> dict[str, Any]:
    numbers: dict[str, Any] = {"setting": row.setting, "metric": row.metric}
    for side, sample in ((left, row.left), (right, row.right)):
        numbers |= {f"{side}_mean": sample.mean, f"{side}_deviation": sample.deviation, f"{side}_seeds": len(sample)}
    return numbers | {name: getattr(row.test, name) for name in ("difference", "low", "high", "t", "p", "pairs")}
