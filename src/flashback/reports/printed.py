"""What the paper prints for a benchmark and a host, and what does not follow from its own tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from flashback.metrics import paired_over_methods
from flashback.records.folder import dotted
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.words import SETTING_TITLES, TITLES, number, signed

QUOTED: dict[Any, tuple[str, ...]] = {False: (), True: (HOST,), "both": ARMS}  # as the file says it


@dataclass(frozen=True)
class Printed:
    """One cell of a table of the paper: the value of each arm, and what is printed about it."""

    benchmark: str
    host: str
    setting: str
    metric: str
    where: str
    value: Mapping[str, float]  # by arm
    deviation: Mapping[str, float]  # by arm
    when: Mapping[str, Any]  # settings
    quoted: Sequence[str]  # arms
    rerun: float | None = None
    gain: float | None = None
    note: str = ""

    def is_about(self, settings: Mapping[str, Any]) -> bool:
        """Whether a run with these settings is one the value is meant for."""
        wanted = {"benchmark.name": self.benchmark, "host.name": self.host, **self.when}
        return all(settings.get(key) == value for key, value in wanted.items())

    @property
    def of_flashback(self) -> set[str]:
        """The settings of flashback that the value is about; with none, those of the recipe."""
        return {key for key in self.when if key.startswith("flashback.")}

    def text(self, arm: str) -> str:
        """The value as a reader should take it: with its deviation, its mark as quoted, and the own run of that."""
        if arm not in self.value:
            return ""
        deviation = f" ± {number(self.deviation[arm])}" if arm in self.deviation else ""
        quoted = " (quoted)" if arm in self.quoted else ""
        rerun = f", {number(self.rerun)} (own run)" if self.rerun is not None and arm == HOST else ""
        return f"{number(self.value[arm])}{deviation}{quoted}{rerun}"

    @property
    def title(self) -> str:
        return f"{self.host} on {self.benchmark}, {SETTING_TITLES[self.setting]} {TITLES[self.metric][1]}"


@dataclass(frozen=True)
class Anchor:
    """What an independent publication reports for a host, class-incrementally."""

    source: str
    average_accuracy: float
    forgetting: float
    unverified: bool = False
    note: str = ""


def anchor_of(benchmark: str, host: str) -> Anchor | None:
    anchors = _content()["anchors"]
    values = anchors.get(benchmark, {}).get(host)
    return Anchor(anchors["source"], **values) if values else None


def hosts_with_similarity() -> list[str]:
    """The hosts whose representations the paper compares with those of joint training."""
    return list(_content()["similarity"])


@cache
def printed_values() -> tuple[Printed, ...]:
    return tuple(cell for table in _content()["tables"] for cell in _cells(table))


@cache
def references() -> tuple[Printed, ...]:
    """Quoted values of methods that cannot be run here."""
    return tuple(cell for table in _content()["tables"] for cell in _references(table))


def references_beside(shown: Iterable[Printed]) -> list[str]:
    """What the paper quotes of other methods in the tables of these values, on the same benchmarks: a sentence each."""
    tables = {(cell.where, cell.benchmark) for cell in shown}
    beside = [cell for cell in references() if (cell.where, cell.benchmark) in tables]
    return [f"{cell.title}: {cell.text(HOST)} in {cell.where}." for cell in beside]


def notes_on(shown: Iterable[Printed]) -> list[str]:
    """What a reader should know of these values, once for each host."""
    return list(dict.fromkeys(f"{cell.host}: {cell.note}" for cell in shown if cell.note))


def printed_tests() -> dict[str, dict[str, float]]:
    """t and p over methods by benchmark."""
    return {name: test for name, test in _content()["tests"].items() if name != "where"}


def over_tasks_in_words(host: str) -> str:
    """What the paper prints of its test over the tasks of a run of this host; empty where it prints nothing."""
    tests = _content()["tests_over_tasks"]
    if host == "where" or host not in tests:
        return ""
    t, p = tests[host]["t"], tests[host]["p"]
    return f"The paper prints t = {t}, p = {p} ({tests['where']}), without its benchmark and its number of pairs."


def printed_for(config: Mapping[str, Any]) -> list[Printed]:
    settings = dotted(config)
    return [printed for printed in printed_values() if printed.is_about(settings)]


# ---------------------------------------------------------------- what does not follow from the tables


def inconsistencies(benchmarks: Sequence[str]) -> list[str]:
    """One sentence for everything printed about these benchmarks that its own table does not give."""
    return [
        sentence
        for benchmark in benchmarks
        for sentence in (*_wrong_gains(benchmark), *_wrong_tests(benchmark), *_two_values(benchmark))
    ]


def implied_new_task_accuracies(benchmarks: Sequence[str]) -> list[str]:
    """Forgetting and SPR together say how well the last task was learned; the paper prints both for some hosts."""
    cells = {(p.benchmark, p.host, p.metric, frozenset(p.when.items())): p for p in printed_values()}
    sentences = []
    for (benchmark, host, metric, when), ratio in cells.items():
        forgetting = cells.get((benchmark, host, "forgetting", when))
        if metric == "stability_plasticity_ratio" and forgetting is not None and benchmark in benchmarks:
            without, with_flashback = (100 * forgetting.value[arm] / ratio.value[arm] for arm in ARMS)
            apart = {round(ratio.value[arm] - forgetting.value[arm], 2) for arm in ARMS}
            misprint = f" They are exactly {number(min(apart))} apart in both arms: one of them may be a misprint."
            sentences.append(
                f"{host} on {benchmark}: forgetting ({forgetting.where}) and SPR ({ratio.where}) imply a new-task "
                f"accuracy of {number(without, '.1f')} without and {number(with_flashback, '.1f')} with flashback."
                + (misprint if len(apart) == 1 else "")
            )
    return sentences


def _wrong_gains(benchmark: str) -> Iterator[str]:
    for cell in _of(benchmark):
        if cell.gain is None or _close(cell.value[FLASHBACK] - cell.value[HOST], cell.gain):
            continue
        sentence = (
            f"{cell.title}: printed {signed(cell.gain)}, but {cell.where} has {_both(cell)}, "
            f"which is {signed(cell.value[FLASHBACK] - cell.value[HOST])}"
        )
        if cell.rerun is not None and _close(cell.value[FLASHBACK] - cell.rerun, cell.gain):
            sentence += f"; the gain is over an own run of the host with {number(cell.rerun)}"
        yield sentence + "."


def _wrong_tests(benchmark: str) -> Iterator[str]:
    """The paper's test over methods, from the values it prints."""
    test = printed_tests().get(benchmark)
    if test is None:
        return
    found = _test_over_methods(benchmark, own_runs=False)
    if any(round(value, 2) == test["t"] for value in (found, _test_over_methods(benchmark, own_runs=True))):
        return
    sentence = f"t-test over methods on {benchmark}: printed t = {test['t']}, p = {test['p']}"
    sentence += f" ({_content()['tests']['where']}), but the printed averages give t = {number(found)}"
    again = _test_over_methods(benchmark, own_runs=True)
    if again != found:
        sentence += f", or {number(again)} with own runs in place of quoted hosts"
    yield sentence + "."


