"""The commands list, run, resume, compare and report, and the application that has all commands.

What a command needs is imported when it is called, so that --help and a misspelt option are answered at once.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import flashback as fb
from flashback import ranks
from flashback.cli import options as opt
from flashback.cli.bench import bench, check
from flashback.cli.console import say, show_line
from flashback.cli.frontier import frontier
from flashback.cli.learning import history, learn, prune, rollback
from flashback.cli.models import evaluate, export, predict
from flashback.cli.show import show, show_run
from flashback.cli.studies import cka, sweep, tune
from flashback.config import set_dotted, to_dict
from flashback.errors import FlashbackError, require, unknown
from flashback.plain_yaml import read_yaml
from flashback.records import RunFolder, read_config

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def show_version(value: bool) -> None:
    if value:
        show_line(f"flashback {fb.__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Continual learning, with and without flashback."""
    require(
        not ranks.launched() or context.invoked_subcommand in ("run", "resume"),
        "torchrun starts one run on several devices: use it with flashback run or resume",
    )


@app.command("list")
def list_names(
    what: Annotated[
        str | None, Argument(help="hosts, benchmarks, nets, recipes, sweeps or forms; default: the first three.")
    ] = None,
    host_file: opt.HostFile = None,
) -> None:
    """List hosts, benchmarks, networks, recipes, sweeps or forms."""
    from flashback.cli.listing import LISTS, SHORT_LISTS, show_list

    if what is not None and what not in LISTS:
        raise unknown("list", what, LISTS)
    for name in [what] if what else SHORT_LISTS:
        show_list(name, host_file)
    if what is None:
        show_line("There are also recipes, sweeps and forms, for example: flashback list forms")


@app.command()
def run(
    host: Annotated[str, Argument(help="The method, e.g. icarl, or the config.yaml of an earlier run.")],
    benchmark: opt.Benchmark = None,
    flashback: Annotated[bool, Option("--flashback", help="Train with flashback.")] = False,
    seed: Annotated[int | None, Option(help="Controls all randomness; default: 0.")] = None,
    out: opt.Out = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    devices: opt.Devices = None,
    recipe: opt.Recipe = None,
    host_file: opt.HostFile = None,
    fast: opt.Fast = False,
    precision: opt.Precision = None,
    track: opt.Track = None,
    settings: opt.Set = None,
) -> int:
    """Train one host, with or without flashback.

    The host is evaluated after every task, in both settings, and its record is written to a folder. The same command
    continues an interrupted run and shows a finished one. To run a config.yaml without flashback, add --set
    flashback.enabled=false.
    """
    from flashback.hosts.external import find_hosts
    from flashback.recipes.resolving import check_flashback_is_on
    from flashback.training.running import check_batches, finished_run

    find_hosts(host_file)
    overrides = opt.parse_settings(
        settings, benchmark=benchmark, seed=seed, flashback=flashback, recipe=recipe, fast=fast, precision=precision
    )
    if host.endswith((".yaml", ".yml")):
        require(recipe is None, "--recipe does not go with a config.yaml, which is resolved already; use --set")
        config = reconfigure(Path(host), overrides, data)
    else:
        require(
            host in fb.HOSTS or not Path(host).is_dir(),
            f"{host} is a folder: `flashback resume {host}` continues the run in it, "
            f"`flashback run {host}/config.yaml` starts it again elsewhere",
        )
        config = fb.configure(host, settings=overrides, data=data)
        opt.note_missing_recipe(host, config.benchmark.name, overrides.get("recipe", opt.DEFAULT_RECIPE))
    check_flashback_is_on(config, overrides)
    arm = "flashback" if config.flashback.enabled else "host"
    name = f"{config.host.name}-{Path(config.benchmark.name).stem}-{arm}-seed{config.seed}"
    folder = out or Path("runs") / name
    if finished_run(folder, to_dict(config), data=data) is not None:
        show_run(folder)
        show_line("Finished already, with the same settings: nothing was trained.")
        return 0
    check_batches(config, devices or 1)
    start = partial(fb.run, config, out=folder, data=data, device=device, track=track or [])
    return train(start, folder, config.host.name, device, devices)


@app.command()
def resume(
    folder: Annotated[Path, Argument(help="The folder of an unfinished run.")],
    data: opt.Data = None,
    device: opt.Device = "auto",
    devices: opt.Devices = None,
    host_file: opt.HostFile = None,
    track: opt.Track = None,
) -> int:
    """Continue an unfinished run exactly where it stopped."""
    from flashback.hosts.external import find_hosts
    from flashback.recipes import config_from_dict
    from flashback.training.running import check_batches

    find_hosts(host_file)
    opt.check_one_run(folder)
    if devices is not None:
        check_batches(config_from_dict(read_config(folder)), devices)
    start = partial(fb.resume, folder, data=data, device=device, track=track or [])
    return train(start, folder, folder.name, device, devices)


def train(start: Callable[..., Any], folder: Path, name: str, device: str, devices: int | None) -> int:
    from flashback.cli.progress import ProgressView

    if opt.starts_ranks(devices):
        from flashback.cli.launch import start_ranks

        return start_ranks(devices, device)
    if not ranks.is_first():
        start()
        return 0
    record = RunFolder(folder).read_run()
    sizes = record.get("task_sizes")
    with ProgressView() as view:
        tasks = len(sizes) if isinstance(sizes, list) else None
        start(observers=[view.watch(str(record.get("host", name)), tasks)])
    show_run(folder)
    return 0


