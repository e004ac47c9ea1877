"""The commands that examine a machine and a host: bench and check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from flashback.cli import options as opt
from flashback.cli.console import say, show_line, show_table

if TYPE_CHECKING:
    from flashback.bench import Figure
    from flashback.conformance import Check

Names = list[str] | None


def bench(
    hosts: Annotated[Names, Argument(help="Which hosts; default: all.")] = None,
    out: Annotated[Path | None, Option(help="A folder for bench.json.")] = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    precision: opt.Precision = None,
    batch: Annotated[list[int] | None, Option(metavar="SIZE", help="A batch size; may be repeated.")] = None,
    mode: Annotated[Names, Option(metavar="NAME", help="eager, captured or fast; may be repeated.")] = None,
    flashback: Annotated[bool | None, Option(help="With it or without it only; default: both.")] = None,
) -> int:
    """Measure the speed of training on this machine.

    Measures the training step in steady state, on random images.
    """
    from flashback.bench import bench as measure

    cases: dict[str, Any] = {"batches": batch or (), "modes": mode or (), "flashback": flashback}
    run_options: dict[str, Any] = {"device": device, "precision": precision, "host_file": host_file, "out": out}
    result = measure(hosts or (), show=say_figure, **cases, **run_options)
    show_line(f"{result.device}, {result.precision}, torch {result.versions.get('torch')}, {result.date}")
    columns = ("method", "batch", "mode", "images/s", "steps/s", "preparation s", "peak MiB")
    show_table(
        "speed of training steps", columns, (figure_row(figure) for figure in result.figures if not figure.problem)
    )
    if out is not None:
        show_line(f"Figures: {out / 'bench.json'}")
    return 1 if any(figure.problem for figure in result.figures) else 0


def name_of(figure: Figure) -> str:
    return f"{figure.host} + flashback" if figure.flashback else figure.host


def say_figure(figure: Figure) -> None:
    outcome = f"failed: {figure.problem}" if figure.problem else f"{figure.images_per_second:,.0f} images/s"
    say(f"{name_of(figure)}, batch {figure.batch_size}, {figure.mode}: {outcome}")


def figure_row(figure: Figure) -> list[str]:
    rates = (f"{figure.images_per_second:,.0f}", f"{figure.steps_per_second:,.1f}")
    peak = f"{figure.peak_bytes / 2**20:,.0f}" if figure.peak_bytes else "-"
    case = (name_of(figure), str(figure.batch_size), figure.mode)
    return [*case, *rates, f"{figure.preparation_seconds:.1f}", peak]


def check(host: opt.Host, host_file: opt.HostFile = None, settings: opt.Set = None) -> int:
    """Check that a host keeps the promises that comparisons rely on.

    Short runs on generated images, on the CPU: the same seed gives the same result, a stopped run resumes exactly,
    flashback restores the state at the start of the task, both arms cost the same. The exit code is 1 if a promise is
    broken.
    """
    from flashback.conformance import check_host
    from flashback.reports.words import plural

    checks = check_host(host, settings=opt.parse_settings(settings), host_file=host_file, watch=show_check)
    broken = sum(not check.kept for check in checks)
    verdict = f"breaks {broken} of" if broken else "keeps all"
    show_line(f"{host} {verdict} {plural(len(checks), 'promise')}.")
    return 1 if broken else 0


def show_check(check: Check) -> None:
    show_line(f"kept    {check.promise}" if check.kept else f"BROKEN  {check.promise}: {check.problem}")
