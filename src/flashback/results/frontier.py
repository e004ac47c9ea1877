"""Trade-off frontiers: accuracy on old and new tasks by the weight of a host's stability, alone and in other forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flashback.errors import FlashbackError, require
from flashback.files import LARGEST_RECORD, read_file
from flashback.metrics import PairedTest, TradeOff, dominated, gap, height, holm, outline, paired_test
from flashback.metrics.statistics import SIGNIFICANT, deviation, interval, mean, number, probability, signed
from flashback.records.terms import CLASS_INCREMENTAL, SETTINGS
from flashback.results.naming import distinct_names
from flashback.results.run import is_number

FRONTIER = "frontier.json"
WEIGHT = "training.stability"


@dataclass(frozen=True)
class Point:
    """One curve at one weight: means and deviations over seeds, and the height above the host's own curve."""

    weight: float
    new: float | None
    old: float | None
    new_deviation: float | None
    old_deviation: float | None
    dominated: bool
    above: PairedTest | None  # None on the host's own curve
    outside: list[int]  # seeds in which the point is outside the range of the host's curve


@dataclass(frozen=True)
class Curve:
    """Runs of one form at every weight; `points` holds them by setting and seed, None where a run failed."""

    name: str
    settings: dict[str, Any]
    flashback: bool
    points: dict[str, dict[int, list[TradeOff | None]]]

    def of_seed(self, setting: str, seed: int) -> list[TradeOff]:
        """The points of a seed at every weight; empty where a run of it failed or is missing."""
        points = self.points[setting][seed]
        known = [point for point in points if point is not None]
        return known if len(known) == len(points) else []


@dataclass(frozen=True)
class Advantage:
    """How far a form lies above the host's own curve: the mean height over a range, tested by seed."""

    name: str
    heights: dict[int, float | None]  # by complete seed; None where the curves reach no new-task accuracy in common
    areas: dict[int, float | None]
    low: float | None  # ends of the range of new-task accuracy, means over seeds
    high: float | None
    test: PairedTest
    p_adjusted: float | None  # by Holm's method, for the number of forms
    left_out: list[int] = field(default_factory=list)  # seeds with a missing point on either curve

    @property
    def sentence(self) -> str:
        if not self.left_out:
            return self._answer
        if not self.heights:
            return (
                f"{self.name}: no answer, because in every seed a run of it, or of the host alone, failed or is "
                "missing; run it again or choose other weights."
            )
        count, seeds = len(self.left_out), len(self.left_out) + len(self.heights)
        verb, pronoun = ("is", "it") if count == 1 else ("are", "them")
        reason = f"because runs of {pronoun} failed or are missing"
        return f"{self._answer} {count} of {seeds} seeds {verb} left out, {reason}."

    @property
    def _answer(self) -> str:
        if self.test.difference is None:
            seeds = ", ".join(str(seed) for seed, value in self.heights.items() if value is None)
            return (
                f"{self.name}: no answer, because it and the host alone reach no new-task accuracy in common (of the "
                f"seeds: {seeds}); choose other weights."
            )
        where = f"between {number(self.low, '.1f')} and {number(self.high, '.1f')} % on new tasks"
        height = f"{signed(self.test.difference)} points on average, {where}"
        if self.test.p is None:
            same = "every seed differs by the same amount, so p is undefined"
            reason = "too few seeds for a test" if self.test.pairs < 2 else same
            is_away = abs(self.test.difference) >= 0.005  # as printed
            side = f"{signed(self.test.difference)} points from" if is_away else "on"
            return f"{self.name} lies on average {side} the host's own curve, {where}; {reason}."
        p = self.test.p if self.p_adjusted is None else self.p_adjusted
        side = "above" if self.test.difference > 0 else "below"
        verdict = f"lies significantly {side} the host's own curve"
        if p >= SIGNIFICANT:
            verdict = "is not significantly above or below the host's own curve"
        adjusted = " adjusted" if p != self.test.p else ""
        numbers = f"95 % interval {interval(self.test)}, p {probability(p, equals='= ')}{adjusted}"
        return f"{self.name} {verdict} ({height}; {numbers}, {self.test.pairs} seeds)."


