"""The command that tells what a run would be, or is, and makes none."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from flashback.benchmarks import describe_benchmarks
from flashback.benchmarks.load import missing_data
from flashback.cli import tables
from flashback.cli.options import Data, HostFile, Set, check_one_run, parse_settings, say_missing_recipe
from flashback.cli.progress import output
from flashback.config import RunConfig, to_dict
from flashback.errors import FlashbackError, require
from flashback.hosts import HOSTS
from flashback.hosts.outside import find_hosts
from flashback.recipes import Recipe, configure, find_recipe
from flashback.recipes.catalogue import read_recipe_file
from flashback.records import RunFolder, dotted, is_finished, read_config
from flashback.records.terms import ARMS, FLASHBACK
from flashback.reports.reading import read_run
from flashback.reports.words import plural
from flashback.studies.preview import preview_cost

GIVEN, DEFAULT = "given", "default"
NET, AUTOMATIC = "host.net", "automatic"


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    host: Annotated[str, typer.Argument(help="The method, e.g. icarl, or the folder of a run.")],
    benchmark: Annotated[str | None, typer.Option(help="A name, an .npz or a folder.")] = None,
    flashback: Annotated[bool, typer.Option("--flashback", help="The settings of the arm with flashbacks.")] = False,
    recipe: Annotated[str | None, typer.Option(help="controlled, anchor, as-published, defaults, or a file.")] = None,
    data: Data = None,
    host_file: HostFile = None,
    settings: Set = None,
) -> None:
    """What a run would do, or did.

    Of a method, every setting with its source and what both arms would cost; of a folder, the settings of the run in it
    and, once it is finished, its results. Nothing is trained.
    """
    find_hosts(host_file)
    given = parse_settings(settings, {"--benchmark": benchmark, "--recipe": recipe, "--flashback": flashback or None})
    if host not in HOSTS and (folder := folder_of(host)) is not None:
        require(not given, f"the run in {folder} has its settings already; leave out the options")
        show_folder(folder)
        return
    config = configure(host, flashback=False, settings=given, data=data)
    chosen = config.benchmark.name
    say_missing_recipe(host, chosen, str(given.get("recipe", "controlled")))
    console = output()
    console.print(settings_table(config, {"host.name", *dotted(given)}))
    missing = missing_data(chosen, data)
    if missing is None:
        console.print(cost_table(host, given, data))
    else:
        console.print(f"What a run costs is not known before the data are there: {missing}.", soft_wrap=True)


# ---------------------------------------------------------------- a run that is there


def folder_of(name: str) -> Path | None:
    """The folder of a run, named itself or by its config.yaml."""
    path = Path(name)
    return path if path.is_dir() else path.parent if path.name == "config.yaml" else None


def show_folder(folder: Path) -> None:
    check_one_run(folder)
    settings = dotted(read_config(folder))
    names = (settings.get(key) for key in ("host.name", "flashback.enabled", "benchmark.name"))
    table = tables.make_table(f"{tables.titled(*names)}, recipe {settings.get('recipe')}", "setting", "value", texts=2)
    own = benchmarks_own(str(settings.get("benchmark.name"))) | {
        NET: RunFolder(folder).read_run().get("net", AUTOMATIC)
    }
    for key, value in settings.items():
        table.add_row(key, shown(own.get(key) if value in (None, "") else value))
    output().print(table)
    if is_finished(folder):
        show_run(folder)
    else:
        output().print(f"Not finished; `flashback resume {folder}` goes on with it.", soft_wrap=True)


def show_run(folder: Path) -> None:
    """The results of a finished run, and what they cost."""
    try:
        run = read_run(folder, str(folder))
    except FlashbackError as error:
        raise FlashbackError(f"the record in {folder} cannot be shown: {error}") from None
    console = output()
    console.print(tables.run_table(run))
    console.print(tables.run_cost(run.record), soft_wrap=True)
    console.print(f"Record: {folder}", soft_wrap=True)


# ---------------------------------------------------------------- settings and their sources


def settings_table(config: RunConfig, given: Collection[str]) -> Table:
    names = (config.host.name, config.flashback.enabled, config.benchmark.name)
    title = f"{tables.titled(*names)}, recipe {config.recipe}"
    table = tables.make_table(title, "setting", "value", "from", texts=3)
    sources = recipe_sources(config)
    own = benchmarks_own(config.benchmark.name)
    for key, value in dotted(to_dict(config)).items():
        if value is None and key in own:
            table.add_row(key, shown(own[key]), "the benchmark's own")
        elif (key, value) == (NET, ""):
            table.add_row(key, AUTOMATIC, "by the size of the images")
        else:
            table.add_row(key, shown(value), GIVEN if key in given else sources.get(key, DEFAULT))
    return table


def benchmarks_own(name: str) -> dict[str, str]:
    """What stands where a configuration leaves order and sizes to the benchmark; files have no sizes of their own."""
    described = next((row for row in describe_benchmarks() if row["name"] == name), {"order": "identity"})
    return {f"benchmark.{key}": str(described[key]) for key in ("order", "sizes") if key in described}


def recipe_sources(config: RunConfig) -> dict[str, str]:
    """Where the values of the recipe come from, as it says; a file of one's own lies on top of a shipped recipe."""
    names, kind, own = (config.host.name, config.benchmark.name), config.recipe, []
    if kind.endswith((".yaml", ".yml")):
        own = [recipe for recipe in read_recipe_file(Path(kind)) if recipe.is_for(*names)][:1]
        kind = own[0].kind
    found: dict[str, str] = {}
    for recipe in filter(None, (find_recipe(*names, kind), *own)):
        found |= {key: source_of(recipe, key, config) for key in recipe.values(config.flashback.enabled)}
    return found


def source_of(recipe: Recipe, key: str, config: RunConfig) -> str:
    """The source of a value that only the arm with flashback replaces is not kept beside that of the replacement."""
    replaced = key in recipe.flashback_settings and not config.flashback.enabled
    return f"the {recipe.kind} recipe" if replaced else recipe.sources[key]


def shown(value: Any) -> str:
    """As --set takes it."""
    return value if isinstance(value, str) and value else json.dumps(value)


# ---------------------------------------------------------------- what it would cost


def cost_table(host: str, given: dict[str, Any], data: Path | None) -> Table:
    """Both arms; the one with flashback only where there can be one."""
    columns = ("", "stages of the last task", "tasks", "epochs", "steps", "images")
    table = tables.make_table("what one run would spend", *columns, texts=2)
    for arm in ARMS if HOSTS[host].has_knowledge else ARMS[:1]:
        try:
            config = configure(host, settings={**given, "flashback.enabled": arm == FLASHBACK}, data=data)
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