def _two_values(benchmark: str) -> Iterator[str]:
    """Two tables that give the same run two values."""
    first: dict[Any, Printed] = {}
    for cell in _of(benchmark):
        if not cell.when:
            continue
        key = (cell.host, cell.setting, cell.metric, frozenset(cell.when.items()))
        other = first.setdefault(key, cell)
        if dict(other.value) != dict(cell.value):
            settings = ", ".join(f"{name.removeprefix('host.')} {value}" for name, value in cell.when.items() if value)
            yield f"{cell.title} ({settings}): {_both(other)} in {other.where}, {_both(cell)} in {cell.where}."


def _test_over_methods(benchmark: str, own_runs: bool) -> float:
    averages: dict[str, dict[str, dict[str, float]]] = {arm: {} for arm in ARMS}
    for cell in _of(benchmark):
        if cell.gain is None or cell.metric != "average_accuracy":  # Tables 1 and 2
            continue
        for arm in ARMS:
            value = cell.rerun if own_runs and arm == HOST and cell.rerun is not None else cell.value[arm]
            averages[arm].setdefault(cell.host, {})[cell.setting] = value
    t = paired_over_methods(*(averages[arm] for arm in ARMS)).t
    assert t is not None
    return t


def _of(benchmark: str) -> list[Printed]:
    return [cell for cell in printed_values() if cell.benchmark == benchmark]


def _both(cell: Printed) -> str:
    return " and ".join(f"{number(cell.value[arm])}" for arm in ARMS)


def _close(value: float, printed: float) -> bool:
    return abs(value - printed) < 0.0051  # half a unit of the second decimal


# ---------------------------------------------------------------- the file


@cache
def _content() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "printed.yaml").read_text(encoding="utf-8"))
    return content


def _cells(table: Mapping[str, Any]) -> Iterator[Printed]:
    assert table["setting"] in SETTINGS
    for benchmark, hosts in table["cells"].items():
        for host, cells in hosts.items():
            for cell in cells if isinstance(cells, list) else [cells]:
                yield Printed(
                    benchmark,
                    host,
                    table["setting"],
                    table["metric"],
                    table["where"],
                    value={arm: cell[arm] for arm in ARMS if arm in cell},
                    deviation=dict(zip(ARMS, cell.get("deviation", []), strict=False)),
                    when=cell.get("when", {}),
                    quoted=QUOTED[cell.get("quoted", False)],
                    rerun=cell.get("rerun"),
                    gain=cell.get("gain"),
                    note=cell.get("note", ""),
                )


def _references(table: Mapping[str, Any]) -> Iterator[Printed]:
    for benchmark, methods in table.get("references", {}).items():
        for method, cell in methods.items():
            yield Printed(
                benchmark,
                method,
                table["setting"],
                table["metric"],
                table["where"],
                value={HOST: cell["value"]},
                deviation={},
                when={},
                quoted=(HOST,),
            )
