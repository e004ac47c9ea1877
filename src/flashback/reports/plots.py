"""The charts of a report as files for papers: each as PNG and as PDF, drawn without a display."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashback.plugin import PHASE_1
from flashback.records.terms import ARMS, FLASHBACK, HOST, SETTINGS
from flashback.reports.pairings import Pairing, Report
from flashback.reports.reading import Similarity
from flashback.reports.rows import settings_in, varying_settings
from flashback.reports.series import Losses, accuracy_band, balance, loss_curves, mean_matrix
from flashback.reports.words import ARM_TITLES, SETTING_TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase

# Okabe and Ito's colours, told apart by everyone; dashes and markers say the same once more.
LOOKS: dict[str, dict[str, Any]] = {
    HOST: {"color": "#0072B2", "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    FLASHBACK: {"color": "#D55E00", "linestyle": "-", "marker": "s"},
}
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1b1f26", "#8c6d31")
METHOD_MARKERS = "osD^vP*X"
TERM_COLOURS = ("#1b1f26", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#E69F00")
TERM_DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3)))
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"dpi": 160},
    "pdf": {"metadata": {"CreationDate": None}},
}  # the same runs give the same files
PADDING = 0.1  # inches around a chart
POINTS = 600
LOGARITHMIC = 20  # times the least value, and an axis is better logarithmic
LINE = 56  # letters in a line of a name


def write_plots(report: Report, folder: str | Path) -> list[Path]:
    """The answers, all methods, and a folder of charts for every pairing and similarity; returns the files written."""
    folder = Path(folder)
    written: list[Path] = []
    taken: set[str] = set()

    def save(figure: Figure | None, place: Path, kind: str) -> None:
        if figure is not None:
            place.mkdir(parents=True, exist_ok=True)
            whole = laid_out(figure)
            for suffix, options in FORMATS.items():
                written.append(place / f"{kind}.{suffix}")
                figure.savefig(written[-1], bbox_inches=whole, **options)

    for setting in SETTINGS:
        save(plot_answers(report, setting), folder, f"answers-{SETTING_TITLES[setting]}")
        for where in report.protocols.values():
            name = folder_name(f"methods {where} {SETTING_TITLES[setting]}", taken)
            save(plot_methods(report, where, setting), folder, name)
        for (where, key), methods in grids(report).items():
            name = folder_name(f"{key} {where} {SETTING_TITLES[setting]}", taken)
            save(plot_grid(methods, key, setting, where), folder, name)
    alone = f" on {Path(report.benchmarks[0]).stem}" if len(report.benchmarks) == 1 else ""  # names then leave it out
    for pairing in report.pairings:
        place = folder / folder_name(pairing.name + alone, taken)
        for setting in SETTINGS:
            for kind, plot in BY_SETTING.items():
                save(plot(pairing, setting), place, f"{kind}-{SETTING_TITLES[setting]}")
        save(plot_losses(pairing), place, "losses")
        save(plot_budget(pairing), place, "budget")
    for similarity in report.similarities:
        save(plot_similarity(similarity), folder / folder_name(f"cka {similarity.title}", taken), "cka")
    return written


def folder_name(text: str, taken: set[str]) -> str:
    """Letters, digits and dashes alone, whatever the names in the records; none twice."""
    name = base = re.sub(r"[^a-z0-9.+]+", "-", text.lower())[:120].strip("-.") or "plots"
    count = 1
    while name in taken:
        count += 1
        name = f"{base}-{count}"
    taken.add(name)
    return name


def new_figure(width: float, height: float, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(1, columns, squeeze=False, **options)[0]


def laid_out(figure: Figure) -> BboxBase:
    """Make room for everything once, where the figure itself would for each format; returns the area drawn on."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if len(figure.axes) > 1 or figure.legends:  # which one chart alone does not need
        ConstrainedLayoutEngine().execute(figure)
    return figure.get_tightbbox().padded(PADDING)


def shown(text: str, lines: int | None = 3) -> str:
    """Text in lines that leave room for the axes; dollars in a name are dollars, not mathematics."""
    wrapped = textwrap.wrap(text, LINE, max_lines=lines, placeholder=" …")
    return "\n".join(wrapped).replace("$", r"\$")


# ---------------------------------------------------------------- the charts


