"""The figures as tables: sheets of words that the terminal and Markdown show alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flashback.files import write_atomically
from flashback.reports.markdown import table_lines
from flashback.speed.figures import MODES, Bench, Case, Mode, Run, RunCase, Speed
from flashback.speed.parts import RATIO
from flashback.speed.plot import plot_speeds

ABSENT = "-"


@dataclass(frozen=True)
class Sheet:
    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    texts: int = 1  # the first columns, which hold words; the others hold numbers
    notes: Mapping[str, str] = field(default_factory=dict)  # sentences, by how the columns they are of begin

    @property
    def note(self) -> str:
        return " ".join(self.notes.values())


def write_tables(bench: Bench, stem: str | Path) -> None:
    """Every table as Markdown, and the plot: STEM.md and STEM.png."""
    stem = Path(stem)
    write_atomically(stem.with_name(f"{stem.name}.md"), markdown(bench))
    figure = plot_speeds(bench)
    if figure is not None:
        figure.savefig(stem.with_name(f"{stem.name}.png"), dpi=160, bbox_inches="tight")


def markdown(bench: Bench) -> str:
    size = bench.size
    versions = ", ".join(f"{name} {version}" for name, version in bench.versions.items())
    shape = "x".join(map(str, size.shape))
    lines = [
        f"# Speed on {bench.device}",
        "",
        f"Begun {bench.date}; {bench.precision}; {versions}. {size.net} on random images of {shape}, "
        f"{size.classes} classes a task, {size.per_class} images a class.",
    ]
    for sheet in sheets(bench):
        table = table_lines(sheet.columns, sheet.rows, sheet.texts)
        lines += ["", f"## {sheet.title}", "", *table, *(["", sheet.note] if sheet.note else [])]
    if bench.failures:
        lines += ["", "## Failed", "", *(f"- {label}: {problem}" for label, problem in bench.failures.items())]
    return "\n".join(lines) + "\n"


def sheets(bench: Bench) -> list[Sheet]:
    """All tables that have something to show."""
    made = [steps_sheet(bench), parts_sheet(bench), runs_sheet(bench), *task_sheets(bench), packed_sheet(bench)]
    return [without_empty(sheet) for sheet in (*made, knowledge_sheet(bench)) if sheet.rows]


def without_empty(sheet: Sheet) -> Sheet:
    """Less the rows and columns of what is not known here, such as the memory of a CPU, and the notes on them."""
    shown = [k for k in range(len(sheet.columns)) if any(row[k] != ABSENT for row in sheet.rows)]
    rows = [[row[k] for k in shown] for row in sheet.rows if any(cell != ABSENT for cell in row[sheet.texts :])]
    columns = tuple(sheet.columns[k] for k in shown)
    notes = {word: note for word, note in sheet.notes.items() if any(column.startswith(word) for column in columns)}
    return replace(sheet, columns=columns, rows=rows, notes=notes)


# ---------------------------------------------------------------- numbers in words


def amount(value: float | None, form: str = ",.0f") -> str:
    return ABSENT if value is None else format(value, form)


def mebibytes(count: int) -> str:
    return amount(count / 2**20 if count else None)


# ---------------------------------------------------------------- the sheets


def steps_sheet(bench: Bench) -> Sheet:
    modes = [mode for mode in MODES if any(speed.mode == mode for speed in bench.speeds)]
    found = {(s.host, s.batch_size, s.flashback, s.mode): s for s in bench.speeds}
    rows = []
    for host, batch, flashback in sorted({key[:3] for key in found}):
        own = {mode: found[host, batch, flashback, mode] for mode in modes if (host, batch, flashback, mode) in found}
        bare = {mode: found[host, batch, False, mode] for mode in own if (host, batch, False, mode) in found}
        cells = [amount(own[mode].images_per_second if mode in own else None) for mode in modes]
        costs = [amount(cost(own, bare, mode) if flashback else None, ".2f") for mode in modes]
        peak = mebibytes(own[usual_mode(own)].peak_bytes)
        rows.append([Case(host, flashback, modes[0], batch).method, str(batch), *cells, *costs, peak])
    columns = ("host", "batch", *modes, *(f"cost, {mode}" for mode in modes), "peak MiB")
    notes = {
        "cost": "Cost: the images/s of the host alone over those with flashback, in the same mode.",
        "peak": "Peak: captured where that was measured, so that it compares hosts and arms.",
    }
    return Sheet("Training step, images/s in steady state", columns, rows, notes=notes)


def usual_mode(measured: Mapping[Mode, Speed]) -> Mode:
    """The mode that a run on a GPU takes by itself, where it was measured."""
    return "captured" if "captured" in measured else next(iter(measured))


def cost(own: Mapping[Mode, Speed], bare: Mapping[Mode, Speed], mode: Mode) -> float | None:
    return bare[mode].images_per_second / own[mode].images_per_second if mode in own and mode in bare else None


def parts_sheet(bench: Bench) -> Sheet:
    seconds = [[name, f"{value:.4f} s"] for name, value in bench.parts.items() if name != RATIO]
    ratio = [[RATIO, f"{bench.parts[RATIO]:.3f}"]] if RATIO in bench.parts else []
    return Sheet(f"Parts of a run, tasks of {bench.size.images:,} images", ("part", "cost"), seconds + ratio)


def runs_sheet(bench: Bench) -> Sheet:
    columns = (
        "run",
        "tasks",
        "epochs",
        "cache",
        "seconds",
        "images/s",
        "in steps",
        "preparing s",
        "outside",
        "peak MiB",
    )
    rows = [
        [
            f"{run.method}, batch {run.batch_size}, {run.mode}",
            str(run.tasks),
            str(run.epochs),
            run.cache,
            amount(run.seconds, ",.1f"),
            amount(run.images_per_second),
            amount(run.images / run.training_seconds if run.training_seconds else None),
            amount(run.preparation_seconds, ",.1f"),
            f"{100 * run.share_outside_steps:.1f} %",
            mebibytes(run.peak_bytes),
        ]
        for run in bench.runs
    ]
    notes = {
        "images/s": "Images/s over everything, and in training steps alone.",
        "preparing": "Preparing: captures and compilations.",
        "outside": "Outside: the share of all seconds that were spent outside training steps.",
    }
    return Sheet("Whole runs", columns, rows, notes=notes)


def task_sheets(bench: Bench) -> Iterator[Sheet]:
    """Whether time, memory and compilations stay the same from task to task."""
    for run in bench.runs:
        columns = ("task", *(str(k + 1) for k in range(len(run.per_task))))
        yield Sheet(f"Tasks of the {run.label}", columns, task_rows(run))


def task_rows(run: Run) -> list[list[str]]:
    tasks = run.per_task
    return [
        ["seconds", *(amount(task.seconds, ",.2f") for task in tasks)],
        ["of these in steps", *(amount(task.training_seconds, ",.2f") for task in tasks)],
        ["images", *(amount(task.images) for task in tasks)],
        ["peak MiB", *(mebibytes(task.peak_bytes) for task in tasks)],
        ["compilations", *(str(task.compilations) for task in tasks)],
    ]


def packed_sheet(bench: Bench) -> Sheet:
    alone = {(*run_key(run), run.cache): run.images_per_second for run in bench.runs}
    columns = (
        "run",
        "tasks",
        "epochs",
        "at a time",
        "MPS",
        "portion",
        "seconds",
        "images/s",
        "all training",
        "over one",
    )
    rows = []
    for packed in sorted(bench.packed, key=lambda packed: (*run_key(packed), packed.count)):
        one = alone.get((*run_key(packed), packed.cache))
        rows.append(
            [
                f"{packed.method}, batch {packed.batch_size}, {packed.mode}",
                str(packed.tasks),
                str(packed.epochs),
                str(packed.count),
                "yes" if packed.mps else "no",
                f"{packed.portion} %",
                amount(packed.seconds, ",.1f"),
                amount(packed.images_per_second),
                amount(packed.together_per_second),
                amount(packed.images_per_second / one if one else None, ".2f"),
            ]
        )
    notes = {
        "images/s": "Images/s of all runs from their common start to the end of the slowest, and while every one of "
        "them was training.",
        "over": "Over one: the former over that of the same run alone.",
    }
    return Sheet("Whole runs at a time", columns, rows, notes=notes)


def run_key(run: RunCase) -> tuple[str, bool, str, int, int, int]:
    return run.host, run.flashback, run.mode, run.batch_size, run.tasks, run.epochs


def knowledge_sheet(bench: Bench) -> Sheet:
    """The largest of each kind, by host and number of tasks: a step of the second one, or a whole run."""
    sizes: dict[tuple[str, int], dict[str, int]] = {}
    figures: list[Speed | Run] = [*bench.speeds, *bench.runs]
    for figure in figures:
        tasks = figure.tasks if isinstance(figure, Run) else 2
        own = sizes.setdefault((figure.host, tasks), {})
        for kind, count in figure.knowledge_bytes.items():
            own[kind] = max(count, own.get(kind, 0))
    rows = [
        [host, str(tasks), *(amount(own.get(kind)) for kind in ("stable", "plastic"))]
        for (host, tasks), own in sorted(sizes.items())
        if own.get("stable")
    ]
    return Sheet("Knowledge, bytes", ("host", "tasks", "stable", "plastic"), rows)
