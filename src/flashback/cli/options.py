"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flashback.benchmarks.specs import BENCHMARKS
from flashback.config import parse_assignment
from flashback.errors import require
from flashback.hosts import HOSTS
from flashback.hosts.outside import HostFiles, find_hosts
from flashback.recipes import lacks_recipe
from flashback.records import dotted, is_begun
from flashback.studies.comparison import runs_in

Data = Annotated[Path | None, typer.Option(help="The folder the datasets are in.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
HostFile = Annotated[
    list[Path] | None,
    typer.Option("--host-file", metavar="FILE", help="A file that registers hosts or nets of yours; may be repeated."),
]
Jobs = Annotated[
    int | None,
    typer.Option(help="How many runs go on at a time; default: one on a CPU, on a GPU as many as make all faster."),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.epochs=20; may be repeated."),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="TRACKER", help="tensorboard, wandb or mlflow; may be repeated."),
]

STANDS_FOR = {  # options that have a setting of their own
    "--benchmark": "benchmark.name",
    "--seed": "seed",
    "--flashback": "flashback.enabled",
    "--recipe": "recipe",
    "--fast": "fast",
    "--precision": "training.precision",
}


def parse_settings(assignments: list[str] | None, options: dict[str, Any]) -> dict[str, Any]:
    """What --set says, and the options that stand for settings; where one is given twice, both have to agree."""
    own = dict(map(parse_assignment, assignments or []))  # of one given twice the last counts, as for any option
    set_so, given = dotted(own), {name: value for name, value in options.items() if value is not None}
    for option, value in given.items():
        key = STANDS_FOR[option]
        require(set_so.get(key, value) == value, f"{option} and --set {key} disagree; give one of them")
    return own | {STANDS_FOR[option]: value for option, value in given.items()}


def say_missing_recipe(host: str, benchmark: str, recipe: str, host_file: HostFiles = None) -> None:
    """One line where the defaults stand in for a recipe; of names that do not exist, others will say so."""
    find_hosts(host_file)
    known = host in HOSTS and (benchmark in BENCHMARKS or Path(benchmark).exists())
    if known and lacks_recipe(host, benchmark, recipe):
        typer.echo(f"no {recipe} recipe for {host} on {benchmark}; the defaults are used", err=True)


def check_one_run(folder: Path) -> None:
    """A folder of many runs is told what to do with them; of one without any, others will say so."""
    if is_begun(folder):
        return
    report = f"`flashback report {folder}` shows what is finished"
    require(
        not runs_in(folder),
        f"{folder} is the folder of a comparison: the same `flashback compare` command goes on with it, {report}",
    )
    first = next(iter(sorted(folder.rglob("config.yaml"))), None) if folder.is_dir() else None
    require(
        first is None,
        f"{folder} holds many runs: the `flashback sweep` or `flashback tune` command goes on with them, {report}, "
        "or give the folder of one run",
    )
