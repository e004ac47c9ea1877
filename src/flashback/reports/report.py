"""What there is to report: methods, hosts beside their flashback arms, tests against one method."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path

from flashback.errors import require, unknown
from flashback.metrics import PairedTest, paired_over_methods, paired_over_tasks
from flashback.metrics.statistics import holm
from flashback.records import differing_keys
from flashback.records.terms import FLASHBACK, HOST, SETTINGS
from flashback.reports.references import Reference, References, read_references
from flashback.reports.series import mean_matrix
from flashback.reports.words import TITLES, parse_metric, plural, seeds_without_value, unmatched_seeds
from flashback.results import (
    Comparison,
    Frontier,
    Method,
    Row,
    Run,
    Similarity,
    compare_methods,
    group_methods,
    pair_arms,
    read_runs,
)
from flashback.results.method import canonical, setup
from flashback.results.naming import DIGITS, data_facts, distinct_names, setting_in_words
from flashback.results.reading import Folders


@dataclass(frozen=True)
class Report:
    """Methods and comparisons of all runs, best read with `read_report`.

    `pairings` has every host beside its arm with flashback, and methods without a counterpart.
    """

    methods: list[Method]
    pairings: list[Comparison]
    similarities: list[Similarity] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    baseline: str = ""  # the method that all others are tested against
    chosen: tuple[str, ...] = ()  # metrics of the tables; all where empty
    references: References = field(default_factory=References)
    frontiers: list[Frontier] = field(default_factory=list)

    @property
    def comparisons(self) -> list[Comparison]:
        return [pairing for pairing in self.pairings if not pairing.is_single]

    @property
    def singles(self) -> list[Comparison]:
        return [pairing for pairing in self.pairings if pairing.is_single]

    @property
    def runs(self) -> list[Run]:
        methods = sorted(self.methods, key=lambda method: (method.benchmark, method.name))
        return [run for method in methods for run in method.runs.values()]

    @property
    def benchmarks(self) -> list[str]:
        return list(dict.fromkeys(pairing.benchmark for pairing in self.pairings))

    @property
    def where(self) -> str:
        return ", ".join(Path(benchmark).stem for benchmark in self.benchmarks)

    @property
    def metrics(self) -> list[str]:
        return [metric for metric in self.chosen or TITLES if any(metric in p.metric_names for p in self.pairings)]

    @property
    def has_overview(self) -> bool:
        return bool(self.singles) or len(self.methods) > 2

    # ------------------------------------------------------------ protocols

    @cached_property
    def protocols(self) -> dict[str, str]:
        """The name of each protocol: the benchmark and what distinguishes it from others on the same benchmark."""
        methods = sorted(self.methods, key=lambda method: method.benchmark)
        runs = {method.protocol: method.any_run for method in methods}
        settings = [
            {f"benchmark.{key}": value for key, value in run.settings["benchmark"].items()} | data_facts(run)
            for run in runs.values()
        ]
        names = distinct_names([Path(run.benchmark).stem for run in runs.values()], settings, [()] * len(runs))
        return dict(zip(runs, names, strict=True))

    def ranked(self, setting: str) -> dict[str, list[Method]]:
        """The methods by name of their protocol, best first: only on the same protocol is one better than another."""
        groups: dict[str, list[Method]] = {name: [] for name in self.protocols.values()}
        for method in sorted(self.methods, key=lambda method: -(method.sample(setting=setting).mean or 0)):
            groups[self.protocols[method.protocol]].append(method)
        return groups

    # ------------------------------------------------------------ tests against one method

    def find_methods(self, name: str) -> list[Method]:
        """The method of this name, or all settings of the host of this name, alone or with flashback."""
        exact = [method for method in self.methods if method.name == name]
        suffix = {HOST: "", FLASHBACK: " with flashback"}
        methods = exact or [method for method in self.methods if name == method.host + suffix[method.arm]]
        if not methods:
            raise unknown("method", name, (method.name for method in self.methods))
        return methods

    @cached_property
    def baseline_comparisons(self) -> list[Comparison]:
        """Every method against the baseline; of several settings of it, the most similar."""
        possible = [[test for test in tests if not obstacles(test)] for tests in self._against.values()]
        return [min(tests, key=lambda test: len(test.differing)) for tests in possible if tests]

    @property
    def untested_remarks(self) -> list[str]:
        """Name the methods that cannot be tested against the baseline, with the reason."""
        reasons = {name: min(map(obstacles, tests), key=len) for name, tests in self._against.items()}
        words = {name: " and ".join(some) for name, some in reasons.items() if some}
        return [f"{name} is not tested against {self.baseline}: {reason}." for name, reason in words.items()]

    @cached_property
    def _against(self) -> dict[str, list[Comparison]]:
        bases = self.find_methods(self.baseline) if self.baseline else []
        others = [m for methods in self.ranked(SETTINGS[0]).values() for m in methods if m not in bases]
        return {method.name: [compare_methods(base, method) for base in bases] for method in others if bases}

    def baseline_rows(self, setting: str, metrics: Sequence[str]) -> list[tuple[Comparison, Row, float | None]]:
        """Every test against the baseline with p adjusted for the number of tests of the metric by Holm's method."""
        result = []
        for metric in metrics:
            comparisons = [test for test in self.baseline_comparisons if metric in test.metric_names]
            tests = [(test, test.row(setting, metric)) for test in comparisons]
            adjusted = iter(holm([row.test.p for _, row in tests if row.test.p is not None]))
            result += [(test, row, None if row.test.p is None else next(adjusted)) for test, row in tests]
        return result

    # ------------------------------------------------------------ what the paper tests

    def over_methods(self, benchmark: str) -> PairedTest | None:
        """One pair per method and setting, of means over common seeds; None for fewer than two methods.

        Only methods that ran in full length and with one set of settings count.
        """
        whole = [p for p in self.comparisons if p.benchmark == benchmark and p.common_seeds and p.is_full_length]
        times = Counter(pairing.host for pairing in whole)
        whole = [pairing for pairing in whole if times[pairing.host] == 1]
        left: dict[str, dict[str, float]] = {}
        right: dict[str, dict[str, float]] = {}
        for pairing, setting in product(whole, SETTINGS):
            first, second = pairing.row(setting).paired_means
            if first is not None and second is not None:
                left.setdefault(pairing.name, {})[setting] = first
                right.setdefault(pairing.name, {})[setting] = second
        return paired_over_methods(left, right) if len(whole) > 1 else None

    @cached_property
    def references_beside(self) -> list[tuple[Comparison, Reference]]:
        return [(pairing, reference) for pairing in self.pairings for reference in self.references.beside(pairing)]

    # ------------------------------------------------------------ remarks

    @property
    def title(self) -> str:
        return "Does flashback help?" if self.comparisons else "How do the methods compare?"

    @property
    def contents(self) -> str:
        runs = f"{plural(len(self.runs), 'finished run')} on {self.where}"
        if not self.comparisons:
            return f"{runs}: {plural(len(self.methods), 'method')}"
        counts = {"comparison": len(self.comparisons), "single arm": len(self.singles)}
        return f"{runs}: {', '.join(plural(count, noun) for noun, count in counts.items() if count)}"

    @property
    def singles_in_words(self) -> str:
        hosts = ", ".join(dict.fromkeys(pairing.host for pairing in self.singles))
        return f"{plural(len(self.singles), 'single arm')}, with nothing to compare: {hosts}"

    @property
    def shared_changes(self) -> str:
        """The settings that differ from the recipes and that all methods share; names leave them out."""
        arms = [method for method in self.methods if method.arm == FLASHBACK]
        shared = in_all(self.methods) + [words for words in in_all(arms) if words.startswith("flashback.")]
        return ", ".join(dict.fromkeys(shared))

    @property
    def code_remarks(self) -> list[str]:
        """Name the runs that cannot be compared, or not be relied on, because their code differs."""
        remarks = [
            f"{run.name} was resumed in a different environment ({', '.join(map(str, changed))})."
            for run in self.runs
            if (changed := run.record.run.get("changed_on_resume"))
        ]
        codes: dict[tuple[str, str], set[str]] = {}
        for run in self.runs:
            codes.setdefault((run.host, canonical(setup(run))), set()).add(str(run.code or "unknown")[:DIGITS])
        different = {host: ", ".join(sorted(digests)) for (host, _), digests in codes.items() if len(digests) > 1}
        return remarks + [
            f"{host}: its runs were made with different code ({digests}), so they are not compared with each other; "
            "run those of the old code again in another folder."
            for host, digests in different.items()
        ]

    @property
    def difference_remarks(self) -> list[str]:
        arms = [(p, "arms", p.differing_settings) for p in self.comparisons]
        runs = [(p, "runs", p.differing_environment) for p in self.pairings]
        return [f"{p.name}: the {what} differ in {', '.join(keys)}." for p, what, keys in arms + runs if keys]

    @property
    def budget_remarks(self) -> list[str]:
        return [f"{p.name}: {p.budget}." for p in self.comparisons if not p.equal_budget]

    @property
    def seed_remarks(self) -> list[str]:
        remarks = {p.name: [unmatched_seeds(p), *seeds_without_value(p, self.metrics)] for p in self.pairings}
        return [f"{name}: {remark}" for name, some in remarks.items() for remark in some if remark]