def plot_answers(report: Report, setting: str) -> Figure | None:
    """The difference in average accuracy of every pairing, with its 95 % interval."""
    tests = [(pairing.name, pairing.row(setting).test) for pairing in report.pairings]
    tests = [(name, test) for name, test in tests if test.difference is not None]
    if not tests:
        return None
    labels = [shown(name, lines=None) for name, _ in tests]  # whole: their ends may be all that tells them apart
    lines = [label.split("\n") for label in labels]
    letters, most = max(len(line) for label in lines for line in label), max(map(len, lines))
    figure, (axes,) = new_figure(4.5 + 0.09 * letters, 1.2 + (0.14 + 0.2 * most) * len(tests))
    axes.axvline(0, color="0.6", linewidth=1)
    for k, (_, test) in enumerate(tests):
        if test.low is not None and test.high is not None:
            axes.plot([test.low, test.high], [k, k], color=LOOKS[FLASHBACK]["color"])
        axes.plot([test.difference], [k], "s", color=LOOKS[FLASHBACK]["color"])
    axes.set_yticks(range(len(tests)), labels)
    axes.set_ylim(len(tests) - 0.4, -0.6)
    axes.set_xlabel(f"average accuracy, flashback − host ({SETTING_TITLES[setting]}, 95 % interval)")
    return figure


