"""The name of a comparison: its host, its benchmark among several and, in few words, what departs from its recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flashback.recipes import KINDS
from flashback.records.terms import FLASHBACK
from flashback.reports.departures import BESIDE, WHOLE, changes, flat_settings
from flashback.reports.reading import Run
from flashback.reports.words import ARM_TITLES, plural, written

DATA, ORDER, CODE = "data", "class order", "code"  # tell comparisons apart whose settings are the same
FIRST = ("recipe", CODE, DATA, ORDER, "benchmark.tasks", "training.epochs", "benchmark.validation")  # to be known first
SHOWN = 4  # settings in a name; the others are counted
LETTERS = 40  # of a value in a name
DIGITS = 8  # of a checksum
# What ANCL sets (auxiliary network continual learning; Kim et al., 2023): a whole training without the stability loss
# gives the plastic knowledge, then a whole training uses it.
ANCL = ("flashback.epochs", "flashback.second_epochs", "flashback.phase1_stability", "flashback.phase1_schedule")
Runs = Mapping[tuple[str, int], Run]


@dataclass(frozen=True)
class Described:
    """What a comparison may be named by: its settings, and the keys of those that tell it from its recipe."""

    title: str
    settings: dict[str, Any]
    keys: list[str]

    @property
    def but_for_code(self) -> str:
        return written({k: v for k, v in self.settings.items() if k != CODE and not k.startswith("flashback.")})

    def name(self, telling: Sequence[str] = ()) -> str:
        """With the first keys of its own, and with those that tell it from others."""
        shown = [*self.keys[:SHOWN], *(key for key in telling if key not in self.keys[:SHOWN])]
        more = len(set(self.keys) - set(shown))
        words = ", ".join(setting_in_words(key, self.settings.get(key)) for key in shown)
        rest = f" and {plural(more, 'more setting')}" if more else ""
        return f"{self.title} ({words}{rest})" if words else self.title


def name_pairs(pairs: Sequence[Runs], with_arm: bool = False) -> list[str]:
    """One name for each; those that would share one say in which further settings they differ.

    `with_arm` is for single arms, which are then told apart by it.
    """
    protocols = [protocol(next(iter(runs.values()))) for runs in pairs]
    return distinguishing_settings(with_codes([describe(runs, protocols, with_arm) for runs in pairs]))


def name_protocols(protocols: Sequence[Mapping[str, Any]]) -> list[str]:
    """The benchmark of each and, where there are several on it, in what they depart from it: first 2 tasks, order 3."""
    return distinguishing_settings(
        [
            Described(
                Path(own["name"]).stem,
                {**own, DATA: str(own["data_checksum"])[:DIGITS], ORDER: own["class_order"]},
                varied(own, protocols),
            )
            for own in protocols
        ]
    )


def protocol(run: Run) -> dict[str, Any]:
    """What a run learned and was tested on. Only where all of it is the same can one method be better than another."""
    return {**run.settings["benchmark"], **run.data}


def varied(own: Mapping[str, Any], protocols: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of a benchmark that others on it do not share; where none is set, there is nothing to say."""
    rivals = [other for other in protocols if other["name"] == own["name"]]
    settings = [key for key in own if key not in ("data_checksum", "class_order")]  # these only where no setting tells
    given = [key for key in settings if own[key] != WHOLE.get(f"benchmark.{key}")]
    return [key for key in given if any(other.get(key) != own[key] for other in rivals)]


def distinguishing_settings(described: Sequence[Described]) -> list[str]:
    """The name of each; those that would share one get longer ones."""
    names = [one.name() for one in described]
    for name in {name for name in names if names.count(name) > 1}:
        alike = [k for k, other in enumerate(names) if other == name]
        for k, longer in zip(alike, disambiguate([described[k] for k in alike]), strict=True):
            names[k] = longer
    return unique(names)


def describe(runs: Runs, protocols: Sequence[Mapping[str, Any]], with_arm: bool = False) -> Described:
    """Of a report on several benchmarks with its own; else the report says once which it is."""
    several = len({own["name"] for own in protocols}) > 1
    run = list(runs.values())[-1]  # of the flashback arm, where there is one
    changed, settings = changes(runs.values()), flat_settings(run)
    named = ["recipe"] if run.recipe in KINDS[1:] else []
    arm = f" {ARM_TITLES[FLASHBACK]}" if with_arm and run.arm == FLASHBACK else ""
    method, implied = (f"{run.host} with ANCL", ANCL) if is_ancl(settings) else (f"{run.host}{arm}", ())
    title = f"{method} on {Path(run.benchmark).stem}" if several else method
    data = {DATA: str(run.data["data_checksum"])[:DIGITS], ORDER: run.data["class_order"], CODE: short_code(run)}
    learned = [f"benchmark.{key}" for key in varied(protocol(run), protocols)]
    keys = dict.fromkeys([*named, *learned, *(key for key in changed if key not in implied)])
    return Described(title, data | settings | changed, in_order(list(keys)))


def with_codes(described: Sequence[Described]) -> list[Described]:
    """Where all settings of the host are the same and its files are not, names have these, in either arm."""
    codes: dict[str, set[str]] = {}
    for one in described:
        codes.setdefault(one.but_for_code, set()).add(one.settings[CODE])
    several = [len(codes[one.but_for_code]) > 1 for one in described]
    return [
        replace(one, keys=in_order([CODE, *one.keys])) if told else one
        for one, told in zip(described, several, strict=True)
    ]


def short_code(run: Run) -> str:
    return str(run.code or "unknown")[:DIGITS]


def is_ancl(settings: Mapping[str, Any]) -> bool:
    first, second, whole = map(settings.get, ("flashback.epochs", "flashback.second_epochs", "training.epochs"))
    return first == second == whole and settings.get("flashback.phase1_stability") == 0


def disambiguate(alike: Sequence[Described]) -> list[str]:
    """Names with as few further settings as make most of them differ."""
    common = set.intersection(*(set(one.settings) for one in alike))  # an arm alone has no settings of flashback
    keys = [key for key in alike[0].settings if key in common]
    telling = in_order([key for key in keys if len({written(one.settings.get(key)) for one in alike}) > 1])
    names = [[one.name(telling[:count]) for one in alike] for count in range(len(telling) + 1)]
    return max(names, key=lambda own: len(set(own)))  # the first of the best


def in_order(keys: Sequence[str]) -> list[str]:
    """How long a run was comes first, how it was computed last."""
    first = [key for key in FIRST if key in keys]
    last = [key for key in keys if key in BESIDE and key not in first]
    return [*first, *(key for key in keys if key not in (*first, *last)), *last]


def setting_in_words(key: str, value: Any) -> str:
    if key in ("tasks", "benchmark.tasks", "training.epochs") and isinstance(value, int):
        amount = plural(value, key.split(".")[-1].removesuffix("s"))
        return f"first {amount}" if key == "tasks" else amount  # of a protocol: larger tasks are fewer too
    text = written(value)
    short = text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"
    return f"{key.removeprefix('benchmark.') if key in FIRST else key} {short}"


def unique(names: Sequence[str]) -> list[str]:
    """A number tells apart what even long names do not."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return result
