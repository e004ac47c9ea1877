"""The command that measures how fast training is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.table import Table

from flashback.cli import tables
from flashback.cli.options import Device, HostFile
from flashback.cli.progress import output
from flashback.errors import require
from flashback.speed import Bench, Choice, read_bench, sheets, write_tables
from flashback.speed import bench as measure
from flashback.speed.figures import Mode
from flashback.speed.sheets import Sheet
from flashback.training import Interrupted

Names = list[str] | None
Numbers = list[int] | None


def register(app: typer.Typer) -> None:
    app.command()(bench)


def bench(
    hosts: Annotated[Names, typer.Argument(help="Which hosts; default: all, and icarl for whole runs.")] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for bench.json, bench.md and bench.png.")] = None,
    device: Device = "auto",
    host_file: HostFile = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or bf16; default: bf16 on a GPU, else fp32.")
    ] = None,
    batch: Annotated[
        Numbers,
        typer.Option(
            metavar="SIZE", help="A batch size; may be repeated; default: those of the device, and 32 for whole runs."
        ),
    ] = None,
    mode: Annotated[
        Names,
        typer.Option(
            metavar="MODE",
            help="eager, captured or fast; may be repeated; default: all, and a run's own for whole runs.",
        ),
    ] = None,
    flashback: Annotated[bool | None, typer.Option(help="With it or without it only; default: both.")] = None,
    only: Annotated[
        Names,
        typer.Option(metavar="KIND", help="steps, parts, runs or packed; may be repeated; default: the first three."),
    ] = None,
    tasks: Annotated[int | None, typer.Option(help="How many tasks whole runs have; default: few.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How many epochs a task of theirs has; default: few.")] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Whole runs with a cold cache of compiled code, then warm.")
    ] = False,
    packed: Annotated[
        Numbers, typer.Option(metavar="COUNT", help="Also so many whole runs at a time; may be repeated.")
    ] = None,
    read: Annotated[
        Path | None, typer.Option(help="Show an earlier bench.json, from any machine; measure nothing.")
    ] = None,
) -> int:
    """How fast is training on this machine?

    With --out every figure is kept as it comes. The same folder is continued: what is there is not measured again.
    """
    if read is not None:
        require(read.suffix == ".json", f"--read takes the .json file of a bench, not {read}")
        found = read_bench(read)
        write_tables(found, read.with_suffix(""))
    else:
        chosen = Choice(
            hosts=tuple(hosts or ()),
            batches=tuple(batch or ()),
            modes=cast("tuple[Mode, ...]", tuple(mode or ())),
            flashback=flashback,
            sections=tuple(only or ()),
            tasks=tasks,
            epochs=epochs,
            cold=cold,
            packed=tuple(packed or ()),
        )
        with ending_as_kept(out):
            found = measure(chosen, device=device, precision=precision, out=out, host_file=host_file, show=typer.echo)
    show(found)
    for line in tables.failure_lines(found.failures):
        typer.echo(line, err=True)
    place = read.parent if read is not None else out
    if place is not None:
        output().print(f"Figures, tables and plot: {place}", soft_wrap=True)
    return 1 if found.failures else 0


@contextmanager
def ending_as_kept(out: Path | None) -> Iterator[None]:
    """A bench that is interrupted goes on where it stopped only if its figures were kept."""
    try:
        yield
    except KeyboardInterrupt:
        raise (KeyboardInterrupt if out is None else Interrupted) from None


def show(found: Bench) -> None:
    console = output()
    console.print(f"{found.device}, {found.precision}, torch {found.versions.get('torch')}, begun {found.date}")
    for sheet in sheets(found):
        console.print(rich_table(sheet))


def rich_table(sheet: Sheet) -> Table:
    table = tables.make_table(sheet.title, *sheet.columns, texts=sheet.texts)
    table.caption, table.caption_justify = sheet.note or None, "left"
    for row in sheet.rows:
        table.add_row(*row)
    return table