@dataclass(frozen=True)
class Frontier:
    """The curves of a host alone, which comes first, and of other forms."""

    host: str
    benchmark: str
    recipe: str
    weights: list[float]
    seeds: list[int]
    curves: list[Curve]
    failures: dict[str, str] = field(default_factory=dict)
    name: str = ""  # the folder
    heading: str = ""  # given by distinct_headings

    @property
    def title(self) -> str:
        return self.heading or f"{self.host} on {Path(self.benchmark).stem}"

    @property
    def host_curve(self) -> Curve:
        return self.curves[0]

    @cached_property
    def _points(self) -> dict[str, dict[str, list[Point]]]:
        return {setting: self._summarise(setting) for setting in SETTINGS}

    def points(self, setting: str = CLASS_INCREMENTAL) -> dict[str, list[Point]]:
        """Return the points of every curve by name, one for each weight.

        Args:
            setting: "class_incremental" or "task_incremental".
        """
        return self._points[setting]

    def outlines(self, setting: str = CLASS_INCREMENTAL) -> dict[str, list[TradeOff]]:
        """What each curve of means trades, from its highest point to its end; empty without points."""
        result = {}
        for name, points in self.points(setting).items():
            known = [
                TradeOff(point.new, point.old) for point in points if point.new is not None and point.old is not None
            ]
            result[name] = outline(known) if known else []
        return result

    def _summarise(self, setting: str) -> dict[str, list[Point]]:
        means: list[TradeOff | None] = []
        values: list[list[tuple[float, ...]]] = []
        for curve in self.curves:
            for k in range(len(self.weights)):
                column = [curve.points[setting][seed][k] for seed in self.seeds]
                known = [point for point in column if point is not None]
                complete = len(known) == len(column)  # a mean over the other seeds would be biased
                values.append([tuple(point[axis] for point in known) for axis in (0, 1)] if complete else [(), ()])
                new, old = map(mean, values[-1])
                means.append(None if new is None or old is None else TradeOff(new, old))
        worse = dominated(means)
        result: dict[str, list[Point]] = {}
        for n, curve in enumerate(self.curves):
            result[curve.name] = []
            for k, weight in enumerate(self.weights):
                at = n * len(self.weights) + k
                new, old = means[at] or (None, None)
                above, outside = self._above(curve, setting, k) if n else (None, [])
                spread_new, spread_old = map(deviation, values[at])
                point = Point(weight, new, old, spread_new, spread_old, worse[at], above, outside)
                result[curve.name].append(point)
        return result

    def _above(self, curve: Curve, setting: str, k: int) -> tuple[PairedTest, list[int]]:
        """Heights above the host's curve by complete seed; no interval where some of them have none."""
        base_heights: dict[int, float | None] = {}
        heights: dict[int, float | None] = {}
        for seed in self._complete_seeds(curve, setting):
            point = curve.of_seed(setting, seed)[k]
            under = float(height(self.host_curve.of_seed(setting, seed), point.new))
            base_heights[seed], heights[seed] = (None if under != under else under), point.old
        outside = [seed for seed, value in base_heights.items() if value is None]
        return (paired_test({}, {}) if outside else paired_test(base_heights, heights)), outside

    def _complete_seeds(self, curve: Curve, setting: str) -> list[int]:
        """The seeds without a missing point on this curve and on the host's, because a gap would move its height."""
        both = (self.host_curve, curve)
        return [seed for seed in self.seeds if all(one.of_seed(setting, seed) for one in both)]

    @cached_property
    def _advantages(self) -> dict[str, list[Advantage]]:
        return {setting: self._compare(setting) for setting in SETTINGS}

    def advantages(self, setting: str = CLASS_INCREMENTAL) -> list[Advantage]:
        """Return, for every form, how far its curve lies above the host's.

        Args:
            setting: "class_incremental" or "task_incremental".
        """
        return self._advantages[setting]

    def _compare(self, setting: str) -> list[Advantage]:
        result = []
        for curve in self.curves[1:]:
            seeds = self._complete_seeds(curve, setting)
            gaps = {s: gap(self.host_curve.of_seed(setting, s), curve.of_seed(setting, s)) for s in seeds}
            heights = {seed: seed_gap.height if seed_gap else None for seed, seed_gap in gaps.items()}
            areas = {seed: seed_gap.area if seed_gap else None for seed, seed_gap in gaps.items()}
            left_out = [seed for seed in self.seeds if seed not in seeds]
            whole = None not in heights.values()  # a mean over the other seeds would be biased
            test = paired_test(dict.fromkeys(gaps, 0.0), heights) if whole else paired_test({}, {})
            low, high = (mean([seed_gap[k] for seed_gap in gaps.values() if seed_gap]) for k in (2, 3))
            result.append(Advantage(curve.name, heights, areas, low, high, test, None, left_out))
        adjusted = holm([1.0 if form.test.p is None else form.test.p for form in result])  # every form counts
        return [
            form if form.test.p is None else replace(form, p_adjusted=p)
            for form, p in zip(result, adjusted, strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        """What frontier.json holds: the accuracies of every run, and what follows from them."""
        names = ("host", "benchmark", "recipe", "weights", "seeds", "failures")
        answers = {
            setting: {
                "points": {name: [asdict(point) for point in points] for name, points in self.points(setting).items()},
                "advantages": [{**asdict(answer), "sentence": answer.sentence} for answer in self.advantages(setting)],
            }
            for setting in SETTINGS
        }
        return {name: getattr(self, name) for name in names} | {
            "curves": [asdict(curve) for curve in self.curves],
            "answers": answers,
        }


def read_frontier(path: Path, name: str = "") -> Frontier:
    """Read frontier.json in a folder; what follows from its accuracies is computed again.

    Raises:
        FlashbackError: The file is not readable or not complete.
    """
    try:
        content = json.loads(read_file(path / FRONTIER, LARGEST_RECORD))
        seeds, weights = [int(seed) for seed in content["seeds"]], [float(weight) for weight in content["weights"]]
        curves = [read_curve(curve, seeds, len(weights)) for curve in content["curves"]]
        texts = [str(content[key]) for key in ("host", "benchmark", "recipe")]
        failures = {run: str(problem) for run, problem in content["failures"].items()}
    except (OSError, RecursionError, json.JSONDecodeError):
        raise FlashbackError("is not readable as JSON") from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FlashbackError(f"is not complete ({error}); write it again with `flashback frontier`") from None
    require(bool(curves and seeds and weights), "holds no curve; write it again with `flashback frontier`")
    return Frontier(texts[0], texts[1], texts[2], weights, seeds, curves, failures, name)


def distinct_headings(frontiers: Sequence[Frontier]) -> list[Frontier]:
    """Add recipe and folder to equal titles, where these differ."""
    settings = [{"recipe": frontier.recipe, "folder": frontier.name} for frontier in frontiers]
    titles = distinct_names([frontier.title for frontier in frontiers], settings, [()] * len(frontiers))
    return [
        frontier if title == frontier.title else replace(frontier, heading=title)
        for frontier, title in zip(frontiers, titles, strict=True)
    ]


def read_curve(content: Mapping[str, Any], seeds: Sequence[int], weights: int) -> Curve:
    points = {
        setting: {seed: [read_point(pair) for pair in content["points"][setting][str(seed)]] for seed in seeds}
        for setting in SETTINGS
    }
    for by_seed in points.values():
        for some in by_seed.values():
            if len(some) != weights:
                raise ValueError("a curve has another number of points than there are weights")
    return Curve(str(content["name"]), dict(content["settings"]), bool(content["flashback"]), points)


def read_point(pair: Any) -> TradeOff | None:
    if pair is None:
        return None
    if not isinstance(pair, list) or len(pair) != 2 or not all(is_number(value, 100.0) for value in pair):
        raise ValueError("an accuracy is not a number from 0 to 100")
    return TradeOff(float(pair[0]), float(pair[1]))
