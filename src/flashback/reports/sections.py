"""The sections of a report that say what its answers rest on: budget, statistics, the paper, the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashback.metrics import PairedTest, verdict
from flashback.metrics.statistics import FEW
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.markup import Html, bullets, bullets_by_setting, element, join, note, row, table
from flashback.reports.pairings import Pairing, Report
from flashback.reports.printed import (
    implied_new_task_accuracies,
    inconsistencies,
    notes_on,
    over_tasks_in_words,
    printed_tests,
    references_beside,
)
from flashback.reports.words import ABSENT, ARM_TITLES, SIGNIFICANT, TITLES, number, plural, probability, signed, spread

SENTENCES = 50  # a longer list is read by nobody; the table has them all


# ---------------------------------------------------------------- what it cost


def budget(report: Report) -> Html:
    rows = []
    for pairing in report.pairings:
        for arm, cost in pairing.comparison.cost.items():
            amounts = (cost.steps, cost.images, cost.seconds, cost.bytes.get("stable"), cost.bytes.get("plastic"))
            rows.append(
                row(pairing.name, (ARM_TITLES[arm], pairing.budget), [number(amount, ",.0f") for amount in amounts])
            )
    columns = ("method", "arm", "budget", "optimiser steps", "images", "seconds", "stable bytes", "plastic bytes")
    return join(
        [
            table(columns, {"": rows}, texts=3, title="Budget"),
            note(
                "What one run was measured to spend: the mean over seeds, and the most bytes of stable and of plastic "
                "knowledge. The budget is equal where the arms of every seed took as many steps and saw as many "
                "images. Runs may have shared the device, so seconds are no measure of what flashback costs."
            ),
        ]
    )


# ---------------------------------------------------------------- tests of significance


def statistics(report: Report) -> Html:
    complete = report.comparisons
    if not complete:
        return Html()
    blocks = (by_seed(complete), over_methods(report), over_tasks(complete))
    return element("div", *(element("div", block, class_="card wide") for block in blocks if block), class_="grid")


def by_seed(complete: Sequence[Pairing]) -> Html:
    few = sum(pairing.row(SETTINGS[0]).test.pairs < FEW for pairing in complete)
    tests = sum(pairing.row(s).test.p is not None for pairing in complete for s in SETTINGS)
    shown = complete[:SENTENCES]
    said = {s: [f"{pairing.name}: {pairing.verdict(s)}" for pairing in shown] for s in SETTINGS}
    too_few = (
        f"{few} of {plural(len(complete), 'comparison')} with fewer than {FEW} pairs: a t-test then misses most "
        "differences of the size seen in continual learning, so not significant is not the same as no difference."
    )
    by_chance = (
        f"Of {plural(tests, 'test')} at the 5 % level, {tests * SIGNIFICANT:.1f} would be significant by chance alone."
    )
    return join(
        [
            element("h3", "Paired t-test by seed, within a method"),
            element("p", "The test of this report: does flashback change this method? Two-sided, one pair per seed."),
            bullets_by_setting(said),
            element("p", too_few) if few else "",
            element("p", by_chance) if tests else "",
        ]
    )


def over_methods(report: Report) -> Html:
    sentences = []
    for benchmark in report.benchmarks:
        test, printed = report.over_methods(benchmark), printed_tests().get(benchmark)
        if test is not None:
            beside = f" The paper prints t = {printed['t']}, p = {printed['p']}." if printed else ""
            sentences.append(f"{benchmark}: {with_t(test)}{beside}")
    if not sentences:
        return Html()
    about = (
        "One pair per method and setting, of average accuracies that are means over seeds. It asks whether the gain "
        "averaged over these methods is above zero, and says nothing about seeds or any one method. Runs that were "
        "shortened or tested on validation images do not count."
    )
    return join([element("h3", "The paper's test over methods"), element("p", about), bullets(sentences)])


def over_tasks(complete: Sequence[Pairing]) -> Html:
    about = (
        "One pair per task, of the average accuracies after it; the paper does this for oEWC. The pairs come from one "
        "sequence of tasks and are not independent, so its p is too small. It is here for comparison alone."
    )
    shown = complete[:SENTENCES]
    said = {s: [f"{pairing.name}: {with_t(pairing.over_tasks(s))}" for pairing in shown] for s in SETTINGS}
    hosts = dict.fromkeys(pairing.any_run.host for pairing in shown if pairing.printed)
    title = element("h3", "The paper's test over the tasks of a run")
    printed = [f"{host}, class-incremental: {words}" for host in hosts if (words := over_tasks_in_words(host))]
    beside = bullets(printed) if printed else Html()
    return join([title, element("p", about), bullets_by_setting(said), beside])


def with_t(test: PairedTest) -> str:
    return f"t = {number(test.t)}. {verdict(test)}"


# ---------------------------------------------------------------- the paper


def paper(report: Report) -> Html:
    rows = printed_rows(report)
    whole = Report([pairing for pairing in report.pairings if pairing.is_whole], [], {})
    wrong, implied = (find(whole.benchmarks) for find in (inconsistencies, implied_new_task_accuracies))
    parts: list[Html] = []
    if any(rows.values()):
        pairs = [f"{what}, {whose}" for what in ("host", "flashback", "difference") for whose in ("printed", "here")]
        columns = ("method", "metric", "printed in", *pairs)
        parts.append(table(columns, rows, texts=3, title="The paper's values beside ours"))
        parts.append(
            note(
                "Settings here may differ from the paper's, but only runs on all tasks and all training images, with "
                "the epochs of their recipe, stand here. A quoted value comes from an earlier publication."
            )
        )
    shown = [printed for pairing in report.pairings for printed in pairing.printed]
    if notes := notes_on(shown):
        parts.append(bullets(notes))
    if beside := references_beside(shown):
        parts += [element("h3", "Quoted in the same tables, not run here"), bullets(beside)]
    if wrong:
        parts += [element("h3", "Printed values that do not follow from their tables"), bullets(wrong)]
    if implied:
        parts += [element("h3", "What printed values imply"), bullets(implied)]
    return join(parts)


def printed_rows(report: Report) -> dict[str, list[Html]]:
    rows: dict[str, list[Html]] = {setting: [] for setting in SETTINGS}
    for pairing in report.pairings:
        for printed in pairing.printed:
            found = pairing.row(printed.setting, printed.metric)
            numbers: list[str | Html] = []
            for arm in ARMS:
                theirs = element("td", printed.text(arm) or ABSENT, class_="n long")
                numbers += [theirs, spread(found.mean[arm], found.deviation[arm])]
            numbers += [printed_difference(printed.value), signed(found.test.difference)]
            rows[printed.setting].append(row(pairing.name, (TITLES[printed.metric][0], printed.where), numbers))
    return rows


def printed_difference(value: Mapping[str, float]) -> str:
    return signed(value[FLASHBACK] - value[HOST]) if len(value) == len(ARMS) else ABSENT


# ---------------------------------------------------------------- the runs


def runs(report: Report) -> Html:
    parts = [bullets([*report.code_remarks, *remarks(report)])]
    if report.skipped:
        parts.append(element("h3", f"{plural(len(report.skipped), 'folder')} left out"))
        parts.append(bullets(f"{name}: {reason}" for name, reason in report.skipped.items()))
    rows = []
    for run in report.runs:
        made = [str(run.record.run.get(key) or ABSENT) for key in ("device", "precision", "commit")]
        texts = (run.host, run.benchmark, ARM_TITLES[run.arm], *(text[:40] for text in made))
        rows.append(row(run.name, texts, [str(run.seed), number(run.record.results[SETTINGS[0]]["average_accuracy"])]))
    columns = ("folder", "host", "benchmark", "arm", "device", "precision", "commit", "seed", "AA")
    listed = table(columns, {"": rows}, texts=7, title="Runs")
    parts.append(element("details", element("summary", plural(len(rows), "run")), listed))
    return join([*parts, other_classifiers(report)])


def remarks(report: Report) -> list[str]:
    """Where runs that are compared were not made alike."""
    found = []
    for pairing in report.pairings:
        comparison = pairing.comparison
        if comparison.differing_settings:
            found.append(f"{pairing.name}: the arms differ in {', '.join(comparison.differing_settings)}.")
        if comparison.differing_environment:
            found.append(f"{pairing.name}: the runs differ in {', '.join(comparison.differing_environment)}.")
    return found


def other_classifiers(report: Report) -> Html:
    rows: dict[str, list[Html]] = {setting: [] for setting in SETTINGS}
    for pairing in report.pairings:
        for classifier, both in pairing.other_classifiers().items():
            for found in both:
                means = [spread(found.mean[arm], found.deviation[arm]) for arm in ARMS]
                test = [signed(found.test.difference), probability(found.test.p)]
                rows[found.setting].append(row(pairing.name, [classifier], means + test))
    if not any(rows.values()):
        return Html()
    columns = ("method", "classifier", "host", "with flashback", "difference", "p")
    title = "Average accuracy by the further classifiers of these hosts"
    return element("details", element("summary", title), table(columns, rows, texts=2, title=title))