def read_report(
    folders: Folders,
    *,
    against: str = "",
    metrics: Sequence[str] = (),
    references: str | Path | None = None,
    labels: Mapping[str, str | Path] | None = None,
) -> Report:
    """Read every finished run below the folders and group it into methods and comparisons.

    Args:
        folders: One folder or several.
        against: A method that all others are tested against, such as "icarl" or "icarl with flashback".
        metrics: The metrics of the tables, in this order, by short title or key; all if empty.
        references: A YAML file of published values to show beside the measured ones.
        labels: Names for the runs below a folder, as `{"our net": "runs/mynet"}`.

    Returns:
        The report, which `write_report` and `write_plots` take.

    Raises:
        FlashbackError: A folder, file, method, metric or label does not exist.
    """
    published = read_references(references) if references else References()
    metric_keys = tuple(dict.fromkeys(map(parse_metric, metrics)))
    result = read_runs(folders, labels)
    methods = group_methods(result.runs)
    pairings = pair_arms(methods)
    report = Report(
        methods, pairings, result.similarities, result.skipped, against, metric_keys, published, result.frontiers
    )
    if report.pairings:
        require(bool(report.metrics), f"these runs have no {', '.join(metrics)}; choose other metrics (--metrics)")
        if against:
            report.find_methods(against)
    return report


def in_all(methods: Sequence[Method]) -> list[str]:
    changes = [[setting_in_words(*item) for item in method.changes.items()] for method in methods]
    return (
        [words for words in changes[0] if all(words in method_changes for method_changes in changes)] if changes else []
    )


def over_tasks(pairing: Comparison, setting: str) -> PairedTest:
    """The paper's test for oEWC: one pair per task, of average accuracies that are means over common seeds."""
    left, right = (
        mean_matrix([method.runs[seed] for seed in pairing.common_seeds], setting) for method in pairing.methods
    )
    return paired_over_tasks(left, right)


def obstacles(test: Comparison) -> list[str]:
    keys = differing_keys(test.left.any_run.protocol, test.right.any_run.protocol)
    if test.left.host != test.right.host:
        keys += [key for key in test.differing_settings if key.startswith("host.memory")]
    reasons = [f"{', '.join(keys)} differs"] if keys else []
    return reasons if test.common_seeds else [*reasons, "no seed in common"]
