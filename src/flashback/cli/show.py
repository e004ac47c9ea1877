"""The command that shows what a run would be, or is, and trains nothing."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

import flashback as fb
from flashback.benchmarks import describe_benchmarks
from flashback.cli import options as opt
from flashback.cli.console import show_line, show_table
from flashback.config import to_dict
from flashback.errors import FlashbackError, require
from flashback.records import RunFolder, dotted, is_finished, read_config
from flashback.records.terms import ARMS, FLASHBACK

NET, AUTOMATIC = "host.net", "automatic"


def show(
    host: Annotated[str, Argument(help="The method, e.g. icarl, or the folder of a run.")],
    benchmark: opt.Benchmark = None,
    flashback: Annotated[bool, Option("--flashback", help="Show the settings of the arm with flashback.")] = False,
    recipe: opt.Recipe = None,
    data: opt.Data = None,
    host_file: opt.HostFile = None,
    settings: opt.Set = None,
) -> None:
    """Show what a run would do, or what it did.

    For a host: every setting with its source, and what both arms would cost. For the folder of a run: its settings and,
    once it is finished, its results. Nothing is trained. What `run` would refuse is refused here too.
    """
    from flashback.benchmarks.load import missing_data
    from flashback.hosts.external import find_hosts
    from flashback.recipes.resolving import check_flashback_is_on
    from flashback.training import build_method, open_benchmark

    find_hosts(host_file)
    overrides = opt.parse_settings(settings, benchmark=benchmark, recipe=recipe, flashback=flashback)
    path = Path(host)
    if host not in fb.HOSTS and (path.is_dir() or path.name == "config.yaml"):
        folder = path if path.is_dir() else path.parent
        require(not overrides, f"the run in {folder} has its settings already; leave out the options")
        show_folder(folder)
        return
    config = fb.configure(host, settings=overrides, data=data)
    check_flashback_is_on(config, overrides)
    missing = missing_data(config.benchmark.name, data)
    if missing is None:
        labels = open_benchmark(config, data, download=False, labels_only=True)
        build_method(config, labels, "cpu")  # refuses what a run would refuse
    opt.note_missing_recipe(host, config.benchmark.name, str(overrides.get("recipe", opt.DEFAULT_RECIPE)))
    show_settings(config, {"host.name", *dotted(overrides)})
    if missing is None:
        show_cost(host, overrides, data)
    else:
        show_line(f"What a run costs is not known before the data are there: {missing}.")


def show_folder(folder: Path) -> None:
    opt.check_one_run(folder)
    settings = dotted(read_config(folder))
    net = RunFolder(folder).read_run().get("net", AUTOMATIC)
    defaults = {NET: net, **benchmark_defaults(str(settings.get("benchmark.name")))}
    rows = ((key, as_text(defaults.get(key) if value in (None, "") else value)) for key, value in settings.items())
    show_table(title_of(settings), ("setting", "value"), rows, texts=2)
    if is_finished(folder):
        show_run(folder)
    else:
        show_line(f"Not finished; `flashback resume {folder}` continues it.")


def title_of(settings: Mapping[str, Any]) -> str:
    arm = "with" if settings.get("flashback.enabled") else "without"
    host, benchmark, recipe = (settings.get(key) for key in ("host.name", "benchmark.name", "recipe"))
    return f"{host} {arm} flashback on {benchmark}, recipe {recipe}"


def show_run(folder: Path) -> None:
    from flashback.cli.tables import show_results
    from flashback.results import read_run

    try:
        run = read_run(folder, str(folder))
    except FlashbackError as error:
        raise FlashbackError(f"the record in {folder} cannot be shown: {error}") from None
    show_results(run)
    show_line(f"Record: {folder}")


def show_settings(config: fb.RunConfig, user_keys: Collection[str]) -> None:
    settings = dotted(to_dict(config))
    sources, defaults = recipe_sources(config), benchmark_defaults(config.benchmark.name)
    rows = []
    for key, value in settings.items():
        if value is None and key in defaults:
            rows.append((key, defaults[key], "the benchmark's own"))
        elif (key, value) == (NET, ""):
            rows.append((key, AUTOMATIC, "by the size of the images"))
        else:
            rows.append((key, as_text(value), "given" if key in user_keys else sources.get(key, "default")))
    show_table(title_of(settings), ("setting", "value", "from"), rows, texts=3)


def benchmark_defaults(name: str) -> dict[str, str]:
    description = next((row for row in describe_benchmarks() if row["name"] == name), {"order": "identity"})
    return {f"benchmark.{key}": str(description[key]) for key in ("order", "sizes") if key in description}


def recipe_sources(config: fb.RunConfig) -> dict[str, str]:
    """Where the values of the recipe come from; a file of the user's lies on top of a shipped recipe."""
    from flashback.recipes.catalogue import find_recipe
    from flashback.recipes.resolving import is_recipe_file, recipe_from_file

    names, kind, flashback = (config.host.name, config.benchmark.name), config.recipe, config.flashback.enabled
    from_file = recipe_from_file(*names, Path(kind)) if is_recipe_file(kind) else None
    sources: dict[str, str] = {}
    for recipe in filter(None, (find_recipe(*names, from_file.kind if from_file else kind), from_file)):
        for key in recipe.values(flashback):
            replaced = key in recipe.flashback_settings and not flashback  # the source is that of the flashback arm
            sources[key] = f"the {recipe.kind} recipe" if replaced else recipe.sources[key]
    return sources


def as_text(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def show_cost(host: str, overrides: dict[str, Any], data: Path | None) -> None:
    from flashback.reports.words import plural
    from flashback.studies.preview import preview_cost

    rows = []
    for arm in ARMS if fb.HOSTS[host].has_knowledge else ARMS[:1]:
        try:
            config = fb.configure(host, settings={**overrides, "flashback.enabled": arm == FLASHBACK}, data=data)
        except FlashbackError:
            if arm == FLASHBACK and not overrides.get("flashback.enabled"):
                continue  # an arm nobody asked for may be impossible with these settings
            raise
        budget = preview_cost(config, data)
        last = max(entry["task"] for entry in budget)
        stages = [f"{entry['stage']}: {plural(entry['epochs'], 'epoch')}" for entry in budget if entry["task"] == last]
        totals = (sum(entry[what] for entry in budget) for what in ("epochs", "steps", "images"))
        rows.append((arm, ", ".join(stages), str(last + 1), *(f"{total:,}" for total in totals)))
    columns = ("", "stages of the last task", "tasks", "epochs", "steps", "images")
    show_table("what one run would spend", columns, rows, texts=2)
