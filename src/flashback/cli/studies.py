"""The commands beyond a single question: sweeps, tuning, and how alike representations are."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from flashback.cli import tables
from flashback.cli.options import Data, Device, HostFile, Jobs, Set, Track, say_missing_recipe
from flashback.cli.progress import ProgressView, output
from flashback.cli.report import say_answers
from flashback.config import parse_assignment
from flashback.reports import read_report
from flashback.reports.words import written
from flashback.studies.jobs import Job, RunContext, lacking_data
from flashback.studies.similarity import compare_representations
from flashback.studies.sweeps import (
    FAILED,
    RUNNING,
    STATES,
    Outcome,
    Sweep,
    left_out,
    plan,
    read_sweep,
    run_sweep,
    shipped_sweeps,
    survey,
)
from flashback.studies.tuning import Tuned
from flashback.studies.tuning import tune as tune_settings
from flashback.training.trainer import Event, Observer

SYMBOLS = {"flashback.alpha": "alpha_p", "flashback.epochs": "E1"}


def register(app: typer.Typer) -> None:
    for command in (sweep, tune, cka):
        app.command()(command)


# ---------------------------------------------------------------- sweep


def sweep(
    file: Annotated[str, typer.Argument(help=f"A YAML file, or one of: {', '.join(sorted(shipped_sweeps()))}.")],
    out: Annotated[Path | None, typer.Option(help="The folder for all records; default: under runs/.")] = None,
    jobs: Jobs = None,
    data: Data = None,
    device: Device = "auto",
    host_file: HostFile = None,
    track: Track = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the planned runs and train none.")] = False,
) -> int:
    """Make many runs from one file, those that are missing.

    What is finished in the folder, from whatever machine, counts as done.
    """
    chosen, out = read_sweep(file), out or Path("runs") / f"sweep-{Path(file).stem}"
    triples = ((h, b, part.recipe) for part in chosen.parts for h, b in product(part.hosts, part.benchmarks))
    for host, benchmark, recipe in dict.fromkeys(triples):
        say_missing_recipe(host, benchmark, recipe, host_file)
    if dry_run:
        show_plan(chosen, plan(chosen, out, RunContext.of(data, device, host_file, jobs)))
        return 0
    with LiveStates() as live:
        outcome = run_sweep(
            chosen,
            out,
            jobs=jobs,
            data=data,
            device=device,
            host_file=host_file,
            track=track or [],
            watch=live.watch,
        )
    console = output()
    console.print(f"{chosen.title}: {outcome.finished} of {len(outcome.states)} runs done.", soft_wrap=True)
    say_left_out(chosen)
    if (found := read_report(out)).pairings:
        say_answers(found)
    console.print(f"Records: {out}; see them with: flashback report {out}", soft_wrap=True)
    for line in tables.failure_lines(outcome.failures):
        typer.echo(line, err=True)
    return 1 if outcome.failures else 0


def show_plan(chosen: Sweep, planned: Sequence[Job]) -> None:
    """All runs with their states, and what is missing before those that wait can start."""
    outcome, waiting = survey(planned)
    table = tables.make_table(chosen.title, "run", "state", texts=2)
    for name, state in outcome.states.items():
        table.add_row(name, state)
    console = output()
    console.print(table)
    console.print(f"{outcome.finished} of {len(planned)} runs done; nothing was trained.", soft_wrap=True)
    for sentence in lacking_data(waiting):
        console.print(f"{sentence[0].upper()}{sentence[1:]}.", soft_wrap=True)
    say_left_out(chosen)


def say_left_out(chosen: Sweep) -> None:
    if bare := left_out(chosen):
        said = f"Left out: flashback for {', '.join(bare)}; there is no knowledge to attach to."
        output().print(said, soft_wrap=True)


class LiveStates:
    """A live table of the runs under way and of those that failed; without a terminal, a line for each that ends."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, markup=False)
        self.live = Live(console=self.console, transient=True, auto_refresh=False)
        self.details: dict[str, str] = {}

    def __enter__(self) -> LiveStates:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def watch(self, outcome: Outcome, name: str) -> Observer:
        def observe(event: Event) -> None:
            if event["event"] == "epoch":
                epoch = f"{event['epoch'] + 1} of {event['epochs']}"
                self.details[name] = f"task {event['task'] + 1}, {event['stage']}, epoch {epoch}"
            if self.live.is_started:
                self.live.update(self.table(outcome), refresh=True)
            elif event["event"] == "end":
                self.console.print(f"{outcome.states[name]}: {name} ({self.counts(outcome)})", soft_wrap=True)

        return observe

    def table(self, outcome: Outcome) -> Table:
        table = Table("run", "state", "where", caption=self.counts(outcome), caption_justify="left")
        for name, state in outcome.states.items():
            if state in (RUNNING, FAILED):
                table.add_row(name, state, self.details.get(name, "") if state == RUNNING else "")
        return table

    def counts(self, outcome: Outcome) -> str:
        found = Counter(outcome.states.values())
        return ", ".join(f"{found[state]} {state}" for state in STATES if found[state])


