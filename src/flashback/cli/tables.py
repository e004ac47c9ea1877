"""Tables for people: what there is, what a run achieved, what a comparison found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashback.benchmarks import describe_benchmarks
from flashback.hosts import HOSTS
from flashback.nets import NETS
from flashback.recipes import list_recipes
from flashback.records import RunRecord
from flashback.records.terms import ARMS, FLASHBACK, SETTINGS
from flashback.reports.overview import against_cells, method_groups
from flashback.reports.pairings import Report
from flashback.reports.reading import Run
from flashback.reports.words import (
    HIGHER_IS_BETTER,
    SETTING_TITLES,
    TITLES,
    interval,
    missing_values,
    number,
    plural,
    probability,
    signed,
    spread,
    unmatched_seeds,
    unvalued_seeds,
)
from flashback.studies.comparison import Comparison, Row, metrics_of
from flashback.studies.jobs import group_failures
from flashback.studies.sweeps import read_sweep, shipped_sweeps

ANY_WIDTH = 1000  # of a terminal that no table fills
MOST = 40  # methods that a terminal shows
WIDE = 96  # columns of a terminal that has room between the columns of a comparison; 80 hold them all


def arrow(metric: str) -> str:
    """Marks what is better when it is less."""
    return "" if HIGHER_IS_BETTER[metric] else " ↓"


def make_table(title: str, *columns: str, texts: int = 1) -> Table:
    """The first `texts` columns hold words, the others numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        is_text = place < texts
        table.add_column(column, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    return table


# ---------------------------------------------------------------- what there is


def hosts_table() -> Table:
    table = make_table("hosts", "name", "family", "flashback", "what it does", texts=4)
    for name in HOSTS:
        host = HOSTS[name]
        table.add_row(name, host.family, "yes" if host.has_knowledge else "no", first_line(host.__doc__))
    return table


def benchmarks_table() -> Table:
    rows = describe_benchmarks()
    table = make_table("benchmarks", *rows[0], texts=len(rows[0]))
    for row in rows:
        table.add_row(*map(str, row.values()))
    return table


def nets_table() -> Table:
    table = make_table("nets", "name", "what it is", texts=2)
    for name in NETS:
        table.add_row(name, first_line(NETS[name].__doc__))
    table.add_row("timm:MODEL[:pretrained][:cls]", "Any image model of timm, if it is installed; cls: its class token.")
    return table


def recipes_table() -> Table:
    table = make_table("recipes", "host", "benchmark", "kind", "note", texts=4)
    for recipe in list_recipes():
        table.add_row(recipe.host, recipe.benchmark, recipe.kind, recipe.note)
    return table


def sweeps_table() -> Table:
    table = make_table("sweeps", "name", "what it is", texts=2)
    for name in sorted(shipped_sweeps()):
        table.add_row(name, read_sweep(name).title)
    return table


SHORT_LISTS = {"hosts": hosts_table, "benchmarks": benchmarks_table, "nets": nets_table}
LISTS = {**SHORT_LISTS, "recipes": recipes_table, "sweeps": sweeps_table}


def further_lists() -> str:
    counts = f"{plural(len(list_recipes()), 'recipe')} (flashback list recipes)"
    return f"There are also {counts} and {plural(len(shipped_sweeps()), 'sweep')} (flashback list sweeps)."


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


# ---------------------------------------------------------------- one run


def run_table(run: Run) -> Table:
    title = f"{titled(run.host, run.arm == FLASHBACK, run.benchmark)}, seed {run.seed}"
    table = make_table(title, f"{run.classifier} classifier", *SETTING_TITLES.values())
    for metric in metrics_of([run.record]):
        name = f"{TITLES[metric][1]}{arrow(metric)}"
        table.add_row(name, *(number(run.record.results[setting][metric]) for setting in SETTINGS))
    return table


def titled(host: object, flashback: object, benchmark: object) -> str:
    return f"{host} {'with' if flashback else 'without'} flashback on {benchmark}"


def run_cost(record: RunRecord) -> str:
    run = record.run
    sizes = ", ".join(f"{size:,} bytes of {kind} knowledge" for kind, size in run["knowledge_bytes"].items())
    return f"{run['steps']:,} optimiser steps on {run['images']:,} images, {sizes}, {run['seconds']:.0f} s"


# ---------------------------------------------------------------- a comparison


def comparison_table(comparison: Comparison, width: int) -> Table:
    """Rows have the short names of the reports, so that all columns fit 80 letters."""
    table = comparison_rows(comparison, width)
    fits = Console(width=ANY_WIDTH).measure(table).maximum <= width
    return table if fits else comparison_rows(comparison, width, broken="-\n")


def comparison_rows(comparison: Comparison, width: int, broken: str = "-") -> Table:
    """The names of settings are the longest in their column; `broken` takes the place of their hyphen."""
    seeds = f"{len(comparison.seeds)} seed{'s' * (len(comparison.seeds) > 1)}"
    title = f"{comparison.host} without and with flashback on {comparison.benchmark}, {seeds}"
    table = make_table(title, "", *ARMS, "difference", "95 % interval", "p")
    if width < WIDE:
        table.padding, table.show_edge = 0, False
    metrics = dict.fromkeys(row.metric for row in comparison.rows)
    meanings = "; ".join(" ".join(TITLES[metric]) for metric in metrics)
    empty = "".join(f"\n{why[0].upper()}{why[1:]}" for why in missing_values(comparison, list(metrics)))
    table.caption, table.caption_justify = f"mean ± deviation; ↓ less is better\n{meanings}{empty}", "left"
    for setting in SETTINGS:
        table.add_row(Text(SETTING_TITLES[setting].replace("-", broken), style="bold"))
        for row in comparison.rows:
            if row.setting == setting:
                table.add_row(f"  {TITLES[row.metric][0]}{arrow(row.metric)}", *row_cells(row))
        table.add_section()
    return table


# ---------------------------------------------------------------- methods of a report


def methods_table(report: Report, setting: str, metrics: Sequence[str]) -> Table:
    """Every method with its means, in a block for every protocol; of very many the best."""
    groups = method_groups(report, setting, metrics)
    title = f"{SETTING_TITLES[setting]}, best first"
    table = make_table(title, "method", "seeds", *(f"{TITLES[metric][0]}{arrow(metric)}" for metric in metrics))
    many = sum(map(len, groups.values())) > MOST
    most = max(1, MOST // len(groups)) if many else MOST
    for name, rows in groups.items():
        if len(groups) > 1:
            table.add_section()
            table.add_row(Text(f"on {name}", style="bold"))
        for row in rows[:most]:
            table.add_row(row.method.name, str(row.seeds), *row.cells)
    left = sum(len(rows[most:]) for rows in groups.values())
    more = f"; {left} more in the report" if left else ""
    table.caption, table.caption_justify = f"mean ± deviation over seeds{more}; ↓ less is better", "left"
    return table


def against_table(report: Report, setting: str) -> Table:
    """The average accuracy of every method beside that of the one it is tested against."""
    title = f"against {report.baseline}: average accuracy, {SETTING_TITLES[setting]}"
    table = make_table(title, "method", "against", "difference", "95 % interval", "p", "p adj.", "pairs", texts=2)
    table.caption = "paired t-test by seed; p adj. is adjusted for the number of tests (Holm)"
    table.caption_justify = "left"
    for name, base, _, _, _, *tested in against_cells(report, setting, ["average_accuracy"]):
        table.add_row(name, base, *tested)
    return table


def row_cells(row: Row) -> list[str]:
    means = [spread(row.mean[arm], row.deviation[arm]) for arm in ARMS]
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
    if said := unmatched_seeds(comparison):
        yield said
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


def failure_lines(failures: Mapping[str, Any]) -> Iterable[str]:
    return (f"failed: {name}: {problem}" for name, problem in group_failures(failures).items())