def reconfigure(path: Path, changes: dict[str, Any], data: Path | None) -> fb.RunConfig:
    from flashback.recipes import config_from_dict

    try:
        values = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError):
        raise FlashbackError(f"{path} cannot be read; give the config.yaml of a run") from None
    require(isinstance(values, dict), f"{path} holds no mapping of keys; give the config.yaml of a run")
    for key, value in changes.items():
        set_dotted(values, key, value)
    return config_from_dict(values, data)


@app.command()
def compare(
    host: opt.Host,
    benchmark: opt.Benchmark = None,
    seeds: Annotated[str | None, Option(metavar="INTEGER", help="How many seeds, counted from 0; default: 3.")] = None,
    seed_list: Annotated[str | None, Option(help="The seeds themselves, such as 123,246,369.")] = None,
    out: opt.Out = None,
    jobs: opt.Jobs = None,
    on: opt.On = "local",
    per_run: opt.PerRun = None,
    slurm: opt.Slurm = None,
    shard: opt.Shard = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    recipe: opt.Recipe = None,
    host_file: opt.HostFile = None,
    fast: opt.Fast = False,
    precision: opt.Precision = None,
    track: opt.Track = None,
    settings: opt.Set = None,
) -> int:
    """Compare a host with and without flashback.

    Trains both arms with the same settings, seeds and number of steps, and prints a table and a paired test. Finished
    runs in the folder are reused.
    """
    from flashback.cli.progress import ProgressView
    from flashback.cli.tables import report_failures, show_comparison
    from flashback.studies.comparison import NothingToCompareError

    benchmark, recipe = benchmark or opt.DEFAULT_BENCHMARK, recipe or opt.DEFAULT_RECIPE
    folder = out or Path("runs") / f"compare-{host}-{Path(benchmark).stem}"
    opt.note_missing_recipe(host, benchmark, recipe, host_file)
    options: dict[str, Any] = {"seeds": opt.choose_seeds(seeds, seed_list), "recipe": recipe}
    options["settings"] = opt.parse_settings(settings, fast=fast, precision=precision)
    run_options: dict[str, Any] = {"data": data, "device": device, "host_file": host_file, "shard": shard}
    run_options["on"] = opt.choose_executor(on, jobs, per_run, slurm)
    with ProgressView(several=True) as view:
        try:
            comparison = fb.compare(
                host, benchmark, out=folder, track=track or [], watch=view.watch, **options, **run_options
            )
        except NothingToCompareError as failed:  # show what there is all the same
            comparison = failed.comparison
    show_comparison(comparison)
    show_line(f"Records: {folder}")
    return report_failures(comparison.failures)


@app.command()
def report(
    folders: Annotated[list[Path], Argument(help="Folders with finished runs, at any depth.")],
    out: Annotated[Path | None, Option(help="The file to write; default: report.html in the first folder.")] = None,
    form: Annotated[
        str,
        Option("--format", help="html, md, latex, csv, runs-csv, tasks-csv, classes-csv, against-csv or all."),
    ] = "html",
    plots: Annotated[Path | None, Option(help="A folder for every chart as PNG and PDF.")] = None,
    against: Annotated[
        str, Option(metavar="METHOD", help="Test all other methods against this one, by seed, e.g. icarl.")
    ] = "",
    metrics: Annotated[
        str, Option(metavar="LIST", help="The metrics of the tables, in this order, e.g. AA,F; default: all.")
    ] = "",
    references: Annotated[
        Path | None, Option(metavar="FILE", help="A YAML file of published values to show beside ours.")
    ] = None,
    labels: Annotated[
        list[str] | None,
        Option("--label", metavar="NAME=FOLDER", help="A name for the runs below a folder; may be repeated."),
    ] = None,
) -> None:
    """Write a report on all finished runs.

    Reads every finished run below the folders and writes a page with verdicts, tables and charts.
    """
    from flashback.cli.tables import show_answers
    from flashback.reports import FORMATS, read_report, write_plots, write_report
    from flashback.reports.words import plural

    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    names = dict(map(parse_label, labels or []))
    metric_names = [name for name in metrics.split(",") if name.strip()]
    summary = read_report(folders, against=against, metrics=metric_names, references=references, labels=names)
    for name, reason in summary.skipped.items():
        say(f"left out: {name}: {reason}")
    written = write_report(summary, out or folders[0] / "report.html", form)
    plot_files = write_plots(summary, plots) if plots is not None else []
    show_answers(summary)
    show_line(f"Report: {', '.join(map(str, written))}")
    if plots is not None:
        show_line(f"Plots: {plural(len(plot_files), 'file')} in {plots}")


def parse_label(text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    require(bool(name.strip() and folder), f"--label takes NAME=FOLDER, such as 'our net=runs/mynet', not {text}")
    return name.strip(), folder


for command in (
    learn,
    history,
    rollback,
    prune,
    predict,
    evaluate,
    export,
    sweep,
    frontier,
    tune,
    cka,
    show,
    check,
    bench,
):
    app.command()(command)
