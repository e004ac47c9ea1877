"""What a terminal shows of a run, of a comparison and of a report."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from flashback.cli.console import say, show_line, show_table
from flashback.metrics.statistics import number
from flashback.records.terms import ARMS, FLASHBACK, SETTINGS
from flashback.reports import Report
from flashback.reports.tables import OVERVIEW, against_table, methods_tables, row_cells
from flashback.reports.words import SETTING_TITLES, TITLES, heading, plural, seeds_without_value, unmatched_seeds
from flashback.results import Comparison, Cost, Run
from flashback.studies.jobs import group_failures

MOST_ANSWERS = 10  # comparisons that have a sentence each
OUTCOMES = {
    "better": "significantly better with flashback",
    "worse": "significantly worse with flashback",
    "not significant": "without a significant difference",
    "untested": "that allow no test",
}


def show_results(run: Run) -> None:
    arm = "with" if run.arm == FLASHBACK else "without"
    title = f"{run.host} {arm} flashback on {run.benchmark}, seed {run.seed}"
    rows = ([TITLES[m][1], *(number(run.metric(m, setting)) for setting in SETTINGS)] for m in run.metric_names)
    show_table(title, [f"{run.classifier} classifier", *SETTING_TITLES.values()], rows)
    cost = run.record.run
    sizes = ", ".join(f"{size:,} bytes of {kind} knowledge" for kind, size in cost["knowledge_bytes"].items())
    show_line(f"{cost['steps']:,} optimiser steps on {cost['images']:,} images, {sizes}, {cost['seconds']:.0f} s")


def show_comparison(comparison: Comparison) -> None:
    show_differences(comparison)
    columns = ("", "steps", "images", "stable bytes", "plastic bytes", "seconds")
    show_table(f"cost of one run: {comparison.budget}", columns, map(cost_row, ARMS, comparison.cost.values()))
    for note in comparison_notes(comparison):
        show_line(note)


def show_differences(comparison: Comparison) -> None:
    rows: list[list[str]] = []
    for setting in SETTINGS:
        cells = [[heading(row.metric), *row_cells(row)] for row in comparison.rows if row.setting == setting]
        rows += [[SETTING_TITLES[setting]], *cells]
    meanings = "; ".join(" ".join(TITLES[metric]) for metric in dict.fromkeys(row.metric for row in comparison.rows))
    title = f"{comparison.host} without and with flashback on {comparison.benchmark}"
    columns = ("", *ARMS, "difference", "95 % interval", "p")
    caption = f"mean ± deviation; arrows show which way is better\n{meanings}"
    show_table(f"{title}, {plural(len(comparison.seeds), 'seed')}", columns, rows, caption=caption)


def cost_row(arm: str, cost: Cost) -> list[str]:
    amounts = (cost.steps, cost.images, cost.bytes.get("stable"), cost.bytes.get("plastic"))
    return [arm, *(number(amount, ",.0f") for amount in amounts), number(cost.seconds, ".1f")]


def comparison_notes(comparison: Comparison) -> Iterable[str]:
    if sentence := unmatched_seeds(comparison):
        yield sentence
    yield from seeds_without_value(comparison)
    if comparison.differing_settings:
        yield f"The settings differ between the arms: {', '.join(comparison.differing_settings)}."
    if comparison.differing_environment:
        yield f"The runs differ in {', '.join(comparison.differing_environment)}."
    if comparison.reused:
        yield f"Reused: {plural(len(comparison.reused), 'finished run')}."
    if seeds := comparison.further_seeds:
        listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        yield f"Also counted: {listed}, already finished in this folder."
    if comparison.flashback:
        yield f"Flashback: {comparison.flashback}."
    yield comparison.sentence


def report_failures(failures: Mapping[str, str]) -> int:
    for name, problem in group_failures(failures).items():
        say(f"failed: {name}: {problem}")
    return 1 if failures else 0


def show_answers(report: Report) -> None:
    for line in answers(report):
        show_line(line)
    tables = methods_tables(report, report.metrics if report.chosen else OVERVIEW)
    for table, setting in product(tables, SETTINGS):
        title = f"{table.title}, {SETTING_TITLES[setting]}, best first"
        show_table(title, table.columns, table.rows[setting], caption="mean ± deviation over seeds")
    if report.baseline_comparisons:
        tests = against_table(report, ["average_accuracy"])
        title = f"against {report.baseline}: average accuracy, {SETTING_TITLES[SETTINGS[0]]}"
        show_table(title, tests.columns, tests.rows[SETTINGS[0]], tests.texts, caption=tests.notes[0])
    for line in [
        *(f"{test.name}: {test.answer(SETTINGS[0])}" for test in report.baseline_comparisons),
        *report.untested_remarks,
    ]:
        show_line(line)


def answers(report: Report) -> Iterator[str]:
    """A sentence for each comparison; if there are many, how often which outcome came out."""
    yield f"{report.contents}."
    if report.shared_changes:
        yield f"All methods: {report.shared_changes}."
    yield from report.code_remarks
    if len(report.comparisons) > MOST_ANSWERS:
        yield summary(report.comparisons)
    else:
        yield from (f"{pairing.name}: {pairing.answer(SETTINGS[0])}" for pairing in report.comparisons)
        yield from report.difference_remarks
    if report.singles and report.comparisons:
        yield f"{report.singles_in_words}."


def summary(comparisons: Sequence[Comparison]) -> str:
    outcomes = Counter(pairing.outcome(SETTINGS[0]) for pairing in comparisons)
    each = ", ".join(f"{outcomes[outcome]} {words}" for outcome, words in OUTCOMES.items() if outcomes[outcome])
    return f"By average accuracy, {SETTING_TITLES[SETTINGS[0]]}: {each}. The report has the answers."