def plot_methods(report: Report, where: str, setting: str) -> Figure | None:
    """Accuracy after every task of a protocol, a colour for each method; one that saw all at once has its end alone."""
    methods = [pairing for pairing in report.pairings if report.protocols[pairing.protocol] == where]
    if len(methods) < 2:
        return None
    hosts = Counter(pairing.any_run.host for pairing in methods)
    figure, (axes,) = new_figure(6.5, max(4.0, 0.21 * (len(methods) + len(ARMS))))
    for k, pairing in enumerate(methods):
        colour, marker = METHOD_COLOURS[k % len(METHOD_COLOURS)], METHOD_MARKERS[k // len(METHOD_COLOURS) % 8]
        host = pairing.any_run.host
        axes.plot([], [], color=colour, marker=marker, label=shown(host if hosts[host] == 1 else pairing.name, lines=2))
        for arm in pairing.arms:
            mean = accuracy_band([run.record for run in pairing.of(arm)], setting).mean
            if pairing.row(setting, "average_incremental_accuracy").mean[arm] is None:
                axes.axhline(mean[-1], color=colour, linestyle=":")
            else:
                look = {"linestyle": LOOKS[arm]["linestyle"], "marker": marker, "markersize": 4}
                axes.plot(np.arange(1, pairing.tasks + 1), mean, color=colour, **look)
    for arm in ARMS:
        axes.plot([], [], color="0.4", linestyle=LOOKS[arm]["linestyle"], label=ARM_TITLES[arm])
    axes.set(xlabel="tasks learned", ylabel=f"average accuracy, % ({SETTING_TITLES[setting]})")
    axes.set_title(shown(where), fontsize="medium")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def grids(report: Report) -> dict[tuple[str, str], list[Pairing]]:
    """The methods of hosts of which one number alone was varied, by protocol and the key of that number.

    Where the number is one of the protocol, as that of tasks, they are all on one benchmark.
    """
    hosts: dict[tuple[str, str], list[Pairing]] = {}
    for method in report.methods:
        hosts.setdefault((method.any_run.benchmark, method.any_run.host), []).append(method)
    found: dict[tuple[str, str], list[Pairing]] = {}
    for (benchmark, _), methods in hosts.items():
        varying = varying_settings(run for method in methods for run in method.runs.values())
        if len(varying) == 1 and all(type(value) in (int, float) for value in values_of(varying[0], methods)):
            same = len({method.protocol for method in methods}) == 1
            where = report.protocols[methods[0].protocol] if same else Path(benchmark).stem
            found.setdefault((where, varying[0]), []).extend(methods)
    return found


def values_of(key: str, methods: Iterable[Pairing]) -> list[Any]:
    """Of those that have the setting."""
    return [value for one in methods if (value := settings_in(one.any_run, [key])[key]) is not None]


def plot_grid(methods: Sequence[Pairing], key: str, setting: str, where: str = "") -> Figure:
    """Accuracy against a setting, mean and deviation over seeds; a host that does not have it is a level line."""
    figure, (axes,) = new_figure(5.5, 3.6)
    for k, host in enumerate(dict.fromkeys(method.any_run.host for method in methods)):
        colour = METHOD_COLOURS[k % len(METHOD_COLOURS)]
        axes.plot([], [], color=colour, label=shown(host, lines=2))
        for arm in ARMS:
            own = [method for method in methods if method.any_run.host == host and method.arms == [arm]]
            look = {name: LOOKS[arm][name] for name in ("linestyle", "marker")} | {"color": colour}
            points = [(settings_in(one.any_run, [key])[key], *one.measured(setting)) for one in own]
            for value, mean, _ in points:
                if value is None and mean is not None:
                    axes.axhline(mean, color=colour, linestyle=look["linestyle"])
            if known := sorted(point for point in points if point[0] is not None):
                values, means, deviations = zip(*known, strict=True)
                axes.errorbar(values, means, [one or 0 for one in deviations], capsize=3, **look)
    for arm in (arm for arm in ARMS if any(method.arms == [arm] for method in methods)):
        axes.plot([], [], color="0.4", linestyle=LOOKS[arm]["linestyle"], label=ARM_TITLES[arm])
    least, most = min(values_of(key, methods)), max(values_of(key, methods))
    axes.set_xscale("log" if least > 0 and most >= LOGARITHMIC * least else "linear")
    axes.set(xlabel=shown(key), ylabel=f"average accuracy, % ({SETTING_TITLES[setting]})")
    axes.set_title(shown(where), fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")
    return figure


def plot_curve(pairing: Pairing, setting: str) -> Figure:
    figure, (axes,) = new_figure(5, 3.4)
    steps = np.arange(1, pairing.tasks + 1)
    for arm in pairing.arms:
        band = accuracy_band([run.record for run in pairing.of(arm)], setting)
        axes.fill_between(steps, band.low, band.high, color=LOOKS[arm]["color"], alpha=0.18, linewidth=0)
        axes.plot(steps, band.mean, label=ARM_TITLES[arm], **LOOKS[arm])
    axes.set(xlabel="tasks learned", ylabel=f"average accuracy, % ({SETTING_TITLES[setting]})")
    axes.set_title(shown(pairing.name), fontsize="medium")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def plot_matrices(pairing: Pairing, setting: str) -> Figure:
    matrices = {arm: mean_matrix([run.record for run in pairing.of(arm)], setting) for arm in pairing.arms}
    figure, axes = new_figure(4 * (len(matrices) + (len(matrices) == len(ARMS))), 3.6, 3 if len(matrices) > 1 else 1)
    for own, (arm, matrix) in zip(axes, matrices.items(), strict=False):
        image = own.imshow(matrix, vmin=0, vmax=100, cmap="cividis")
        own.set_title(ARM_TITLES[arm], fontsize="medium")
        figure.colorbar(image, ax=own, shrink=0.8, use_gridspec=False)
    if len(matrices) == len(ARMS):
        difference = matrices[FLASHBACK] - matrices[HOST]
        most = max(1.0, float(np.nanmax(np.abs(difference))))
        image = axes[-1].imshow(difference, vmin=-most, vmax=most, cmap="PuOr_r")
        axes[-1].set_title("flashback − host", fontsize="medium")
        figure.colorbar(image, ax=axes[-1], shrink=0.8, use_gridspec=False)
    ticks = np.unique(np.linspace(0, pairing.tasks - 1, min(pairing.tasks, 10)).round().astype(int))
    for own in axes:
        own.set_xticks(ticks, [str(tick + 1) for tick in ticks])
        own.set_yticks(ticks, [str(tick + 1) for tick in ticks])
        own.set(xlabel="accuracy on task", ylabel="after task")
    figure.suptitle(f"{shown(pairing.name)}, {SETTING_TITLES[setting]}", fontsize="medium")
    return figure


def plot_balance(pairing: Pairing, setting: str) -> Figure | None:
    if pairing.tasks < 2:
        return None
    figure, (axes,) = new_figure(4.4, 3.6)
    points = {arm: balance([run.record for run in pairing.of(arm)], setting) for arm in pairing.arms}
    if len(points) == len(ARMS):
        for x, y in zip(*(np.stack([points[arm][k] for arm in ARMS], axis=1) for k in (0, 1)), strict=True):
            axes.plot(x, y, color="0.7", linewidth=1, zorder=0)
    for arm, (learned, forgotten) in points.items():
        axes.plot(learned, forgotten, label=ARM_TITLES[arm], **LOOKS[arm] | {"linestyle": "none"})
    for task, (x, y) in enumerate(zip(*points[pairing.arms[-1]], strict=True)):
        axes.annotate(str(task + 1), (x, y), xytext=(5, -4), textcoords="offset points", fontsize="small")
    axes.set(xlabel="accuracy when new, % (plasticity)", ylabel="forgetting, %")
    axes.set_title(f"{shown(pairing.name)}, {SETTING_TITLES[setting]}", fontsize="medium")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


BY_SETTING: dict[str, Callable[[Pairing, str], Figure | None]] = {
    "accuracy": plot_curve,
    "matrices": plot_matrices,
    "balance": plot_balance,
}


def plot_losses(pairing: Pairing) -> Figure | None:
    curves = {arm: loss_curves([run.epochs for run in pairing.of(arm)], POINTS) for arm in pairing.arms}
    known: dict[str, Losses] = {arm: curve for arm, curve in curves.items() if curve is not None}
    if not known:
        return None
    figure, axes = new_figure(4.6 * len(known), 3.4, len(known), sharey=True)
    names = list(dict.fromkeys(name for curve in known.values() for name in curve.terms))
    lowest = min(float(np.nanmin(values)) for curve in known.values() for values in curve.terms.values())
    for own, (arm, curve) in zip(axes, known.items(), strict=True):
        draw_stages(own, curve)
        for k, name in enumerate(names):
            if name in curve.terms:
                draw_term(own, curve, name, color=TERM_COLOURS[k % 6], linestyle=TERM_DASHES[k % 6])
        own.set(xlabel="epochs of the whole run", title=ARM_TITLES[arm], yscale="log" if lowest > 0 else "linear")
    axes[0].set_ylabel("loss")
    axes[-1].legend(fontsize="small")
    figure.suptitle(shown(pairing.name), fontsize="medium")
    return figure


def draw_term(axes: Any, curve: Losses, name: str, **look: Any) -> None:
    """One line per stage: between stages the model, the data or the loss has changed."""
    label = shown(name)
    for segment in curve.segments:
        inside = (curve.x > segment.start) & (curve.x <= segment.stop)
        if not np.isnan(curve.terms[name][inside]).all():
            axes.plot(curve.x[inside], curve.terms[name][inside], marker=".", markersize=3, label=label, **look)
            label = "_"  # which legends leave out


def draw_stages(axes: Any, curve: Losses) -> None:
    """Tasks divided by thin lines, phase 1 shaded, the flashback a dashed line."""
    for before, segment in zip([None, *curve.segments], curve.segments, strict=False):
        if segment.stage == PHASE_1:
            axes.axvspan(segment.start, segment.stop, color="0.9", linewidth=0)
        if before is not None:
            same = before.task == segment.task
            axes.axvline(segment.start, color="0.3" if same else "0.8", linestyle="--" if same else "-", linewidth=0.8)


def plot_budget(pairing: Pairing) -> Figure | None:
    """What the arms spent, side by side; of one alone the tables say it."""
    if pairing.is_single:
        return None
    costs = pairing.comparison.cost
    quantities: dict[str, dict[str, float | None]] = {
        "optimiser steps": {arm: cost.steps for arm, cost in costs.items()},
        "images": {arm: cost.images for arm, cost in costs.items()},
        "seconds (device may be shared)": {arm: cost.seconds for arm, cost in costs.items()},
        "stable knowledge, bytes": {arm: cost.bytes.get("stable", 0) for arm, cost in costs.items()},
        "plastic knowledge, bytes": {arm: cost.bytes.get("plastic", 0) for arm, cost in costs.items()},
    }
    figure, axes = new_figure(11, 2.6, len(quantities))
    for own, (title, values) in zip(axes, quantities.items(), strict=True):
        for arm, value in values.items():
            own.bar(arm, value or 0, color=LOOKS[arm]["color"], hatch="//" if arm == HOST else None, edgecolor="white")
        own.set_title(title, fontsize="small")
    figure.suptitle(f"{shown(pairing.name)}: {pairing.budget}", fontsize="medium")
    return figure


def plot_similarity(similarity: Similarity) -> Figure:
    figure, axes = new_figure(9, 3.2, 2, sharey=True)
    for own, images in zip(axes, similarity.values, strict=True):
        for k, (arm, values) in enumerate(similarity.values[images].items()):
            places = np.arange(len(values)) + 0.36 * (k - 0.5)
            hatch = "//" if arm == HOST else None
            own.bar(
                places, values, 0.34, color=LOOKS[arm]["color"], hatch=hatch, edgecolor="white", label=ARM_TITLES[arm]
            )
        own.set_xticks(range(len(similarity.layers)), map(shown, similarity.layers), fontsize="small")
        own.set(title=f"{images} images", ylim=(0, 1))
    axes[0].set_ylabel("linear CKA with the reference")
    axes[0].legend(fontsize="small")
    return figure
