"""The commands that examine a machine and a host: bench and check."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flashback.cli.console import make_table, output, show_line
from flashback.cli.options import Device, Host, HostFile, Precision, Set
from flashback.config import parse_assignment

if TYPE_CHECKING:
    from flashback.bench import Figure
    from flashback.conformance import Check

Names = list[str] | None


def bench(
    hosts: Annotated[Names, typer.Argument(help="Which hosts; default: all, and icarl for whole runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for bench.json; one that is there is continued.")] = None,
    device: Device = "auto",
    host_file: HostFile = None,
    precision: Precision = None,
    batch: Annotated[list[int] | None, typer.Option(metavar="SIZE", help="A batch size; may be repeated.")] = None,
    mode: Annotated[Names, typer.Option(metavar="NAME", help="eager, captured or fast; may be repeated.")] = None,
    flashback: Annotated[bool | None, typer.Option(help="With it or without it only; default: both.")] = None,
    only: Annotated[Names, typer.Option(metavar="KIND", help="steps or runs; default: both.")] = None,
    tasks: Annotated[int | None, typer.Option(help="How many tasks a whole run has; default: few.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs a task of it has; default: few.")] = None,
) -> int:
    """How fast is training on this machine?

    Measures the training step in steady state, and whole short runs, on random images.
    """
    from flashback.bench import bench as measure

    result = measure(
        hosts or (),
        batches=batch or (),
        modes=mode or (),
        flashback=flashback,
        only=only or (),
        tasks=tasks,
        epochs=epochs,
        device=device,
        precision=precision,
        host_file=host_file,
        out=out,
        show=lambda figure: typer.echo(f"{name_of(figure)}: {figure.problem or speed_of(figure)}", err=True),
    )
    show_line(f"{result.device}, {result.precision}, torch {result.versions.get('torch')}, {result.date}")
    columns = ("batch", "mode", "images/s", "steps/s", "preparation s", "peak MiB")
    table = make_table("speed of training", "what", *columns)
    for figure in result.figures:
        if not figure.problem:
            rates = (f"{figure.images_per_second:,.0f}", f"{figure.steps_per_second:,.1f}")
            peak = f"{figure.peak_bytes / 2**20:,.0f}" if figure.peak_bytes else "-"
            cells = (str(figure.batch_size), figure.mode, *rates, f"{figure.preparation_seconds:.1f}", peak)
            table.add_row(name_of(figure), *cells)
    output().print(table)
    problems = [figure for figure in result.figures if figure.problem]
    for figure in problems:
        typer.echo(f"failed: {name_of(figure)}, {figure.mode}: {figure.problem}", err=True)
    if out is not None:
        show_line(f"Figures: {out / 'bench.json'}")
    return 1 if problems else 0


def name_of(figure: Figure) -> str:
    method = f"{figure.host} + flashback" if figure.flashback else figure.host
    what = f"run of {figure.tasks} tasks, {figure.epochs} epochs each" if figure.kind == "runs" else "step"
    return f"{method}, {what}"


def speed_of(figure: Figure) -> str:
    seconds = f", {figure.seconds:.1f} s" if figure.seconds else ""
    return f"batch {figure.batch_size}, {figure.mode}: {figure.images_per_second:,.0f} images/s{seconds}"


# ---------------------------------------------------------------- check


def check(host: Host, host_file: HostFile = None, settings: Set = None) -> int:
    """Check that a host keeps what comparisons rest on.

    Short runs on made images, on the CPU: the same seed ends the same, a stopped run goes on exactly, flashback goes
    back to where the task began, both arms cost the same. Exit code 1 if a promise is broken.
    """
    from flashback.conformance import check_host
    from flashback.reports.words import plural

    values = dict(map(parse_assignment, settings or []))
    checks = check_host(host, settings=values, host_file=host_file, watch=show_check)
    broken = sum(not one.kept for one in checks)
    verdict = f"breaks {broken} of" if broken else "keeps all"
    show_line(f"{host} {verdict} {plural(len(checks), 'promise')}.")
    return 1 if broken else 0


def show_check(check: Check) -> None:
    show_line(f"kept    {check.promise}" if check.kept else f"BROKEN  {check.promise}: {check.problem}")
