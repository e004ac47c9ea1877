"""What trackers promise, in memory: which runs they have, and what was told to each."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

Curves = dict[str, list[tuple[int, float]]]  # by name: steps and values, in the order in which they came


class FakeWandb:
    """A server. A step below the last one is dropped, and so is one that it had before the run was resumed."""

    def __init__(self) -> None:
        self.runs: dict[str, FakeRun] = {}
        self.asked: list[dict[str, Any]] = []

    def init(self, **options: Any) -> FakeRun:
        assert options["resume"] == "allow"
        self.asked.append(options)
        name = options["id"] or f"run{len(self.runs)}"
        run = self.runs.setdefault(name, FakeRun(name))
        run.starting_step = 1 + max(run.rows, default=-1)
        return run


class FakeRun:
    def __init__(self, name: str) -> None:
        self.id, self.starting_step = name, 0
        self.rows: dict[int, dict[str, float]] = {}
        self.finished, self.step_metrics = 0, dict[str, str]()

    def define_metric(self, name: str, step_metric: str) -> None:
        self.step_metrics[name] = step_metric

    def log(self, values: dict[str, float], step: int) -> None:
        if step >= max(self.starting_step, *self.rows, 0):
            self.rows.setdefault(step, {}).update(values)

    def finish(self) -> None:
        self.finished += 1

    def curves(self) -> Curves:
        result: Curves = defaultdict(list)
        for row in self.rows.values():
            for name in row.keys() - {"steps"}:
                result[name].append((int(row["steps"]), row[name]))
        return dict(result)


class FakeMlflow:
    """A server. It takes every value it gets, and no parameter twice that has changed."""

    class MlflowException(Exception):  # noqa: N818 - its name
        pass

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.address = ""
        self.parameters: dict[str, dict[str, Any]] = {}
        self.metrics: dict[str, Curves] = {}
        self.active = ""

    def is_tracking_uri_set(self) -> bool:
        return bool(self.address)

    def set_tracking_uri(self, uri: str) -> None:
        self.calls.append(("set_tracking_uri", (uri,)))
        self.address = uri

    def set_experiment(self, name: str) -> None:
        self.calls.append(("set_experiment", (name,)))

    def start_run(self, run_id: str | None = None, run_name: str | None = None) -> Any:
        self.calls.append(("start_run", (run_id, run_name)))
        if run_id is not None and run_id not in self.metrics:
            raise self.MlflowException(run_id)
        self.active = run_id or f"run{len(self.metrics)}"
        known = self.metrics.setdefault(self.active, defaultdict(list))
        latest = {name: values[-1][1] for name, values in known.items()}
        return SimpleNamespace(info=SimpleNamespace(run_id=self.active), data=SimpleNamespace(metrics=latest))

    def end_run(self) -> None:
        self.calls.append(("end_run", ()))

    def log_params(self, values: dict[str, Any]) -> None:
        known = self.parameters.setdefault(self.active, {})
        if any(known.get(name, value) != value for name, value in values.items()):
            raise self.MlflowException("a parameter has changed")
        known |= values

    def log_metrics(self, values: dict[str, float], step: int, timestamp: int) -> None:
        assert timestamp > 1e12  # milliseconds
        for name, value in values.items():
            self.metrics[self.active][name].append((step, value))

    def MlflowClient(self) -> FakeMlflow:  # noqa: N802 - its name
        return self

    def get_metric_history(self, run_id: str, name: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(step=step) for step, _ in self.metrics[run_id][name]]
