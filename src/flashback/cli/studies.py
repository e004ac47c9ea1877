"""The commands sweep, tune and cka."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

import flashback as fb
from flashback.cli import options as opt
from flashback.cli.console import show_line, show_table
from flashback.cli.forms import choose
from flashback.cli.listing import sweep_names
from flashback.config import parse_assignment
from flashback.errors import require

if TYPE_CHECKING:
    from flashback.cli.progress import ProgressView
    from flashback.studies.jobs import Job
    from flashback.studies.sweeps import Outcome, Sweep
    from flashback.training.trainer import Event, Observer

DEFAULT_TRIALS, DEFAULT_BUDGET = 8, 20.0
SYMBOLS = {"flashback.alpha": "alpha_p", "flashback.epochs": "E1"}


def sweep(
    file: Annotated[str, Argument(help=f"A YAML file, or one of: {', '.join(sweep_names())}.")],
    out: opt.Out = None,
    jobs: opt.Jobs = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    track: opt.Track = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Show the planned runs and train none.")] = False,
) -> int:
    """Make many runs from one file, those that are missing.

    What is finished in the folder, from whatever machine, counts as done.
    """
    from flashback.cli.progress import ProgressView
    from flashback.cli.tables import report_failures, show_answers
    from flashback.reports import read_report
    from flashback.studies.jobs import RunContext
    from flashback.studies.sweeps import left_out, plan, read_sweep

    chosen, out = read_sweep(file), out or Path("runs") / f"sweep-{Path(file).stem}"
    triples = ((h, b, part.recipe) for part in chosen.parts for h, b in product(part.hosts, part.benchmarks))
    for triple in dict.fromkeys(triples):
        opt.note_missing_recipe(*triple, host_file)
    if dry_run:
        show_plan(chosen, plan(chosen, out, RunContext.of(data, device, host_file)))
    else:
        place: dict[str, Any] = {"jobs": jobs, "data": data, "device": device, "host_file": host_file}
        with ProgressView(several=True) as view:
            outcome = fb.run_sweep(chosen, out, track=track or [], watch=watch_states(view), **place)
        show_line(f"{chosen.title}: {outcome.finished} of {len(outcome.states)} runs done.")
    if bare := left_out(chosen):
        show_line(f"Left out: flashback for {', '.join(bare)}; there is no knowledge to attach to.")
    if dry_run:
        return 0
    if (report := read_report(out)).pairings:
        show_answers(report)
    show_line(f"Records: {out}; see them with: flashback report {out}")
    return report_failures(outcome.failures)


def show_plan(chosen: Sweep, planned: Sequence[Job]) -> None:
    from flashback.benchmarks.load import missing_data
    from flashback.studies.sweeps import benchmarks_of, survey

    outcome, waiting = survey(planned)
    show_table(chosen.title, ("run", "state"), outcome.states.items(), texts=2)
    show_line(f"{outcome.finished} of {len(planned)} runs done; nothing was trained.")
    sentences = (missing_data(name, waiting[0].context.data) for name in benchmarks_of(waiting))
    for sentence in dict.fromkeys(filter(None, sentences)):
        show_line(f"{sentence[0].upper()}{sentence[1:]}.")


def watch_states(view: ProgressView) -> Callable[[Outcome, str], Observer]:
    """Watch each run on a line of its own, and say how many are done, running and waiting whenever one ends."""

    def watch(outcome: Outcome, name: str) -> Observer:
        show_progress = view.watch(name)

        def observe(event: Event) -> None:
            show_progress(event)
            if event["event"] == "end":
                counts = Counter(outcome.states.values())
                summary = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
                view.say(f"{outcome.states[name]}: {name} ({summary})")

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
    jobs: Annotated[int | None, Option(help="With --forms: how many runs train at a time.")] = None,
    trials: Annotated[int | None, Option(help="How many choices to try, finished ones included; default: 8.")] = None,
    seed: Annotated[int, Option(help="Decides all randomness.")] = 0,
    recipe: opt.Recipe = None,
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
) -> None:
    """Choose settings on a validation split.

    alpha_p and E1, or any others: those of flashback for the host with flashback, all others for the host alone. With
    --forms: which form of flashback with which weight, or none.
    """
    from flashback.cli.progress import ProgressView
    from flashback.results.naming import value_in_words

    benchmark, recipe = benchmark or opt.DEFAULT_BENCHMARK, recipe or opt.DEFAULT_RECIPE
    out = out or Path("runs") / f"tune-{host}-{Path(benchmark).stem}"
    chosen: dict[str, Any] = {"settings": opt.parse_settings(settings)}
    place: dict[str, Any] = {"out": out, "data": data, "device": device, "host_file": host_file}
    if forms:
        require(trials is None and not over, "--trials and --over do not go with --forms, which has a --budget")
        chosen |= {"forms": form or [], "budget": DEFAULT_BUDGET if budget is None else budget, "jobs": jobs}
        return choose(host, benchmark, seed=seed, recipe=recipe, **chosen, **place)
    require(not form and budget is None and jobs is None, "--form, --budget and --jobs need --forms")
    chosen["over"], trials = dict(map(parse_values, over or [])), DEFAULT_TRIALS if trials is None else trials
    with ProgressView(several=True) as view:
        best = fb.tune(host, benchmark, trials=trials, seed=seed, recipe=recipe, watch=view.watch, **chosen, **place)
    rows = [[*(value_in_words(trial[key]) for key in best.choice), f"{trial['accuracy']:.2f}"] for trial in best.trials]
    rows.append([*("-" for _ in best.choice), f"{best.host_accuracy:.2f}"])
    columns = [*(SYMBOLS.get(key, key) for key in best.choice), "validation accuracy"]
    show_table("choices, best first", columns, rows, texts=0)
    as_recipe = "" if best.with_flashback else " as its recipe has it"
    is_better = best.accuracy > best.host_accuracy
    flashback = "flashback may not pay here, or " if best.with_flashback else ""
    advice = "" if is_better else f" No choice is better on these images: {flashback}more epochs and trials are needed."
    show_line(f"The last row is the host alone{as_recipe}.{advice}")
    if len(best.trials) < trials:
        show_line(f"These {len(best.trials)} are all choices there are.")
    options = [("--data", data), *(("--host-file", file) for file in host_file or [])]
    given = [str(word) for option in options if option[1] is not None for word in option]
    command = ["flashback", "compare", host, "--benchmark", benchmark, "--recipe", str(best.recipe), *given]
    show_line(f"{'Use it' if is_better else 'To see it on test images all the same'}: {shlex.join(command)}")


def parse_values(assignment: str) -> tuple[str, Any]:
    """Split 'training.lr=0.03,0.1' into its key and its values; a YAML list says the same."""
    key, equals, text = assignment.partition("=")
    return parse_assignment(f"{key}{equals}[{text}]" if equals and not text.strip().startswith("[") else assignment)


def cka(
    host: Annotated[Path, Argument(help="The folder of a finished run of the host.")],
    flashback: Annotated[Path, Argument(help="That of the same host with flashback.")],
    reference: Annotated[Path, Argument(help="That of a run on all tasks at once (joint).")],
    out: Annotated[Path | None, Option(help="A folder for cka.json, which a report shows.")] = None,
    data: opt.Data = None,
    device: opt.Device = "auto",
    host_file: opt.HostFile = None,
    after_tasks: Annotated[
        int | None, Option(help="Both arms as they were after so many tasks; needs checkpoint.tasks=true.")
    ] = None,
) -> None:
    """How near do both arms stay to joint training?

    Compares representations with CKA, layer by layer, on old and new classes.
    """
    from flashback.studies.similarity import compare_representations

    similarity = compare_representations(
        host, flashback, reference, data=data, device=device, host_file=host_file, out=out, after_tasks=after_tasks
    )
    values = [similarity[part][arm] for part in ("old", "new") for arm in ("host", "flashback")]
    rows = ((layer, *(f"{each[k]:.4f}" for each in values)) for k, layer in enumerate(similarity["layers"]))
    columns = ("layer", "old, host", "old, flashback", "new, host", "new, flashback")
    show_table("CKA with joint training, on old and new classes", columns, rows)