# ---------------------------------------------------------------- tune


def tune(
    host: Annotated[str, typer.Argument(help="The method, e.g. icarl.")],
    out: Annotated[Path | None, typer.Option(help="The folder for the study; default: under runs/.")] = None,
    benchmark: Annotated[str, typer.Option(help="A name, an .npz or a folder.")] = "split-fashion-mini",
    trials: Annotated[int, typer.Option(help="How many choices to try, finished ones included.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides all randomness.")] = 0,
    recipe: Annotated[str, typer.Option(help="controlled, anchor, as-published, or a file.")] = "controlled",
    data: Data = None,
    device: Device = "auto",
    host_file: HostFile = None,
    settings: Set = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values to choose among, e.g. training.lr=0.03,0.1,0.3; may be repeated. Default: alpha_p and E1.",
        ),
    ] = None,
) -> None:
    """Choose settings on a validation split.

    alpha_p and E1, or any others: those of flashback for the host with flashback, all others for the host alone.
    """
    with ProgressView() as view:
        best = tune_settings(
            host,
            benchmark,
            out=out or Path("runs") / f"tune-{host}-{Path(benchmark).stem}",
            trials=trials,
            seed=seed,
            recipe=recipe,
            settings=dict(map(parse_assignment, settings or [])),
            over=dict(map(parse_values, over or [])),
            data=data,
            device=device,
            host_file=host_file,
            watch=view.watch,
        )
    names = [SYMBOLS.get(key, key) for key in best.choice]
    table = tables.make_table("choices, best first", *names, "validation accuracy", texts=0)
    for trial in best.trials:
        table.add_row(*(written(trial[key]) for key in best.choice), f"{trial['accuracy']:.2f}")
    table.add_row(*("-" for _ in names), f"{best.host_accuracy:.2f}", style="dim")
    console = output()
    console.print(table)
    own = "" if best.with_flashback else " as its recipe has it"
    console.print(f"The last row is the host alone{own}.{no_gain(best)}")
    if len(best.trials) < trials:
        console.print(f"These {len(best.trials)} are all choices there are.")
    places = [("--data", data), *(("--host-file", file) for file in host_file or [])]
    given = [str(word) for option in places if option[1] is not None for word in option]
    command = ["flashback", "compare", host, "--benchmark", benchmark, "--recipe", str(best.recipe), *given]
    use = "Use it" if best.accuracy > best.host_accuracy else "To see it on test images all the same"
    console.print(f"{use}: {shlex.join(command)}", soft_wrap=True)


def parse_values(assignment: str) -> tuple[str, Any]:
    """Split 'training.lr=0.03,0.1' into its key and its values; a YAML list says the same."""
    key, equals, text = assignment.partition("=")
    return parse_assignment(f"{key}{equals}[{text}]" if equals and not text.strip().startswith("[") else assignment)


def no_gain(best: Tuned) -> str:
    if best.accuracy > best.host_accuracy:
        return ""
    flashback = "flashback may not pay here, or " * best.with_flashback
    return f" No choice is better on these images: {flashback}more epochs and trials are needed."


# ---------------------------------------------------------------- cka


def cka(
    host: Annotated[Path, typer.Argument(help="The folder of a finished run of the host.")],
    flashback: Annotated[Path, typer.Argument(help="That of the same host with flashback.")],
    reference: Annotated[Path, typer.Argument(help="That of a run on all tasks at once (joint).")],
    out: Annotated[Path | None, typer.Option(help="A folder for cka.json, which a report shows.")] = None,
    data: Data = None,
    device: Device = "auto",
    host_file: HostFile = None,
    after_tasks: Annotated[
        int | None, typer.Option(help="Both arms as they were after so many tasks; needs checkpoint.tasks=true.")
    ] = None,
) -> None:
    """How near do both arms stay to joint training?

    Compares representations with CKA, layer by layer, on old and new classes.
    """
    found = compare_representations(
        host,
        flashback,
        reference,
        data=data,
        device=device,
        host_file=host_file,
        out=out,
        after_tasks=after_tasks,
    )
    columns = ("old, host", "old, flashback", "new, host", "new, flashback")
    table = tables.make_table("CKA with joint training, on old and new classes", "layer", *columns)
    for k, layer in enumerate(found["layers"]):
        values = [found[part][arm][k] for part in ("old", "new") for arm in ("host", "flashback")]
        table.add_row(layer, *(f"{value:.4f}" for value in values))
    output().print(table)
