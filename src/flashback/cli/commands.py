"""The commands: list, run, resume, compare; the others have files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from flashback import __version__ as flashback_version
from flashback.cli import check, report, show, speed, studies, tables
from flashback.cli.options import (
    Data,
    Device,
    HostFile,
    Jobs,
    Set,
    Track,
    check_one_run,
    parse_settings,
    say_missing_recipe,
)
from flashback.cli.progress import ProgressView, output
from flashback.config import RunConfig, set_dotted, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.hosts import HOSTS
from flashback.hosts.outside import find_hosts
from flashback.plain_yaml import read_yaml
from flashback.recipes import config_from_dict, configure
from flashback.recipes.resolving import check_flashback_is_on
from flashback.records import RunFolder
from flashback.studies.comparison import NothingToCompareError
from flashback.studies.comparison import compare as compare_arms
from flashback.training import Interrupted
from flashback.training import resume as resume_run
from flashback.training import run as run_config
from flashback.training.finished import finished_run


class Saved(Exception):  # noqa: N818 - not an error: the user asked for it
    """Something was interrupted that has kept its state."""


class Commands(TyperGroup):
    """typer makes an exit code of any Ctrl-C by itself; whether something was kept is to be said first."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Interrupted:
            raise Saved from None


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, cls=Commands)

Host = Annotated[str, typer.Argument(help="The method, e.g. icarl; see `flashback list hosts`.")]
Benchmark = Annotated[
    str | None,
    typer.Option(help="A name (see `flashback list benchmarks`), an .npz or a folder; default: split-fashion-mini."),
]
Out = Annotated[Path | None, typer.Option(help="The folder for the record; default: under runs/.")]
Recipe = Annotated[str | None, typer.Option(help="controlled (the default), anchor, as-published, defaults or a file.")]
Fast = Annotated[bool, typer.Option("--fast", help="Give up determinism for speed on a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; default: bf16 on a GPU, else fp32.")]

DEFAULT_BENCHMARK, DEFAULT_RECIPE, DEFAULT_SEEDS = "split-fashion-mini", "controlled", 3


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"flashback {flashback_version}")
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
    host_file: HostFile = None,
) -> None:
    """What there is to choose from."""
    if what is not None and what not in tables.LISTS:
        raise unknown("list", what, tables.LISTS)
    find_hosts(host_file)
    console = output()
    for name in [what] if what else tables.SHORT_LISTS:
        console.print(tables.LISTS[name]())
    if what is None:
        console.print(tables.further_lists())


@app.command()
def run(
    host: Annotated[str, typer.Argument(help="The method, e.g. icarl, or the config.yaml of an earlier run.")],
    benchmark: Benchmark = None,
    flashback: Annotated[bool, typer.Option("--flashback", help="Train with flashbacks.")] = False,
    seed: Annotated[int | None, typer.Option(help="Decides all randomness; default: 0.")] = None,
    out: Out = None,
    data: Data = None,
    device: Device = "auto",
    recipe: Recipe = None,
    host_file: HostFile = None,
    fast: Fast = False,
    precision: Precision = None,
    track: Track = None,
    settings: Set = None,
) -> None:
    """Train one host, bare or with flashbacks.

    It is measured after every task, in both settings, and leaves its record in a folder. The same command goes on with
    what was interrupted, and shows what is finished. Of a config.yaml, flashbacks are turned off with --set
    flashback.enabled=false.
    """
    find_hosts(host_file)
    options = {"--benchmark": benchmark, "--seed": seed, "--flashback": flashback or None, "--recipe": recipe}
    own = parse_settings(settings, {**options, "--fast": fast or None, "--precision": precision})
    if host.endswith((".yaml", ".yml")):
        require(recipe is None, "--recipe does not go with a config.yaml, which is resolved already; use --set")
        config = reconfigure(Path(host), own, data)
    else:
        require(
            host in HOSTS or not Path(host).is_dir(),
            f"{host} is a folder: `flashback resume {host}` goes on with the run in it, "
            f"`flashback run {host}/config.yaml` starts it again elsewhere",
        )
        config = configure(host, settings=own, data=data)
        say_missing_recipe(host, config.benchmark.name, own.get("recipe", DEFAULT_RECIPE))
    check_flashback_is_on(config, own)
    folder = out or default_folder(config)
    if finished_run(folder, to_dict(config), data=data) is not None:
        show.show_run(folder)
        output().print("Finished already, with the same settings: nothing was trained.", soft_wrap=True)
        return
    with ProgressView() as view:
        watching = [view.watch(config.host.name, known_of(folder)[1])]
        run_config(config, out=folder, data=data, device=device, observers=watching, track=track or [])
    show.show_run(folder)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an unfinished run.")],
    data: Data = None,
    device: Device = "auto",
    host_file: HostFile = None,
    track: Track = None,
) -> None:
    """Go on with a run, exactly where it stopped."""
    find_hosts(host_file)
    check_one_run(folder)
    with ProgressView() as view:
        watching = [view.watch(*known_of(folder))]
        resume_run(folder, data=data, device=device, observers=watching, track=track or [])
    show.show_run(folder)


