"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from flashback.config import parse_assignment
from flashback.errors import require
from flashback.records import dotted, is_begun

# A metavar must not be the name of its option in capitals: some versions of typer then rename the option.
Host = Annotated[str, typer.Argument(help="The method, e.g. icarl; see `flashback list hosts`.")]
Benchmark = Annotated[
    str | None,
    typer.Option(help="A name (see `flashback list benchmarks`), an .npz or a folder; default: split-fashion-mini."),
]
Recipe = Annotated[
    str | None, typer.Option(help="controlled (the default), anchor, as-published, defaults, or a recipe file.")
]
Out = Annotated[Path | None, typer.Option(help="The folder for the records; default: under runs/.")]
Data = Annotated[Path | None, typer.Option(help="The folder the datasets are in.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
Fast = Annotated[bool, typer.Option("--fast", help="Give up determinism for speed on a GPU.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; default: bf16 on a GPU, else fp32.")]
HostFile = Annotated[
    list[Path] | None,
    typer.Option("--host-file", metavar="FILE", help="A file that registers your own hosts or nets; may be repeated."),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        help="How many runs train at a time; default: 1 on a CPU, on a GPU as many as cores and memory allow."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any setting, e.g. training.epochs=20; may be repeated."),
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", metavar="NAME", help="tensorboard, wandb or mlflow; may be repeated."),
]

DEFAULT_BENCHMARK, DEFAULT_RECIPE = "split-fashion-mini", "controlled"
SETTING_OF = {"benchmark": "benchmark.name", "flashback": "flashback.enabled", "precision": "training.precision"}


def parse_settings(assignments: list[str] | None, **options: Any) -> dict[str, Any]:
    """The settings from --set and from options that stand for one; if both are given they have to agree."""
    settings = dict(map(parse_assignment, assignments or []))  # if one is repeated the last counts
    full_keys = dotted(settings)
    for option, value in options.items():
        if value is not None and value is not False:  # a flag that is not given leaves its setting alone
            key = SETTING_OF.get(option, option)
            require(full_keys.get(key, value) == value, f"--{option} and --set {key} disagree; give one of them")
            settings[key] = value
    return settings


def note_missing_recipe(host: str, benchmark: str, recipe: str, host_file: Sequence[Path] | None = None) -> None:
    """Say so if the defaults stand in for a recipe; names that do not exist are reported elsewhere."""
    from flashback.benchmarks import BENCHMARKS
    from flashback.hosts import HOSTS
    from flashback.hosts.external import find_hosts
    from flashback.recipes import lacks_recipe

    find_hosts(host_file)
    known = host in HOSTS and (benchmark in BENCHMARKS or Path(benchmark).exists())
    if known and lacks_recipe(host, benchmark, recipe):
        typer.echo(f"no {recipe} recipe for {host} on {benchmark}; the defaults are used", err=True)


def check_one_run(folder: Path) -> None:
    """Refuse a folder of many runs and say what to do with it."""
    if is_begun(folder):
        return
    from flashback.studies.comparison import runs_in

    report = f"`flashback report {folder}` shows what is finished"
    require(
        not runs_in(folder),
        f"{folder} is the folder of a comparison: the same `flashback compare` command goes on with it, {report}",
    )
    require(
        not (folder.is_dir() and any(folder.rglob("config.yaml"))),
        f"{folder} holds many runs: the `flashback sweep` or `flashback tune` command goes on with them, {report}, "
        "or give the folder of one run",
    )
