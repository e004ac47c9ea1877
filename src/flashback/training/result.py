"""What a run measures, and the result that follows from it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from flashback.benchmarks import Benchmark
from flashback.benchmarks.from_record import DATA
from flashback.errors import FlashbackError
from flashback.metrics import class_accuracies, summarise
from flashback.metrics.accuracy import without_history
from flashback.records import RunRecord
from flashback.records.terms import SETTINGS
from flashback.training.evaluation import Accuracies, Confusion


@dataclass
class History:
    """What a run has measured so far; plain values that JSON can hold."""

    matrices: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)  # classifier, setting, rows
    zero_shot: dict[str, Accuracies] = field(default_factory=dict)  # tasks 1, 2, ... just before each is learned
    untrained: dict[str, Accuracies] = field(default_factory=dict)  # tasks 0, 1, 2, ... before any training
    budget: list[dict[str, Any]] = field(default_factory=list)  # one entry per stage: steps and images
    bytes: dict[str, int] = field(default_factory=dict)  # of stable and plastic knowledge, the maximum
    seconds: float = 0.0  # in total
    training_seconds: float = 0.0  # in training steps, without captures and compilations
    confusion: dict[str, Confusion] = field(default_factory=dict)  # classifier; filled after the last task

    def add_row(self, row: dict[str, Accuracies]) -> None:
        for classifier, accuracies in row.items():
            matrices = self.matrices.setdefault(classifier, {setting: [] for setting in SETTINGS})
            for setting in SETTINGS:
                matrices[setting].append(accuracies[setting])

    def add_zero_shot(self, accuracies: dict[str, Accuracies]) -> None:
        for classifier, values in accuracies.items():
            row = self.zero_shot.setdefault(classifier, {setting: [] for setting in SETTINGS})
            for setting in SETTINGS:
                row[setting] += values[setting]

    @property
    def steps(self) -> int:
        return sum(entry["steps"] for entry in self.budget)

    def cost(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "images": sum(entry["images"] for entry in self.budget),
            "budget": self.budget,
            "knowledge_bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "training_seconds": round(self.training_seconds, 3),
        }


class TrainingResult:
    """The result of a run: accuracy matrices, metrics and confusion counts.

    `result["class_incremental"]` and `result["task_incremental"]` are dictionaries of metrics by the method's own
    classifier; `result.classifiers` has them for every classifier of the host.

    Attributes:
        classifiers: Metrics by classifier and setting; the method's own classifier comes first.
        history: What the run spent: steps and images of every stage, bytes of knowledge, seconds.
        class_names: The names of the classes in learning order.
    """

    def __init__(
        self, history: History, classifiers: dict[str, dict[str, Any]], class_names: Sequence[str] = ()
    ) -> None:
        self.history, self.classifiers, self.class_names = history, classifiers, tuple(class_names)

    @classmethod
    def from_history(cls, history: History, benchmark: Benchmark, task_by_task: bool = True) -> Self:
        sizes = [len(task.test) for task in benchmark.tasks]

        def measures(classifier: str, setting: str) -> dict[str, Any]:
            matrix = history.matrices[classifier][setting]
            zero_shot = history.zero_shot.get(classifier, {}).get(setting)
            untrained = history.untrained.get(classifier, {}).get(setting)
            metrics = summarise(matrix, sizes, zero_shot, untrained)
            metrics = metrics if task_by_task else without_history(metrics)
            return {"matrix": matrix, "zero_shot": zero_shot, "untrained": untrained, **metrics}

        classifiers: dict[str, dict[str, Any]] = {
            name: {setting: measures(name, setting) for setting in SETTINGS} for name in history.matrices
        }
        for name, confusion in history.confusion.items():
            classifiers[name]["confusion"] = confusion
        return cls(history, classifiers, benchmark.class_names)

    @classmethod
    def from_record(cls, record: RunRecord) -> Self:
        """Read the result of a finished run from its record; nothing is computed again."""
        try:
            first, classifiers = record.results["classifier"], record.results["classifiers"]
            names = ("budget", "knowledge_bytes", "seconds", "training_seconds")
            history = History({}, {}, {}, *(record.run[name] for name in names))
            classifiers = {first: classifiers[first], **classifiers}
            return cls(history, classifiers, record.run.get(DATA, {}).get("class_names", ()))
        except (AttributeError, KeyError, TypeError, ValueError):
            raise FlashbackError(f"the record in {record.path} is incomplete; remove the folder to run again") from None

    def as_dict(self) -> dict[str, Any]:
        """The contents of results.json: the method's own classifier first, then all of them by name."""
        name, values = next(iter(self.classifiers.items()))
        return {
            **{setting: values[setting] for setting in SETTINGS},
            "classifier": name,
            "classifiers": self.classifiers,
        }

    def __repr__(self) -> str:
        accuracies = (f"{setting} {self[setting]['average_accuracy']:.2f} %" for setting in SETTINGS)
        return f"TrainingResult(average accuracy: {', '.join(accuracies)}; {next(iter(self.classifiers))} classifier)"

    def __getitem__(self, setting: str) -> dict[str, Any]:
        if setting not in SETTINGS:
            raise FlashbackError(
                f"a result has {' and '.join(SETTINGS)}, not {setting!r}; other classifiers are in result.classifiers"
            )
        values: dict[str, Any] = next(iter(self.classifiers.values()))[setting]
        return values

    @property
    def steps(self) -> int:
        """The number of training steps of all tasks."""
        return self.history.steps

    @property
    def confusion(self) -> Confusion:
        """Counts of test images after the last task, class-incremental: `confusion[true][predicted]` by column."""
        confusion: Confusion | None = next(iter(self.classifiers.values())).get("confusion")
        if confusion is None:
            raise FlashbackError("this run was recorded without a confusion matrix; run it again to get one")
        return confusion

    @property
    def class_accuracies(self) -> dict[str, float | None]:
        """Percent correct of each class after the last task, class-incremental; None for one without test images."""
        names = distinct_names(self.class_names, len(self.confusion))
        return dict(zip(names, class_accuracies(self.confusion), strict=True))


def distinct_names(names: Sequence[str], count: int) -> list[str]:
    """The names of the first columns; one that several classes share gets its column."""
    names = [names[k] if k < len(names) else f"class {k}" for k in range(count)]
    shared = {name for name, times in Counter(names).items() if times > 1}
    return [f"{name} (column {k})" if name in shared else name for k, name in enumerate(names)]
