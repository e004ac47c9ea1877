"""The command that shows what a run would be, or is, and trains nothing."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

import flashback as fb
from flashback.benchmarks import describe_benchmarks
from flashback.cli import options as opt
from flashback.cli.console import make_table, output, show_line
from flashback.config import to_dict
from flashback.errors import FlashbackError, require
from flashback.records import RunFolder, dotted, is_finished, read_config
from flashback.records.terms import ARMS, FLASHBACK

if TYPE_CHECKING:
    from flashback.recipes.catalogue import Recipe as ShippedRecipe

GIVEN, DEFAULT = "given", "default"
NET, AUTOMATIC = "host.net", "automatic"


def show(
    host: Annotated[str, typer.Argument(help="The method, e.g. icarl, or the folder of a run.")],
    benchmark: opt.Benchmark = None,
    flashback: Annotated[bool, typer.Option("--flashback", help="The settings of the arm with flashbacks.")] = False,
    recipe: opt.Recipe = None,
    data: opt.Data = None,
    host_file: opt.HostFile = None,
    settings: opt.Set = None,
) -> None:
    """What a run would do, or did.

    For a method, every setting with its source and what both arms would cost; for a folder, the settings of the run in
    it and, once it is finished, its results. Nothing is trained. What `run` would refuse is refused here too.
    """
    from flashback.benchmarks.load import missing_data
    from flashback.hosts.external import find_hosts
    from flashback.recipes.resolving import check_flashback_is_on
    from flashback.studies.preview import check_buildable

    find_hosts(host_file)
    given = opt.parse_settings(settings, benchmark=benchmark, recipe=recipe, flashback=flashback)
    if host not in fb.HOSTS and (folder := folder_of(host)) is not None:
        require(not given, f"the run in {folder} has its settings already; leave out the options")
        show_folder(folder)
        return
    config = fb.configure(host, settings=given, data=data)
    check_flashback_is_on(config, given)
    missing = missing_data(config.benchmark.name, data)
    if missing is None:
        check_buildable(config, data)
    opt.note_missing_recipe(host, config.benchmark.name, str(given.get("recipe", opt.DEFAULT_RECIPE)))
    output().print(settings_table(config, {"host.name", *dotted(given)}))
    if missing is None:
        output().print(cost_table(host, given, data))
    else:
        show_line(f"What a run costs is not known before the data are there: {missing}.")


# ---------------------------------------------------------------- a run that is there


def folder_of(name: str) -> Path | None:
    """The folder of a run, given itself or by its config.yaml."""
    path = Path(name)
    return path if path.is_dir() else path.parent if path.name == "config.yaml" else None


def show_folder(folder: Path) -> None:
    opt.check_one_run(folder)
    settings = dotted(read_config(folder))
    table = make_table(title_of(settings), "setting", "value", texts=2)
    defaults = benchmark_defaults(str(settings.get("benchmark.name"))) | {
        NET: RunFolder(folder).read_run().get("net", AUTOMATIC)
    }
    for key, value in settings.items():
        table.add_row(key, as_text(defaults.get(key) if value in (None, "") else value))
    output().print(table)
    if is_finished(folder):
        show_run(folder)
    else:
        show_line(f"Not finished; `flashback resume {folder}` goes on with it.")


def title_of(settings: Mapping[str, Any]) -> str:
    arm = "with" if settings.get("flashback.enabled") else "without"
    names = (settings.get(key) for key in ("host.name", "benchmark.name", "recipe"))
    return "{} {} flashback on {}, recipe {}".format(next(names), arm, *names)


def show_run(folder: Path) -> None:
    """Print the results of a finished run and what they cost."""
    from flashback.cli import tables
    from flashback.results import read_run

    try:
        run = read_run(folder, str(folder))
    except FlashbackError as error:
        raise FlashbackError(f"the record in {folder} cannot be shown: {error}") from None
    output().print(tables.run_table(run))
    show_line(tables.run_cost(run.record))
    show_line(f"Record: {folder}")


# ---------------------------------------------------------------- settings and their sources


def settings_table(config: fb.RunConfig, given: Collection[str]) -> Table:
    settings = dotted(to_dict(config))
    table = make_table(title_of(settings), "setting", "value", "from", texts=3)
    sources, defaults = recipe_sources(config), benchmark_defaults(config.benchmark.name)
    for key, value in settings.items():
        if value is None and key in defaults:
            table.add_row(key, as_text(defaults[key]), "the benchmark's own")
        elif (key, value) == (NET, ""):
            table.add_row(key, AUTOMATIC, "by the size of the images")
        else:
            table.add_row(key, as_text(value), GIVEN if key in given else sources.get(key, DEFAULT))
    return table


def benchmark_defaults(name: str) -> dict[str, str]:
    """The order and the sizes that a benchmark has by itself; a file has no sizes of its own."""
    described = next((row for row in describe_benchmarks() if row["name"] == name), {"order": "identity"})
    return {f"benchmark.{key}": str(described[key]) for key in ("order", "sizes") if key in described}


def recipe_sources(config: fb.RunConfig) -> dict[str, str]:
    """Where the values of the recipe come from; a file of the user's lies on top of a shipped recipe."""
    from flashback.recipes.catalogue import find_recipe, read_recipe_file

    names, kind, from_file = (config.host.name, config.benchmark.name), config.recipe, list["ShippedRecipe"]()
    if kind.endswith((".yaml", ".yml")):
        from_file = [recipe for recipe in read_recipe_file(Path(kind)) if recipe.is_for(*names)][:1]
        kind = from_file[0].kind
    sources: dict[str, str] = {}
    for recipe in filter(None, (find_recipe(*names, kind), *from_file)):
        sources |= {key: source_of(recipe, key, config) for key in recipe.values(config.flashback.enabled)}
    return sources


def source_of(recipe: ShippedRecipe, key: str, config: fb.RunConfig) -> str:
    """A recipe keeps one source for a key; if the flashback arm replaces the value, it is that of the replacement."""
    replaced = key in recipe.flashback_settings and not config.flashback.enabled
    return f"the {recipe.kind} recipe" if replaced else recipe.sources[key]


def as_text(value: Any) -> str:
    """A value as --set takes it."""
    return value if isinstance(value, str) and value else json.dumps(value)


# ---------------------------------------------------------------- what it would cost


def cost_table(host: str, given: dict[str, Any], data: Path | None) -> Table:
    """The cost of both arms, or of the host alone if flashback cannot be attached to it."""
    from flashback.reports.words import plural
    from flashback.studies.preview import preview_cost

    columns = ("", "stages of the last task", "tasks", "epochs", "steps", "images")
    table = make_table("what one run would spend", *columns, texts=2)
    for arm in ARMS if fb.HOSTS[host].has_knowledge else ARMS[:1]:
        try:
            config = fb.configure(host, settings={**given, "flashback.enabled": arm == FLASHBACK}, data=data)
        except FlashbackError:
            if arm == FLASHBACK and not given.get("flashback.enabled"):
                continue  # an arm nobody asked for may be impossible with these settings
            raise
        budget = preview_cost(config, data)
        last = max(entry["task"] for entry in budget)
        stages = ", ".join(
            f"{entry['stage']}: {plural(entry['epochs'], 'epoch')}" for entry in budget if entry["task"] == last
        )
        totals = (sum(entry[what] for entry in budget) for what in ("epochs", "steps", "images"))
        table.add_row(arm, stages, str(last + 1), *(f"{total:,}" for total in totals))
    return table
