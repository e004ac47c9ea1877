"""Runs as rows for one's own analysis: plain dictionaries, as pandas.DataFrame takes them, and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flashback.metrics import class_accuracies
from flashback.records.terms import ARMS, SETTINGS
from flashback.reports.report import Report
from flashback.results import Comparison, Row, Run, Sample
from flashback.results.naming import value_in_words, varying_keys

ABOUT = ("method", "folder", "host", "benchmark", "recipe", "arm", "seed")
NAMED = {"host.name", "benchmark.name", "recipe", "flashback.enabled"}  # have columns of their own


def run_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, setting and classifier, with all metrics and the settings that differ among the runs."""
    varying = varying_settings(report.runs)
    return [
        {**about, **settings_in(run, varying), **run.metrics(about["setting"], about["classifier"])}
        for run, about in _evaluations(report)
    ]


def accuracy_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, setting, classifier and cell of the accuracy matrix; tasks are counted from 1."""
    varying = varying_settings(report.runs)
    return [
        {**about, "after_task": k + 1, "task": j + 1, "accuracy": accuracy, **settings_in(run, varying)}
        for run, about in _evaluations(report)
        for k, row in enumerate(run.matrix(about["setting"], about["classifier"]))
        for j, accuracy in enumerate(row)
    ]


def class_rows(report: Report) -> list[dict[str, Any]]:
    """One row per run, classifier and class with its accuracy after the last task, where the records have it."""
    rows = []
    for method in report.methods:
        for run in method.runs.values():
            for classifier in run.results:
                counts = run.confusion(classifier) or []
                accuracies = class_accuracies(counts) if counts else []
                for name, row, accuracy in zip(run.class_names, counts, accuracies, strict=False):
                    about = {**_about(method.name, run), "classifier": classifier}
                    rows.append({**about, "class": name, "images": sum(row), "accuracy": accuracy})
    return rows


def _evaluations(report: Report) -> Iterator[tuple[Run, dict[str, Any]]]:
    for method in report.methods:
        for run in method.runs.values():
            for setting in SETTINGS:
                for classifier in run.results:
                    yield run, {**_about(method.name, run), "setting": setting, "classifier": classifier}


def _about(method: str, run: Run) -> dict[str, Any]:
    return dict(zip(ABOUT, (method, run.name, run.host, run.benchmark, run.recipe, run.arm, run.seed), strict=True))


def varying_settings(runs: Iterable[Run]) -> list[str]:
    """The dotted keys of settings that have several values among the runs."""
    return [key for key in varying_keys([run.flat_settings for run in runs]) if key not in NAMED]


def settings_in(run: Run, keys: Iterable[str]) -> dict[str, Any]:
    """None where a run has no such setting, as those of flashback where it is off; lists as text."""
    settings = run.flat_settings
    return {
        key: value_in_words(value) if isinstance(value := settings.get(key), list | dict) else value for key in keys
    }


# ---------------------------------------------------------------- CSV


def csv_of_comparisons(report: Report) -> str:
    """One line per comparison, setting and metric, in full precision."""
    varying = varying_settings(report.runs)
    rows = ((pairing, row) for pairing in report.pairings for row in pairing.rows)
    return csv_text([_comparison_row(report, pairing, row, varying) for pairing, row in rows])


def _comparison_row(report: Report, pairing: Comparison, row: Row, varying: Sequence[str]) -> dict[str, Any]:
    beside = [one for other, one in report.references_beside if other is pairing]
    references = [one for one in beside if (one.setting, one.metric) == (row.setting, row.metric)]
    about = {name: getattr(pairing, name) for name in ("host", "benchmark", "recipe")}
    published = {
        f"{arm}_published": "; ".join(str(one.value[arm]) for one in references if arm in one.value) for arm in ARMS
    }
    return (
        {"method": pairing.name, **about, "setting": row.setting, "metric": row.metric}
        | _sample_columns(host=row.left, flashback=row.right)
        | {name: getattr(row.test, name) for name in ("difference", "low", "high", "t", "p", "pairs")}
        | {"budget": pairing.budget, **published, "published_in": "; ".join(one.where for one in references)}
        | settings_in(pairing.methods[-1].any_run, varying)
    )


def _sample_columns(**samples: Sample) -> dict[str, Any]:
    return {
        f"{side}_{name}": value
        for side, sample in samples.items()
        for name, value in (("mean", sample.mean), ("deviation", sample.deviation), ("seeds", len(sample)))
    }


def csv_of_runs(report: Report) -> str:
    """One line per run, setting, classifier and metric. Runs of a host stand under every comparison they are in."""
    varying = varying_settings(report.runs)
    return csv_text(
        [
            {
                **_about(pairing.name, run),
                "setting": setting,
                "classifier": classifier,
                "metric": metric,
                "value": value,
                **settings_in(run, varying),
            }
            for pairing in report.pairings
            for method in pairing.methods
            for run in method.runs.values()
            for setting in SETTINGS
            for classifier in run.results
            for metric, value in run.metrics(setting, classifier).items()
        ]
    )


def csv_of_tasks(report: Report) -> str:
    return csv_text(accuracy_rows(report))


def csv_of_classes(report: Report) -> str:
    return csv_text(class_rows(report))


def csv_of_tests(report: Report) -> str:
    """One line per method, setting and metric: its test against the baseline."""
    rows = []
    for setting in SETTINGS:
        for test, row, adjusted in report.tested(setting, report.metrics):
            names = {"method": test.right.name, "against": test.left.name, "benchmark": test.benchmark}
            rows.append(
                {**names, "setting": setting, "metric": row.metric}
                | _sample_columns(against=row.left, method=row.right)
                | {name: getattr(row.test, name) for name in ("difference", "low", "high", "t", "p")}
                | {"p_adjusted": adjusted, "pairs": row.test.pairs}
                | {"differing": "; ".join(test.differing)}
            )
    return csv_text(rows)


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if rows:
        writer.writerow(rows[0])
    writer.writerows([_no_formula(value) for value in row.values()] for row in rows)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    """Spreadsheets take text that starts like a formula for one."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
