"""The commands sweep, tune and cka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import flashback as fb
from flashback.cli import options as opt
from flashback.cli.console import show_line, show_table
from flashback.cli.frontier import choose
from flashback.cli.listing import sweep_names
from flashback.config import parse_assignment
from flashback.errors import FlashbackError, require

if TYPE_CHECKING:
    from flashback.cli.progress import ProgressView, RunLine
    from flashback.studies.jobs import Job
    from flashback.studies.sweeps import Outcome, Sweep
    from flashback.training.trainer import Event, Observer

DEFAULT_TRIALS, DEFAULT_BUDGET = 8, 20.0
LOOK = 1.0  # seconds between looks at a folder that is watched
SYMBOLS = {"flashback.alpha": "alpha_p", "flashback.epochs": "E1"}


def sweep(
    file: Annotated[str | None, Argument(help=f"A YAML file, or one of: {', '.join(sweep_names())}.")] = None,
    out: opt.Out = None,
    jobs: opt.Jobs = None,
    on: opt.On = "local",
    per_run: opt.PerRun = None,
    slurm: opt.Slurm = None,
    shard: opt.Shard = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    track: opt.Track = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the planned runs and their cost without training.")
    ] = False,
    watch: Annotated[
        Path | None, Option(metavar="DIR", help="Show the runs of a folder that another process is training.")
    ] = None,
) -> int:
    """Train the runs that a file describes.

    Runs that are finished in the folder, on whatever machine, are not repeated.
    """
    from flashback.cli.progress import ProgressView
    from flashback.cli.tables import report_failures, show_answers
    from flashback.reports import read_report
    from flashback.studies.executors import take_shard
    from flashback.studies.jobs import RunContext
    from flashback.studies.sweeps import left_out, plan, read_sweep

    if watch is not None:
        require(file is None, "--watch takes the folder of a sweep and no file")
        watch_folder(watch)
        return 0
    if file is None:
        raise FlashbackError("give a sweep file, or the name of a shipped sweep (flashback list sweeps)")
    definition, out = read_sweep(file), out or Path("runs") / f"sweep-{Path(file).stem}"
    triples = ((h, b, part.recipe) for part in definition.parts for h, b in product(part.hosts, part.benchmarks))
    executor = opt.choose_executor(on, jobs, per_run, slurm)
    for triple in dict.fromkeys(triples):
        opt.note_missing_recipe(*triple, host_file)
    if dry_run:
        context = RunContext.of(data, device, host_file, executor=executor)
        show_plan(definition, take_shard(plan(definition, out, context), shard))
    else:
        run_options: dict[str, Any] = {"on": executor, "shard": shard, "data": data, "device": device}
        with ProgressView(several=True) as view:
            outcome = fb.run_sweep(
                definition, out, host_file=host_file, track=track or [], watch=watch_states(view), **run_options
            )
        show_line(f"{definition.title}: {outcome.finished} of {len(outcome.states)} runs done.")
        if not outcome.states:
            show_line(f"There are fewer runs than shards, and none in shard {shard}.")
            return 0
    if bare := left_out(definition):
        show_line(f"Left out: flashback for {', '.join(bare)}; there is no knowledge to attach to.")
    if dry_run:
        return 0
    if (report := read_report(out)).pairings:
        show_answers(report)
    show_line(f"Records: {out}; see them with: flashback report {out}")
    return report_failures(outcome.failures)


def show_plan(definition: Sweep, planned: Sequence[Job]) -> None:
    from flashback.benchmarks.load import missing_data
    from flashback.studies.preview import estimate_cost, kind_of
    from flashback.studies.sweeps import benchmarks_of, survey

    outcome, waiting = survey(planned)
    show_table(definition.title, ("run", "state"), outcome.states.items(), texts=2)
    show_line(f"{outcome.finished} of {len(planned)} runs done; nothing was trained.")
    missing = {name: missing_data(name, waiting[0].context.data) for name in benchmarks_of(waiting)}
    for sentence in dict.fromkeys(filter(None, missing.values())):
        show_line(f"{sentence[0].upper()}{sentence[1:]}.")
    estimates = estimate_cost(planned, [job for job in waiting if missing[kind_of(job)[1]] is None])
    if not estimates:
        return
    rows = [
        (*kind, f"{cost.runs:,}", f"{cost.steps:,}", f"{cost.images:,}", clock(cost.seconds))
        for kind, cost in estimates.items()
    ]
    show_table("what the waiting runs would spend", ("host", "benchmark", "runs", "steps", "images", "time"), rows, 2)
    known = [cost.seconds for cost in estimates.values() if cost.seconds is not None]
    if known:
        others = "" if len(known) == len(estimates) else "; hosts without a finished run are not counted"
        show_line(f"Time one after another, by finished runs: {clock(sum(known))}{others}.")
    else:
        show_line("The time is known when a run has finished.")


def clock(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s"


class Throughput:
    """How many runs are done, running and waiting, how many end in an hour, and the time left."""

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self.done_before: int | None = None

    def summary(self, states: Mapping[str, str]) -> str:
        counts = Counter(states.values())
        done = counts["done"]
        self.done_before = done if self.done_before is None else self.done_before
        text = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
        ended, left = done - self.done_before, len(states) - done - counts["failed"]
        if not (ended and left):
            return text
        seconds = (time.monotonic() - self.begun) / ended  # between two ends
        rate = 3600 / seconds
        return f"{text}; {rate:,.{0 if rate >= 10 else 1}f} an hour, {clock(left * seconds)} left"


def watch_folder(folder: Path) -> None:
    """Show the runs below a folder until none is left to wait for; without a terminal show their states once."""
    from flashback.cli.progress import ProgressView
    from flashback.engines.following import DONE, RUNNING, Follower, survey_folder
    from flashback.records import holder_of

    require(folder.is_dir(), f"there is no folder {folder}; give the folder of a sweep, a comparison or a tuning")
    require(bool(survey_folder(folder)), f"{folder} holds no runs")
    lines: dict[str, tuple[RunLine, Follower]] = {}
    throughput, before = Throughput(), ""
    with ProgressView() as view:
        while True:
            states = survey_folder(folder)
            if (text := throughput.summary(states)) != before:
                view.say(text)
                before = text
            if view.disable or set(states.values()) == {DONE}:
                return
            running = {name for name, state in states.items() if state == RUNNING}
            for name in running - lines.keys():
                node = holder_of(folder / name)
                line = view.watch(f"{node}: {name}" if node else name)
                lines[name] = line, Follower(folder / name, ignoring_malformed_events(line), all_events=True)
                lines[name][1].report()
                line.restart_clock()
            for _, follower in lines.values():
                follower.report()
            for name in lines.keys() - running:
                lines.pop(name)[0]({"event": "end"})
            time.sleep(LOOK)


def ignoring_malformed_events(observer: Observer) -> Observer:
    """An observer that ignores lines of a log that are not events of this version."""

    def observe(event: Event) -> None:
        with suppress(KeyError, TypeError, ValueError, AttributeError, IndexError):
            observer(event)

    return observe


def watch_states(view: ProgressView) -> Callable[[Outcome, str], Observer]:
    """Watch each run on a line of its own, and say how many are done, running and waiting whenever one ends."""

    throughput = Throughput()

    def watch(outcome: Outcome, name: str) -> Observer:
        show_progress = view.watch(name)

        def observe(event: Event) -> None:
            show_progress(event)
            if event["event"] == "end":
                view.say(f"{outcome.states[name]}: {name} ({throughput.summary(outcome.states)})")

        return observe

    return watch


def tune(
    host: opt.Host,
    out: opt.Out = None,
    benchmark: opt.Benchmark = None,
    forms: Annotated[
        bool, Option("--forms", help="Choose among the host alone, controls and forms of flashback, within --budget.")
    ] = False,
    form: Annotated[
        list[str] | None,
        Option(metavar="FORM", help="With --forms: only this one, as for `flashback frontier`; may be repeated."),
    ] = None,
    budget: Annotated[
        float | None, Option(help="With --forms: what all runs may cost, in full runs; default: 20.")
    ] = None,
    trials: Annotated[int | None, Option(help="How many choices to try, finished ones included; default: 8.")] = None,
    seed: Annotated[int, Option(help="Controls all randomness.")] = 0,
    recipe: opt.Recipe = None,
    jobs: Annotated[int | None, Option(help="How many runs train at a time; default: 1; on Ray or Slurm 8.")] = None,
    on: opt.On = "local",
    per_run: opt.PerRun = None,
    slurm: opt.Slurm = None,
    storage: Annotated[
        str | None,
        Option(
            metavar="WHERE", help="Share the search with others: postgresql+psycopg://USER@HOST/NAME or journal:FILE."
        ),
    ] = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    settings: opt.Set = None,
    over: Annotated[
        list[str] | None,
        Option(
            metavar="KEY=A,B,C",
            help="Values to choose among, e.g. training.lr=0.03,0.1,0.3; may be repeated. Default: alpha_p and E1.",
        ),
    ] = None,
) -> int:
    """Choose settings on a validation split.

    Tunes alpha_p and E1, or the settings given with --over: those of flashback for the host with flashback, all others
    for the host alone. With --forms, chooses a form of flashback and its weight, or none.
    """
    from flashback.cli.progress import ProgressView
    from flashback.results.naming import value_in_words

    benchmark, recipe = benchmark or opt.DEFAULT_BENCHMARK, recipe or opt.DEFAULT_RECIPE
    out = out or Path("runs") / f"tune-{host}-{Path(benchmark).stem}"
    keywords: dict[str, Any] = {"settings": opt.parse_settings(settings)}
    run_options: dict[str, Any] = {"out": out, "data": data, "device": device, "host_file": host_file}
    run_options["on"] = opt.choose_executor(on, jobs, per_run, slurm)
    if forms:
        require(trials is None and not over, "--trials and --over do not go with --forms, which has a --budget")
        require(storage is None, "--storage does not go with --forms, which draws nothing at random")
        keywords |= {"forms": form or [], "budget": DEFAULT_BUDGET if budget is None else budget}
        return choose(host, benchmark, seed=seed, recipe=recipe, **keywords, **run_options)
    require(not form and budget is None, "--form and --budget need --forms")
    keywords["over"], trials = dict(map(parse_values, over or [])), DEFAULT_TRIALS if trials is None else trials
    run_options["storage"] = storage
    with ProgressView(several=True) as view:
        best = fb.tune(
            host, benchmark, trials=trials, seed=seed, recipe=recipe, watch=view.watch, **keywords, **run_options
        )
    rows = [[*(value_in_words(trial[key]) for key in best.choice), f"{trial['accuracy']:.2f}"] for trial in best.trials]
    rows.append([*("-" for _ in best.choice), f"{best.host_accuracy:.2f}"])
    columns = [*(SYMBOLS.get(key, key) for key in best.choice), "validation accuracy"]
    show_table("choices, best first", columns, rows, texts=0)
    as_recipe = "" if best.with_flashback else " as its recipe has it"
    is_better = best.accuracy > best.host_accuracy
    flashback = "flashback may not pay here, or " if best.with_flashback else ""
    advice = "" if is_better else f" No choice is better on these images: {flashback}more epochs and trials are needed."
    show_line(f"The last row is the host alone{as_recipe}.{advice}")
    if len(best.trials) < trials and storage is None:  # else another driver may still be trying some
        show_line(f"These {len(best.trials)} are all choices there are.")
    command = opt.compare_command(host, benchmark, best.recipe, data, host_file)
    show_line(f"{'Use it' if is_better else 'To see it on test images all the same'}: {command}")
    return 0


def parse_values(assignment: str) -> tuple[str, Any]:
    """Split 'training.lr=0.03,0.1' into its key and its values; a YAML list says the same."""
    key, equals, text = assignment.partition("=")
    return parse_assignment(f"{key}{equals}[{text}]" if equals and not text.strip().startswith("[") else assignment)


def cka(
    host: Annotated[Path, Argument(help="The folder of a finished run of the host.")],
    flashback: Annotated[Path, Argument(help="The folder of a finished run of the same host with flashback.")],
    reference: Annotated[Path, Argument(help="The folder of a finished run on all tasks at once (joint).")],
    out: Annotated[Path | None, Option(help="A folder for cka.json, which a report shows.")] = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    after_tasks: Annotated[
        int | None, Option(help="Compare both arms as they were after this many tasks; needs checkpoint.tasks=true.")
    ] = None,
) -> None:
    """Compare representations with those of joint training.

    Compares both arms with the reference by CKA, layer by layer, on old and new classes.
    """
    from flashback.studies.similarity import compare_representations

    similarity = compare_representations(
        host, flashback, reference, data=data, device=device, host_file=host_file, out=out, after_tasks=after_tasks
    )
    values = [similarity[part][arm] for part in ("old", "new") for arm in ("host", "flashback")]
    rows = ((layer, *(f"{each[k]:.4f}" for each in values)) for k, layer in enumerate(similarity["layers"]))
    columns = ("layer", "old, host", "old, flashback", "new, host", "new, flashback")
    show_table("CKA with joint training, on old and new classes", columns, rows)