@app.command()
def compare(
    host: Host,
    benchmark: Benchmark = None,
    seeds: Annotated[str | None, typer.Option(metavar="INTEGER", help="How many: 0, 1, 2, ...; default: 3.")] = None,
    seed_list: Annotated[str | None, typer.Option(help="Or the seeds themselves: 123,246,369.")] = None,
    out: Out = None,
    jobs: Jobs = None,
    data: Data = None,
    device: Device = "auto",
    recipe: Recipe = None,
    host_file: HostFile = None,
    fast: Fast = False,
    precision: Precision = None,
    track: Track = None,
    settings: Set = None,
) -> int:
    """Does flashback help this host?

    Trains both arms with the same settings, seeds and number of steps, and answers with a table and a paired test.
    What is finished in the folder already is used again.
    """
    benchmark = benchmark or DEFAULT_BENCHMARK
    folder = out or Path("runs") / f"compare-{host}-{Path(benchmark).stem}"
    say_missing_recipe(host, benchmark, recipe or DEFAULT_RECIPE, host_file)
    with ProgressView() as view:
        try:
            comparison = compare_arms(
                host,
                benchmark,
                seeds=choose_seeds(seeds, seed_list),
                out=folder,
                recipe=recipe or DEFAULT_RECIPE,
                settings=parse_settings(settings, {"--fast": fast or None, "--precision": precision}),
                jobs=jobs,
                data=data,
                device=device,
                host_file=host_file,
                track=track or [],
                watch=view.watch,
            )
        except NothingToCompareError as failed:  # what is known is shown all the same
            comparison = failed.comparison
    console = output()
    console.print(tables.comparison_table(comparison, console.width), tables.cost_table(comparison))
    for note in tables.comparison_notes(comparison):
        console.print(note, soft_wrap=True)
    console.print(f"Records: {folder}", soft_wrap=True)
    for line in tables.failure_lines(comparison.failures):
        typer.echo(line, err=True)
    return 1 if comparison.failures else 0


report.register(app)
studies.register(app)
show.register(app)
check.register(app)
speed.register(app)


# ---------------------------------------------------------------- from options to what the functions want


def choose_seeds(count: str | None, listed: str | None) -> list[int]:
    require(count is None or listed is None, "give --seeds or --seed-list, not both")
    if listed is None:
        return list(range(DEFAULT_SEEDS if count is None else how_many(count)))
    try:
        return [int(seed) for seed in listed.split(",")]
    except ValueError:
        raise FlashbackError(f"--seed-list is whole numbers with commas between them, not '{listed}'") from None


def how_many(count: str) -> int:
    try:
        return int(count)
    except ValueError:
        raise FlashbackError(
            f"--seeds says how many seeds, such as 3 for 0, 1 and 2, not '{count}'; --seed-list takes the seeds "
            "themselves, such as 123,246,369"
        ) from None


def reconfigure(path: Path, changes: dict[str, Any], data: Path | None) -> RunConfig:
    """The configuration of an earlier run, with some settings changed."""
    try:
        values = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"{path} cannot be read; give the config.yaml of a run") from None
    require(isinstance(values, dict), f"{path} holds no mapping of keys; give the config.yaml of a run")
    for key, value in changes.items():
        set_dotted(values, key, value)
    return config_from_dict(values, data)


def default_folder(config: RunConfig) -> Path:
    arm = "flashback" if config.flashback.enabled else "host"
    return Path("runs") / f"{config.host.name}-{Path(config.benchmark.name).stem}-{arm}-seed{config.seed}"


def known_of(folder: Path) -> tuple[str, int | None]:
    """The host and the number of tasks of a run that has begun; of another, its name."""
    known = RunFolder(folder).read_run()
    sizes = known.get("task_sizes")
    return str(known.get("host", folder.name)), len(sizes) if isinstance(sizes, list) else None
