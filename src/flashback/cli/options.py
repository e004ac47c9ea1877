"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path | None, typer.Option(help="The folder the datasets are in.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
HostFile = Annotated[Path | None, typer.Option(help="A Python file that registers hosts of your own.")]
Jobs = Annotated[
    int | None,
    typer.Option(help="How many runs go on at a time; default: one on a CPU, on a GPU as many as make all faster."),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="key=value for any setting, e.g. training.epochs=20.")]
