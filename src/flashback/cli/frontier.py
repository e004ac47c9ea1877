"""The command frontier, and `tune --forms`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Option

from flashback.cli import options as opt
from flashback.cli.console import say, show_line, show_table
from flashback.errors import FlashbackError, abbreviate


def frontier(
    host: opt.Host,
    benchmark: opt.Benchmark = None,
    forms: Annotated[
        list[str] | None,
        Option(
            "--form",
            metavar="FORM",
            help="A form beside the host alone: a name (see `flashback list forms`), settings as "
            "flashback.alpha=0.8,flashback.epochs=7, or a name with settings; may be repeated. Default: printed.",
        ),
    ] = None,
    weights: Annotated[
        str | None, Option(metavar="A,B,C", help="Weights of the stability loss; default: 0.1,0.3,1,3,10.")
    ] = None,
    seeds: Annotated[str | None, Option(metavar="INTEGER", help="How many: 0, 1, 2, ...; default: 3.")] = None,
    seed_list: Annotated[str | None, Option(help="Or the seeds themselves: 123,246,369.")] = None,
    out: opt.Out = None,
    jobs: opt.Jobs = None,
    on: opt.On = "local",
    per_run: opt.PerRun = None,
    slurm: opt.Slurm = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    recipe: opt.Recipe = None,
    host_file: opt.HostFile = None,
    fast: opt.Fast = False,
    precision: opt.Precision = None,
    track: opt.Track = None,
    settings: opt.Set = None,
) -> int:
    """Test whether flashback beats the host's own trade-off.

    Traces accuracy on old tasks against accuracy on new ones by the weight of the stability loss, for the host alone
    and for other forms, and tests by seed how far each form lies above the host's own curve.
    """
    from flashback.cli.progress import ProgressView
    from flashback.cli.tables import report_failures
    from flashback.records.terms import SETTINGS
    from flashback.reports.plots import plot_frontier, write_figure
    from flashback.reports.tables import frontier_table
    from flashback.reports.words import SETTING_TITLES
    from flashback.studies.frontier import WEIGHTS, trace_frontier

    benchmark, recipe = benchmark or opt.DEFAULT_BENCHMARK, recipe or opt.DEFAULT_RECIPE
    folder = out or Path("runs") / f"frontier-{host}-{Path(benchmark).stem}"
    opt.note_missing_recipe(host, benchmark, recipe, host_file)
    keywords: dict[str, Any] = {
        "forms": forms or ["printed"],
        "seeds": opt.choose_seeds(seeds, seed_list),
        "recipe": recipe,
    }
    keywords["weights"] = parse_weights(weights) if weights is not None else WEIGHTS
    keywords["settings"] = opt.parse_settings(settings, fast=fast, precision=precision)
    run_options: dict[str, Any] = {"data": data, "device": device, "host_file": host_file}
    run_options["on"] = opt.choose_executor(on, jobs, per_run, slurm)
    with ProgressView(several=True) as view:
        result = trace_frontier(
            host, benchmark, out=folder, track=track or [], watch=view.watch, **keywords, **run_options
        )
    table = frontier_table(result)
    rows = [row for setting in SETTINGS for row in ([SETTING_TITLES[setting]], *table.rows[setting])]
    caption = "mean ± deviation over seeds; weight: of the stability loss\ndominated: another point is better"
    show_table(table.title, table.columns, rows, table.texts, caption=caption)
    for setting in SETTINGS:
        for advantage in result.advantages(setting):
            show_line(f"{SETTING_TITLES[setting]}: {advantage.sentence}")
    picture, *_ = write_figure(plot_frontier(result), folder / "frontier")
    show_line(f"Picture: {picture}")
    show_line(f"Records: {folder}; see them with: flashback report {folder}")
    return report_failures(result.failures)


def parse_weights(text: str) -> list[float]:
    try:
        return [float(weight) for weight in text.split(",")]
    except ValueError:
        raise FlashbackError(f"--weights takes numbers such as 0.3,1,3, not {abbreviate(text)}") from None


def choose(
    host: str, benchmark: str, out: Path, device: str, data: Path | None, host_file: Any, **keywords: Any
) -> int:
    """Choose a form for `flashback tune --forms`, show all trials and the answer."""
    from flashback.cli.progress import ProgressView
    from flashback.cli.tables import report_failures
    from flashback.metrics.statistics import number
    from flashback.studies.choosing import choose_form

    run_options: dict[str, Any] = {"data": data, "device": device, "host_file": host_file}
    with ProgressView(several=True) as view:
        best = choose_form(host, benchmark, out=out, watch=view.watch, **keywords, **run_options)
    for name, reason in best.left_out.items():
        say(f"left out: {name}: {reason}")
    longest_first = sorted(best.trials, key=lambda trial: (-trial.epochs, -(trial.mean or 0)))
    rows = [[trial.name, str(trial.epochs), str(len(trial.accuracies)), number(trial.mean)] for trial in longest_first]
    show_table("candidates, longest runs first", ("candidate", "epochs", "seeds", "validation accuracy"), rows)
    show_line(best.answer)
    show_line(f"All runs cost as much as {best.spent:.1f} of full length.")
    unused = max(best.plain.accuracies) + 1  # a test on the seeds that chose the form would favour it
    command = opt.compare_command(host, benchmark, best.recipe, data, host_file, range(unused, unused + 5))
    show_line(f"To see the tuned host and the best form on test images, with other seeds: {command}")
    return report_failures(best.failures)
