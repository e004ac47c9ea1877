"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flashback.benchmarks.specs import BENCHMARKS
from flashback.hosts import HOSTS
from flashback.hosts.outside import find_hosts
from flashback.recipes import lacks_recipe

Data = Annotated[Path | None, typer.Option(help="The folder the datasets are in.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
HostFile = Annotated[Path | None, typer.Option(help="A Python file that registers hosts or nets of your own.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="How many runs go on at a time; default: one on a CPU, on a GPU as many as make all faster."),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value for any setting, e.g. training.epochs=20.")]


def say_missing_recipe(host: str, benchmark: str, recipe: str, host_file: Path | None = None) -> None:
    """One line where the defaults stand in for a recipe; of names that do not exist, others will say so."""
    find_hosts(host_file)
    known = host in HOSTS and (benchmark in BENCHMARKS or Path(benchmark).exists())
    if known and lacks_recipe(host, benchmark, recipe):
        typer.echo(f"no {recipe} recipe for {host} on {benchmark}; the defaults are used", err=True)
