"""Tables of one run and of a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import typer
from rich.table import Table
from rich.text import Text

from flashback.cli.console import make_table
from flashback.records import RunRecord
from flashback.records.terms import ARMS, FLASHBACK, SETTINGS
from flashback.reports.words import (
    HIGHER_IS_BETTER,
    SETTING_TITLES,
    TITLES,
    interval,
    number,
    plural,
    probability,
    sample_text,
    signed,
    unmatched_seeds,
    unvalued_seeds,
)
from flashback.results import Comparison, Row, Run
from flashback.studies.jobs import group_failures

WIDE = 96  # columns of a terminal that has room between the columns of a comparison; 80 hold them all


def arrow(metric: str) -> str:
    return "" if HIGHER_IS_BETTER[metric] else " ↓"


# ---------------------------------------------------------------- one run


def run_table(run: Run) -> Table:
    arm = "with" if run.arm == FLASHBACK else "without"
    title = f"{run.host} {arm} flashback on {run.benchmark}, seed {run.seed}"
    table = make_table(title, f"{run.classifier} classifier", *SETTING_TITLES.values())
    for metric in run.metric_names:
        name = f"{TITLES[metric][1]}{arrow(metric)}"
        table.add_row(name, *(number(run.metric(metric, setting)) for setting in SETTINGS))
    return table


def run_cost(record: RunRecord) -> str:
    run = record.run
    sizes = ", ".join(f"{size:,} bytes of {kind} knowledge" for kind, size in run["knowledge_bytes"].items())
    return f"{run['steps']:,} optimiser steps on {run['images']:,} images, {sizes}, {run['seconds']:.0f} s"


# ---------------------------------------------------------------- a comparison


def comparison_table(comparison: Comparison, width: int) -> Table:
    seeds = f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)}"
    title = f"{comparison.host} without and with flashback on {comparison.benchmark}, {seeds}"
    table = make_table(title, "", *ARMS, "difference", "95 % interval", "p")
    if width < WIDE:
        table.padding, table.show_edge = 0, False
    metrics = dict.fromkeys(row.metric for row in comparison.rows)
    meanings = "; ".join(" ".join(TITLES[metric]) for metric in metrics)
    table.caption, table.caption_justify = f"mean ± deviation; ↓ less is better\n{meanings}", "left"
    for setting in SETTINGS:
        table.add_row(Text(SETTING_TITLES[setting], style="bold"))
        for row in comparison.rows:
            if row.setting == setting:
                table.add_row(f"  {TITLES[row.metric][0]}{arrow(row.metric)}", *row_cells(row))
        table.add_section()
    return table


def row_cells(row: Row) -> list[str]:
    means = [sample_text(sample) for sample in (row.left, row.right)]
    return [*means, signed(row.test.difference), interval(row.test), probability(row.test.p)]


def cost_table(comparison: Comparison) -> Table:
    columns = ("steps", "images", "stable bytes", "plastic bytes", "seconds")
    table = make_table(f"cost of one run: {comparison.budget}", "", *columns)
    for arm, cost in comparison.cost.items():
        amounts: Sequence[float | None] = (cost.steps, cost.images, cost.bytes.get("stable"), cost.bytes.get("plastic"))
        table.add_row(arm, *(number(amount, ",.0f") for amount in amounts), number(cost.seconds, ".1f"))
    return table


def comparison_notes(comparison: Comparison) -> Iterable[str]:
    """What a reader has to know besides the numbers."""
    if sentence := unmatched_seeds(comparison):
        yield sentence
    yield from unvalued_seeds(comparison)
    if comparison.differing_settings:
        yield f"The settings differ between the arms: {', '.join(comparison.differing_settings)}."
    if comparison.differing_environment:
        yield f"Not all runs were made alike: {', '.join(comparison.differing_environment)} differ."
    if comparison.reused:
        yield f"Reused: {plural(len(comparison.reused), 'finished run')}."
    if seeds := comparison.further_seeds:
        listed = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        yield f"Of the folder, finished already and counted too: {listed}."
    if comparison.flashback:
        yield f"Flashback: {comparison.flashback}."
    yield comparison.sentence


def report_failures(failures: Mapping[str, str]) -> int:
    """Name the runs that failed on stderr; returns the exit code."""
    for name, problem in group_failures(failures).items():
        typer.echo(f"failed: {name}: {problem}", err=True)
    return 1 if failures else 0
