"""One finished run: its settings, its accuracy matrices and its metrics, checked and computed when it is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from flashback.benchmarks.splits import RUN_SEED
from flashback.errors import FlashbackError, require
from flashback.metrics import summarise
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.recipes import resolved
from flashback.records import RunRecord, dotted
from flashback.records.terms import CLASS_INCREMENTAL, FLASHBACK, HOST, SETTINGS

LARGEST = 1e18  # of any count in a record


class Values(NamedTuple):
    matrix: list[list[float]]
    metrics: dict[str, float | None]


@dataclass(frozen=True)
class Epoch:
    """The mean losses of one epoch and its place in the run."""

    task: int
    stage: str
    number: int
    epochs: int
    losses: dict[str, float]


class ConfigView:
    """What a configuration says, for a run and for a method."""

    config: Mapping[str, Any]

    @property
    def host(self) -> str:
        return str(self.config["host"]["name"])

    @property
    def benchmark(self) -> str:
        return str(self.config["benchmark"]["name"])

    @property
    def recipe(self) -> str:
        return str(self.settings["recipe"])

    @property
    def arm(self) -> str:
        return FLASHBACK if self.config["flashback"]["enabled"] else HOST

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The whole configuration; a setting that a later version added has its default."""
        try:
            return resolved(self.config)
        except FlashbackError:  # of a host or a version that is not installed
            return dict(self.config)

    @cached_property
    def flat_settings(self) -> dict[str, Any]:
        """Settings by dotted key, without seed and checkpoints; those of flashback only where it is on."""
        ignored = {"seed", "checkpoint"} | (set() if self.arm == FLASHBACK else {"flashback"})
        return dotted({key: value for key, value in self.settings.items() if key not in ignored})


@dataclass(frozen=True)
class Run(ConfigView):
    """A finished run.

    Metrics follow from the accuracy matrices, so that records of every version have the same definitions.
    `results` holds them by classifier, the method's own first, then by setting.
    """

    name: str  # the folder, below the one that was searched
    record: RunRecord
    results: dict[str, dict[str, Values]]
    epochs: list[Epoch]
    label: str = ""  # given by the user

    @property
    def path(self) -> Path:
        return self.record.path

    @property
    def config(self) -> Mapping[str, Any]:  # type: ignore[override]
        return self.record.config

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def classifier(self) -> str:
        return next(iter(self.results))

    @property
    def tasks(self) -> int:
        return len(self.matrix())

    def matrix(self, setting: str = CLASS_INCREMENTAL, classifier: str | None = None) -> list[list[float]]:
        """Accuracy in percent on task j after task k, as `matrix[k][j]`; row k has k + 1 values."""
        return self.results[classifier or self.classifier][setting].matrix

    def metrics(self, setting: str = CLASS_INCREMENTAL, classifier: str | None = None) -> dict[str, float | None]:
        """All metrics of one setting by their keys in results.json; None where one is undefined."""
        return self.results[classifier or self.classifier][setting].metrics

    def metric(
        self, name: str = "average_accuracy", setting: str = CLASS_INCREMENTAL, classifier: str | None = None
    ) -> float | None:
        return self.metrics(setting, classifier)[name]

    def confusion(self, classifier: str | None = None) -> list[list[int]] | None:
        """Counts after the last task, `[true class][predicted class]`; None in records without them."""
        listed = mapping(self.record.results.get("classifiers"))
        counts = mapping(listed.get(classifier or self.classifier)).get("confusion")
        return counts if is_confusion(counts) else None

    @property
    def class_names(self) -> list[str]:
        """The classes in the order in which they were learned, numbered where the record has no names."""
        names, order = mapping(self.record.run.get("data")).get("class_names"), self.record.run.get("class_order")
        if isinstance(names, list):
            return [str(name) for name in names]
        return [f"class {label}" for label in order] if isinstance(order, list) else []

    @cached_property
    def metric_names(self) -> list[str]:
        """The metrics worth showing: averages over images only where tasks differ in size."""
        run = self.record.run
        sizes = mapping(run.get("data")).get("test_images", run.get("task_sizes"))
        unequal = isinstance(sizes, list) and any(size != sizes[0] for size in sizes)
        return [*METRICS, *OVER_IMAGES] if unequal else list(METRICS)

    @property
    def data(self) -> dict[str, Any]:
        """The images and the class order; an order drawn by seed counts as the same for all seeds."""
        is_random = self.settings["benchmark"].get("order") == RUN_SEED
        order = RUN_SEED if is_random else self.record.run.get("class_order")
        return {"data_checksum": self.record.run.get("data_checksum"), "class_order": order}

    @property
    def protocol(self) -> dict[str, Any]:
        """The tasks and images. Methods can be ranked only where all of it is equal."""
        return {**self.settings["benchmark"], **self.data}

    @property
    def environment(self) -> dict[str, Any]:
        return self.record.run.get("must_match") or {}

    @property
    def code(self) -> str | None:
        """The digest of the user's files that define the host or net; None if both are in the package."""
        code = self.environment.get("code")
        return None if code is None else str(code)


