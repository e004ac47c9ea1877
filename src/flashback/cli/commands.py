"""The commands list, run, resume and compare, and the application that has all commands.

What a command needs is imported when it is called, so that --help and a misspelt option are answered at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import flashback as fb
from flashback.cli import options as opt
from flashback.cli.bench import bench, check
from flashback.cli.console import output, show_line
from flashback.cli.report import report
from flashback.cli.show import show, show_run
from flashback.cli.studies import cka, sweep, tune
from flashback.config import set_dotted, to_dict
from flashback.errors import FlashbackError, Interrupted, require, unknown
from flashback.plain_yaml import read_yaml
from flashback.records import RunFolder

DEFAULT_SEEDS = 3


class Saved(Exception):  # noqa: N818 - not an error: the user asked for it
    """A command was interrupted after it saved its state."""


class Commands(TyperGroup):
    """Tells an interruption with a saved state from any other; typer turns both into an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted:
            raise Saved from None


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, cls=Commands)


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flashback {fb.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Continual learning, with and without flashbacks."""


@app.command("list")
def list_names(
    what: Annotated[
        str | None, typer.Argument(help="hosts, benchmarks, nets, recipes or sweeps; default: the first three.")
    ] = None,
    host_file: opt.HostFile = None,
) -> None:
    """What there is to choose from."""
    from flashback.cli.listing import LISTS, SHORT_LISTS, list_table

    if what is not None and what not in LISTS:
        raise unknown("list", what, LISTS)
    for name in [what] if what else SHORT_LISTS:
        output().print(list_table(name, host_file))
    if what is None:
        show_line("There are also recipes (flashback list recipes) and sweeps (flashback list sweeps).")


@app.command()
def run(
    host: Annotated[str, typer.Argument(help="The method, e.g. icarl, or the config.yaml of an earlier run.")],
    benchmark: opt.Benchmark = None,
    flashback: Annotated[bool, typer.Option("--flashback", help="Train with flashbacks.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides all randomness; default: 0.")] = None,
    out: opt.Out = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    recipe: opt.Recipe = None,
    host_file: opt.HostFile = None,
    fast: opt.Fast = False,
    precision: opt.Precision = None,
    track: opt.Track = None,
    settings: opt.Set = None,
) -> None:
    """Train one host, bare or with flashbacks.

    It is evaluated after every task, in both settings, and leaves its record in a folder. The same command goes on with
    an interrupted run and shows a finished one. To turn flashbacks of a config.yaml off, use --set
    flashback.enabled=false.
    """
    from flashback.cli.progress import ProgressView
    from flashback.hosts.external import find_hosts
    from flashback.recipes.resolving import check_flashback_is_on
    from flashback.training.finished import finished_run

    find_hosts(host_file)
    given = opt.parse_settings(
        settings, benchmark=benchmark, seed=seed, flashback=flashback, recipe=recipe, fast=fast, precision=precision
    )
    if host.endswith((".yaml", ".yml")):
        require(recipe is None, "--recipe does not go with a config.yaml, which is resolved already; use --set")
        config = reconfigure(Path(host), given, data)
    else:
        require(
            host in fb.HOSTS or not Path(host).is_dir(),
            f"{host} is a folder: `flashback resume {host}` goes on with the run in it, "
            f"`flashback run {host}/config.yaml` starts it again elsewhere",
        )
        config = fb.configure(host, settings=given, data=data)
        opt.note_missing_recipe(host, config.benchmark.name, given.get("recipe", opt.DEFAULT_RECIPE))
    check_flashback_is_on(config, given)
    folder = out or default_folder(config)
    if finished_run(folder, to_dict(config), data=data) is not None:
        show_run(folder)
        show_line("Finished already, with the same settings: nothing was trained.")
        return
    with ProgressView() as view:
        observers = [view.watch(config.host.name, name_and_tasks(folder)[1])]
        fb.run(config, out=folder, data=data, device=device, observers=observers, track=track or [])
    show_run(folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an unfinished run.")],
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    track: opt.Track = None,
) -> None:
    """Go on with a run, exactly where it stopped."""
    from flashback.cli.progress import ProgressView
    from flashback.hosts.external import find_hosts

    find_hosts(host_file)
    opt.check_one_run(folder)
    with ProgressView() as view:
        observers = [view.watch(*name_and_tasks(folder))]
        fb.resume(folder, data=data, device=device, observers=observers, track=track or [])
    show_run(folder)


@app.command()
def compare(
    host: opt.Host,
    benchmark: opt.Benchmark = None,
    seeds: Annotated[str | None, typer.Option(metavar="INTEGER", help="How many: 0, 1, 2, ...; default: 3.")] = None,
    seed_list: Annotated[str | None, typer.Option(help="Or the seeds themselves: 123,246,369.")] = None,
    out: opt.Out = None,
    jobs: opt.Jobs = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    recipe: opt.Recipe = None,
    host_file: opt.HostFile = None,
    fast: opt.Fast = False,
    precision: opt.Precision = None,
    track: opt.Track = None,
    settings: opt.Set = None,
) -> int:
    """Does flashback help this host?

    Trains both arms with the same settings, seeds and number of steps, and answers with a table and a paired test.
    Finished runs in the folder are used again.
    """
    from flashback.cli import tables
    from flashback.cli.progress import ProgressView
    from flashback.studies.comparison import NothingToCompareError

    benchmark = benchmark or opt.DEFAULT_BENCHMARK
    folder = out or Path("runs") / f"compare-{host}-{Path(benchmark).stem}"
    opt.note_missing_recipe(host, benchmark, recipe or opt.DEFAULT_RECIPE, host_file)
    with ProgressView() as view:
        try:
            comparison = fb.compare(
                host,
                benchmark,
                seeds=choose_seeds(seeds, seed_list),
                out=folder,
                recipe=recipe or opt.DEFAULT_RECIPE,
                settings=opt.parse_settings(settings, fast=fast, precision=precision),
                jobs=jobs,
                data=data,
                device=device,
                host_file=host_file,
                track=track or [],
                watch=view.watch,
            )
        except NothingToCompareError as failed:  # show what there is all the same
            comparison = failed.comparison
    console = output()
    console.print(tables.comparison_table(comparison, console.width), tables.cost_table(comparison))
    for note in tables.comparison_notes(comparison):
        show_line(note)
    show_line(f"Records: {folder}")
    return tables.report_failures(comparison.failures)


for command in (report, sweep, tune, cka, show, check, bench):
    app.command()(command)


# ---------------------------------------------------------------- from options to arguments


def choose_seeds(count: str | None, listed: str | None) -> list[int]:
    require(count is None or listed is None, "give --seeds or --seed-list, not both")
    try:
        if listed is not None:
            return [int(seed) for seed in listed.split(",")]
        return list(range(DEFAULT_SEEDS if count is None else int(count)))
    except ValueError:
        raise FlashbackError(
            f"--seeds says how many seeds, --seed-list names them, such as 123,246,369; not '{listed or count}'"
        ) from None


def reconfigure(path: Path, changes: dict[str, Any], data: Path | None) -> fb.RunConfig:
    """The configuration of an earlier run, with some settings changed."""
    from flashback.recipes import config_from_dict

    try:
        values = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"{path} cannot be read; give the config.yaml of a run") from None
    require(isinstance(values, dict), f"{path} holds no mapping of keys; give the config.yaml of a run")
    for key, value in changes.items():
        set_dotted(values, key, value)
    return config_from_dict(values, data)


def default_folder(config: fb.RunConfig) -> Path:
    arm = "flashback" if config.flashback.enabled else "host"
    return Path("runs") / f"{config.host.name}-{Path(config.benchmark.name).stem}-{arm}-seed{config.seed}"


def name_and_tasks(folder: Path) -> tuple[str, int | None]:
    """The host and the number of tasks of a run that has begun, else the name of the folder."""
    record = RunFolder(folder).read_run()
    sizes = record.get("task_sizes")
    return str(record.get("host", folder.name)), len(sizes) if isinstance(sizes, list) else None
