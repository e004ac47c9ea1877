"""The words of a report: titles of metrics, arms and settings, and remarks about seeds."""

from collections.abc import Collection, Mapping

from flashback.errors import unknown
from flashback.metrics.accuracy import METRICS, OVER_IMAGES
from flashback.records.terms import FLASHBACK, HOST
from flashback.results import Comparison

HIGHER_IS_BETTER = METRICS | OVER_IMAGES
TITLES = {  # short and long
    "average_accuracy": ("AA", "average accuracy"),
    "average_incremental_accuracy": ("AIA", "average incremental accuracy"),
    "forgetting": ("F", "forgetting"),
    "backward_transfer": ("BWT", "backward transfer"),
    "forward_transfer": ("FWT", "forward transfer"),
    "stability_plasticity_ratio": ("SPR", "stability-plasticity ratio"),
    "new_task_accuracy": ("NTA", "new-task accuracy, last task"),
    "mean_new_task_accuracy": ("mean NTA", "new-task accuracy, mean over tasks"),
    "average_incremental_accuracy_images": ("AIA, images", "average incremental accuracy over test images"),
    "last_accuracy_images": ("LA, images", "last accuracy over test images"),
}
ARM_TITLES = {HOST: "host", FLASHBACK: "with flashback"}
SETTING_TITLES = {"class_incremental": "class-incremental", "task_incremental": "task-incremental"}


def heading(metric: str) -> str:
    return f"{TITLES[metric][0]} {'↑' if HIGHER_IS_BETTER[metric] else '↓'}"


def plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def parse_metric(name: str) -> str:
    """A metric by its short title, in any case, or by its key in results.json."""
    short = {title.lower(): metric for metric, (title, _) in TITLES.items()}
    metric = name.strip() if name.strip() in TITLES else short.get(name.strip().lower())
    if metric is None:
        raise unknown("metric", name.strip(), [key if "," in title else title for key, (title, _) in TITLES.items()])
    return metric


def direction(metric: str, difference: float | None) -> str:
    """better, worse, or empty for a difference that is written as 0.00."""
    if difference is None or round(difference, 2) == 0:
        return ""
    return "better" if (difference > 0) == HIGHER_IS_BETTER[metric] else "worse"


def unmatched_seeds(comparison: Comparison) -> str:
    """Name the seeds that count for a mean but not for the difference; empty where both arms have the same."""
    left, right = comparison.left.runs.keys(), comparison.right.runs.keys()
    alone = {} if comparison.is_single else {HOST: left - right, FLASHBACK: right - left}
    words = seeds_in_words(alone)
    return f"Seeds of only one arm ({words}) count for its mean, not for the difference and its test." if words else ""


def seeds_without_value(comparison: Comparison, metrics: Collection[str] = TITLES) -> list[str]:
    """Name the metrics that some seeds of an arm have and others do not, such as SPR with negative forgetting."""
    remarks = []
    for row in (row for row in comparison.rows if row.metric in metrics):
        samples = {HOST: row.left, FLASHBACK: row.right}
        words = seeds_in_words({arm: sample.missing for arm, sample in samples.items()})
        if words:
            remarks.append(
                f"{TITLES[row.metric][0]}, {SETTING_TITLES[row.setting]}, is undefined for some seeds ({words}), so it "
                "has no mean and no test: a mean over the other seeds would be biased."
            )
    return remarks


def seeds_in_words(seeds: Mapping[str, Collection[int]]) -> str:
    """Seeds by arm, such as "host: seeds 1, 2"."""
    return "; ".join(
        f"{ARM_TITLES[arm]}: seed{'s' * (len(some) > 1)} {', '.join(map(str, sorted(some)))}"
        for arm, some in seeds.items()
        if some
    )