def check_record(record: RunRecord) -> dict[str, dict[str, Values]]:
    """Refuse a record that is not complete; return its metrics by classifier and setting."""
    config, run = record.config, record.run
    for section, key, kind in (("host", "name", str), ("benchmark", "name", str), ("flashback", "enabled", bool)):
        require(type(mapping(config.get(section)).get(key)) is kind, f"config.yaml has no {section}.{key}")
    require(type(config.get("seed")) is int, "config.yaml has no seed")
    require(isinstance(config.get("recipe"), str), "config.yaml has no recipe")
    for quantity in ("steps", "images", "seconds"):
        require(is_number(run.get(quantity), LARGEST), f"run.json does not hold the {quantity} of the run")
    sizes = run.get("knowledge_bytes")
    complete = isinstance(sizes, dict) and all(is_number(size, LARGEST) for size in sizes.values())
    require(complete, "run.json does not hold the bytes of knowledge of the run")
    require(isinstance(run.get("must_match", {}), dict), "run.json does not hold a mapping under must_match")
    name, listed = str(record.results.get("classifier", "")), mapping(record.results.get("classifiers"))
    others = {str(key): measure(values) for key, values in listed.items() if key != name}
    return {name: measure(record.results)} | others


def measure(results: Any) -> dict[str, Values]:
    require(isinstance(results, dict), "results.json holds no settings")
    return {setting: measure_setting(setting, results.get(setting)) for setting in SETTINGS}


def measure_setting(setting: str, values: Any) -> Values:
    """The only place where metrics of a record are computed."""
    require(isinstance(values, dict), f"results.json has no {setting} results")
    matrix = lower_triangle(values.get("matrix"), setting)
    starts = {name: percentages(values.get(name), f"{setting} {name}") for name in ("zero_shot", "untrained")}
    # The number of test images is not always recorded, so averages over images are taken from the record.
    over_images = {name: values[name] if is_number(values.get(name), 100) else None for name in OVER_IMAGES}
    metrics = {**summarise(matrix, [1] * len(matrix), **starts), **over_images}
    # A metric that was undefined for the run stays so: joint training has no history.
    return Values(matrix, {name: None if values.get(name, 0) is None else metrics[name] for name in metrics})


def lower_triangle(matrix: Any, setting: str) -> list[list[float]]:
    nested = isinstance(matrix, list) and len(matrix) > 0 and all(isinstance(row, list) for row in matrix)
    require(nested, f"results.json has no {setting} matrix")
    rows: list[list[float]] = [row[: k + 1] for k, row in enumerate(matrix)]
    complete = all(len(row) == k + 1 and all(is_number(value, 100) for value in row) for k, row in enumerate(rows))
    require(complete, f"the {setting} matrix of results.json is not a triangle of percentages")
    return rows


def percentages(values: Any, what: str) -> list[float | None] | None:
    right = isinstance(values, list) and all(value is None or is_number(value, 100) for value in values)
    require(values is None or right, f"{what} of results.json is not a list of percentages")
    return values  # type: ignore[no-any-return]


def is_confusion(counts: Any) -> bool:
    return isinstance(counts, list) and all(
        isinstance(row, list) and len(row) == len(counts) and all(is_number(count, LARGEST) for count in row)
        for row in counts
    )


def mapping(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def is_number(value: Any, most: float) -> bool:
    """Whether this is a number from 0 to `most`: no NaN, no infinity, no bool."""
    return type(value) in (int, float) and 0 <= value <= most
