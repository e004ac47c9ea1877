"""The charts of a report as files for papers: each as PNG and PDF, drawn without a display."""

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
from flashback.reports.data import settings_in, varying_settings
from flashback.reports.report import Report
from flashback.reports.series import (
    Array,
    Losses,
    accuracy_band,
    balance,
    loss_curves,
    mean_confusion,
    mean_matrix,
    thin,
)
from flashback.reports.words import ARM_TITLES, SETTING_TITLES
from flashback.results import Comparison, Method, Similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.transforms import BboxBase

# Okabe and Ito's colours, which colour-blind readers can distinguish; dashes and markers differ too.
LOOKS: dict[str, dict[str, Any]] = {
    HOST: {"color": "#0072B2", "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    FLASHBACK: {"color": "#D55E00", "linestyle": "-", "marker": "s"},
}
METHOD_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1b1f26", "#8c6d31")
METHOD_MARKERS = "osD^vP*X"
TERM_COLOURS = ("#1b1f26", "#009E73", "#D55E00", "#CC79A7", "#0072B2", "#E69F00")
TERM_DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 3)))
FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 160}, "pdf": {"metadata": {"CreationDate": None}}}
PADDING = 0.1  # inches around a chart
POINTS = 600  # of a loss curve
LOGARITHMIC = 20  # ratio of the extremes from which an axis is logarithmic
LINE = 56  # letters in a line of a name


def write_plots(report: Report, folder: str | Path) -> list[Path]:
    """Write every chart of a report as PNG and PDF.

    Args:
        report: What `read_report` returned.
        folder: Gets the charts of all methods, and a folder for each comparison and similarity.

    Returns:
        The files written.
    """
    folder = Path(folder)
    written: list[Path] = []
    taken: set[str] = set()

    def save(figure: Figure | None, place: Path, kind: str) -> None:
        if figure is not None:
            place.mkdir(parents=True, exist_ok=True)
            area = laid_out(figure)
            for suffix, options in FORMATS.items():
                written.append(place / f"{kind}.{suffix}")
                figure.savefig(written[-1], bbox_inches=area, **options)

    for setting in SETTINGS:
        title = SETTING_TITLES[setting]
        save(plot_answers(report, setting), folder, f"answers-{title}")
        for where in report.protocols.values():
            save(plot_methods(report, where, setting), folder, folder_name(f"methods {where} {title}", taken))
        for (where, key), methods in grids(report).items():
            save(plot_grid(methods, key, setting, where), folder, folder_name(f"{key} {where} {title}", taken))
    only = f" on {Path(report.benchmarks[0]).stem}" if len(report.benchmarks) == 1 else ""  # names then leave it out
    for pairing in report.pairings:
        place = folder / folder_name(pairing.name + only, taken)
        for kind, plot in BY_SETTING.items():
            for setting in SETTINGS:
                save(plot(pairing, setting), place, f"{kind}-{SETTING_TITLES[setting]}")
        for kind, draw in WHOLE_RUN.items():
            save(draw(pairing), place, kind)
    for similarity in report.similarities:
        save(plot_similarity(similarity), folder / folder_name(f"cka {similarity.title}", taken), "cka")
    return written


def folder_name(text: str, taken: set[str]) -> str:
    """Letters, digits and dashes only, and none twice."""
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
    """Lay out a figure once for all formats; returns the area drawn on."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if len(figure.axes) > 1 or figure.legends:  # a single chart does not need it
        ConstrainedLayoutEngine().execute(figure)
    return figure.get_tightbbox().padded(PADDING)


def wrapped(text: str, lines: int | None = 3) -> str:
    """Text in short lines; a dollar in a name is no mathematics."""
    return "\n".join(textwrap.wrap(text, LINE, max_lines=lines, placeholder=" …")).replace("$", r"\$")


def finish(axes: Any, title: str, setting: str = "", over_tasks: bool = False) -> None:
    axes.set_title(wrapped(title) + (f", {SETTING_TITLES[setting]}" if setting else ""), fontsize="medium")
    axes.grid(alpha=0.3)
    if over_tasks:
        axes.set_xlabel("tasks learned")
        axes.xaxis.get_major_locator().set_params(integer=True)


def arm_legend(figure: Figure, axes: Any, arms: Iterable[str]) -> None:
    for arm in arms:
        axes.plot([], [], color="0.4", linestyle=LOOKS[arm]["linestyle"], label=ARM_TITLES[arm])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")


# ---------------------------------------------------------------- all methods


def plot_answers(report: Report, setting: str) -> Figure | None:
    """The difference in average accuracy of every comparison, with its 95 % interval.

    An interval may be far wider than all differences; it then leaves the frame and ends in an arrow.
    """
    tests = [(pairing.name, pairing.row(setting).test) for pairing in report.comparisons]
    tests = [(name, test) for name, test in tests if test.difference is not None]
    if not tests:
        return None
    labels = [wrapped(name, lines=None) for name, _ in tests]
    lines = [label.split("\n") for label in labels]
    letters, most = max(len(line) for label in lines for line in label), max(map(len, lines))
    figure, (axes,) = new_figure(4.5 + 0.09 * letters, 1.2 + (0.14 + 0.2 * most) * len(tests))
    widest = max(1.0, *(abs(test.difference or 0) for _, test in tests))
    ends = [abs(end) for _, test in tests for end in (test.low, test.high) if end is not None]
    reach = 1.1 * max(widest, min(4 * widest, max(ends, default=0)))
    axes.axvline(0, color="0.6", linewidth=1)
    colour = LOOKS[FLASHBACK]["color"]
    for k, (_, test) in enumerate(tests):
        if test.low is not None and test.high is not None:
            axes.plot([max(test.low, -reach), min(test.high, reach)], [k, k], color=colour)
            for end, mark in ((test.low, "<"), (test.high, ">")):
                if abs(end) > reach:
                    axes.plot([np.sign(end) * reach], [k], mark, color=colour, clip_on=False)
        axes.plot([test.difference], [k], "s", color=colour)
    axes.set_yticks(range(len(tests)), labels)
    axes.set(xlim=(-reach, reach), ylim=(len(tests) - 0.4, -0.6))
    axes.set_xlabel(f"average accuracy, flashback − host ({SETTING_TITLES[setting]}, 95 % interval)")
    return figure


def plot_methods(report: Report, where: str, setting: str) -> Figure | None:
    """Accuracy after every task of one protocol, a colour for each host; a bound is a level line at its end."""
    pairings = [p for p in report.pairings if report.protocols[p.methods[0].protocol] == where]
    if len(pairings) < 2:
        return None
    hosts = Counter(pairing.host for pairing in pairings)
    figure, (axes,) = new_figure(6.5, max(4.0, 0.21 * (len(pairings) + len(ARMS))))
    for k, pairing in enumerate(pairings):
        colour, marker = METHOD_COLOURS[k % len(METHOD_COLOURS)], METHOD_MARKERS[k // len(METHOD_COLOURS) % 8]
        name = (pairing.methods[0].label or pairing.host) if hosts[pairing.host] == 1 else pairing.name
        axes.plot([], [], color=colour, marker=marker, label=wrapped(name, lines=2))
        for method in pairing.methods:
            mean = accuracy_band(list(method.runs.values()), setting).mean
            if method.is_bound:
                axes.axhline(mean[-1], color=colour, linestyle=":")
            else:
                look = {"linestyle": LOOKS[method.arm]["linestyle"], "marker": marker, "markersize": 4}
                axes.plot(np.arange(1, method.tasks + 1), mean, color=colour, **look)
    axes.set_ylabel(f"average accuracy, % ({SETTING_TITLES[setting]})")
    finish(axes, where, over_tasks=True)
    arm_legend(figure, axes, ARMS)
    return figure


def grids(report: Report) -> dict[tuple[str, str], list[Method]]:
    """The methods of hosts for which one number alone was varied, by protocol (or benchmark) and key."""
    hosts: dict[tuple[str, str], list[Method]] = {}
    for method in report.methods:
        hosts.setdefault((method.benchmark, method.host), []).append(method)
    result: dict[tuple[str, str], list[Method]] = {}
    for (benchmark, _), methods in hosts.items():
        varying = varying_settings(run for method in methods for run in method.runs.values())
        if len(varying) == 1 and all(type(value) in (int, float) for value in values_of(varying[0], methods)):
            same = len({method.protocol for method in methods}) == 1
            where = report.protocols[methods[0].protocol] if same else Path(benchmark).stem
            result.setdefault((where, varying[0]), []).extend(methods)
    return result


def values_of(key: str, methods: Iterable[Method]) -> list[Any]:
    return [value for one in methods if (value := settings_in(one.any_run, [key])[key]) is not None]


def plot_grid(methods: Sequence[Method], key: str, setting: str, where: str = "") -> Figure:
    """Accuracy against a setting, mean and deviation over seeds; a method without the setting is a level line."""
    figure, (axes,) = new_figure(5.5, 3.6)
    for k, host in enumerate(dict.fromkeys(method.host for method in methods)):
        colour = METHOD_COLOURS[k % len(METHOD_COLOURS)]
        axes.plot([], [], color=colour, label=wrapped(host, lines=2))
        for arm in ARMS:
            some = [method for method in methods if (method.host, method.arm) == (host, arm)]
            look = {name: LOOKS[arm][name] for name in ("linestyle", "marker")} | {"color": colour}
            samples = [(settings_in(one.any_run, [key])[key], one.sample(setting=setting)) for one in some]
            for value, sample in samples:
                if value is None and sample.mean is not None:
                    axes.axhline(sample.mean, color=colour, linestyle=look["linestyle"])
            known = sorted((value, s.mean, s.deviation or 0) for value, s in samples if value is not None)
            if known:
                axes.errorbar(*zip(*known, strict=True), capsize=3, **look)
    least, most = min(values_of(key, methods)), max(values_of(key, methods))
    axes.set_xscale("log" if least > 0 and most >= LOGARITHMIC * least else "linear")
    axes.set(xlabel=wrapped(key), ylabel=f"average accuracy, % ({SETTING_TITLES[setting]})")
    finish(axes, where)
    arm_legend(figure, axes, [arm for arm in ARMS if any(method.arm == arm for method in methods)])
    return figure


# ---------------------------------------------------------------- one comparison


def plot_curve(pairing: Comparison, setting: str) -> Figure:
    figure, (axes,) = new_figure(5, 3.4)
    for method in pairing.methods:
        band, steps = accuracy_band(list(method.runs.values()), setting), np.arange(1, method.tasks + 1)
        axes.fill_between(steps, band.low, band.high, color=LOOKS[method.arm]["color"], alpha=0.18, linewidth=0)
        axes.plot(steps, band.mean, label=ARM_TITLES[method.arm], **LOOKS[method.arm])
    axes.set_ylabel(f"average accuracy, % ({SETTING_TITLES[setting]})")
    finish(axes, pairing.name, over_tasks=True)
    axes.legend()
    return figure


def plot_matrices(pairing: Comparison, setting: str) -> Figure:
    matrices = {ARM_TITLES[m.arm]: mean_matrix(list(m.runs.values()), setting) for m in pairing.methods}
    names = [str(task + 1) for task in range(pairing.methods[0].tasks)]
    title = f"{wrapped(pairing.name)}, {SETTING_TITLES[setting]}"
    return heat_maps(matrices, names, title, "accuracy on task", "after task", with_difference=True)


def plot_confusion(pairing: Comparison) -> Figure | None:
    """Classes confused after the last task, in percent of the true class, where the records have it."""
    confusions = {ARM_TITLES[m.arm]: mean_confusion(list(m.runs.values())) for m in pairing.methods}
    known = {title: confusion for title, confusion in confusions.items() if confusion is not None}
    if not known:
        return None
    names = next(iter(known.values()))[0]
    matrices = {title: matrix for title, (_, matrix) in known.items()}
    return heat_maps(matrices, names, f"{wrapped(pairing.name)}, class-incremental", "predicted class", "true class")


def heat_maps(
    matrices: dict[str, Array], names: Sequence[str], title: str, x: str, y: str, with_difference: bool = False
) -> Figure:
    difference = with_difference and len(matrices) == len(ARMS)
    figure, axes = new_figure(4 * (len(matrices) + difference), 3.6, len(matrices) + difference)
    images = []
    for panel, (name, matrix) in zip(axes, matrices.items(), strict=False):
        images.append((panel, panel.imshow(matrix, vmin=0, vmax=100, cmap="cividis"), name))
    if difference:
        host, flashback = matrices.values()
        most = max(1.0, float(np.nanmax(np.abs(flashback - host))))
        image = axes[-1].imshow(flashback - host, vmin=-most, vmax=most, cmap="PuOr_r")
        images.append((axes[-1], image, "flashback − host"))
    ticks = thin(len(names), 10)
    labels = [wrapped(names[tick][:12]) for tick in ticks]
    for panel, image, name in images:
        figure.colorbar(image, ax=panel, shrink=0.8, use_gridspec=False)
        panel.set_title(name, fontsize="medium")
        panel.set_xticks(ticks, labels, rotation=0 if max(map(len, labels)) < 4 else 90)
        panel.set_yticks(ticks, labels)
        panel.set(xlabel=x, ylabel=y)
    figure.suptitle(title, fontsize="medium")
    return figure


def plot_balance(pairing: Comparison, setting: str) -> Figure | None:
    if pairing.methods[0].tasks < 2:
        return None
    figure, (axes,) = new_figure(4.4, 3.6)
    points = {method.arm: balance(list(method.runs.values()), setting) for method in pairing.methods}
    if len(points) == len(ARMS):
        for x, y in zip(*(np.stack([points[arm][k] for arm in ARMS], axis=1) for k in (0, 1)), strict=True):
            axes.plot(x, y, color="0.7", linewidth=1, zorder=0)
    for arm, (learned, forgotten) in points.items():
        axes.plot(learned, forgotten, label=ARM_TITLES[arm], **LOOKS[arm] | {"linestyle": "none"})
    for task, (x, y) in enumerate(zip(*points[pairing.methods[-1].arm], strict=True)):
        axes.annotate(str(task + 1), (x, y), xytext=(5, -4), textcoords="offset points", fontsize="small")
    axes.set(xlabel="accuracy when new, % (plasticity)", ylabel="forgetting, %")
    finish(axes, pairing.name, setting)
    axes.legend()
    return figure


def plot_losses(pairing: Comparison) -> Figure | None:
    curves = {m.arm: loss_curves([run.epochs for run in m.runs.values()], POINTS) for m in pairing.methods}
    known: dict[str, Losses] = {arm: curve for arm, curve in curves.items() if curve is not None}
    if not known:
        return None
    figure, axes = new_figure(4.6 * len(known), 3.4, len(known), sharey=True)
    names = list(dict.fromkeys(name for curve in known.values() for name in curve.terms))
    lowest = min(float(np.nanmin(values)) for curve in known.values() for values in curve.terms.values())
    for panel, (arm, curve) in zip(axes, known.items(), strict=True):
        draw_stages(panel, curve)
        for k, name in enumerate(names):
            if name in curve.terms:
                draw_term(panel, curve, name, color=TERM_COLOURS[k % 6], linestyle=TERM_DASHES[k % 6])
        panel.set(xlabel="epochs of the whole run", title=ARM_TITLES[arm], yscale="log" if lowest > 0 else "linear")
    axes[0].set_ylabel("loss")
    axes[-1].legend(fontsize="small")
    figure.suptitle(wrapped(pairing.name), fontsize="medium")
    return figure


def draw_term(axes: Any, curve: Losses, name: str, **look: Any) -> None:
    """One line per stage, since the model, the data or the loss changes between stages."""
    label = wrapped(name)
    for segment in curve.segments:
        inside = (curve.x > segment.start) & (curve.x <= segment.stop)
        if not np.isnan(curve.terms[name][inside]).all():
            axes.plot(curve.x[inside], curve.terms[name][inside], marker=".", markersize=3, label=label, **look)
            label = "_"  # which legends leave out


def draw_stages(axes: Any, curve: Losses) -> None:
    """Thin lines between tasks, phase 1 shaded, a dashed line at the flashback."""
    for before, segment in zip([None, *curve.segments], curve.segments, strict=False):
        if segment.stage == PHASE_1:
            axes.axvspan(segment.start, segment.stop, color="0.9", linewidth=0)
        if before is not None:
            same = before.task == segment.task
            axes.axvline(segment.start, color="0.3" if same else "0.8", linestyle="--" if same else "-", linewidth=0.8)


def plot_budget(pairing: Comparison) -> Figure | None:
    if pairing.is_single:
        return None
    costs = pairing.cost
    quantities: dict[str, dict[str, float | None]] = {
        "optimiser steps": {arm: cost.steps for arm, cost in costs.items()},
        "images": {arm: cost.images for arm, cost in costs.items()},
        "seconds (device may be shared)": {arm: cost.seconds for arm, cost in costs.items()},
        "stable knowledge, bytes": {arm: cost.bytes.get("stable", 0) for arm, cost in costs.items()},
        "plastic knowledge, bytes": {arm: cost.bytes.get("plastic", 0) for arm, cost in costs.items()},
    }
    figure, axes = new_figure(11, 2.6, len(quantities))
    for panel, (title, values) in zip(axes, quantities.items(), strict=True):
        for arm, value in values.items():
            panel.bar(arm, value or 0, color=LOOKS[arm]["color"], hatch="//" * (arm == HOST), edgecolor="white")
        panel.set_title(title, fontsize="small")
    figure.suptitle(f"{wrapped(pairing.name)}: {pairing.budget}", fontsize="medium")
    return figure


BY_SETTING: dict[str, Callable[[Comparison, str], Figure | None]] = {
    "accuracy": plot_curve,
    "matrices": plot_matrices,
    "balance": plot_balance,
}
WHOLE_RUN: dict[str, Callable[[Comparison], Figure | None]] = {
    "confusion": plot_confusion,
    "losses": plot_losses,
    "budget": plot_budget,
}


def plot_similarity(similarity: Similarity) -> Figure:
    figure, axes = new_figure(9, 3.2, 2, sharey=True)
    for panel, (images, arms) in zip(axes, similarity.values.items(), strict=True):
        for k, (arm, values) in enumerate(arms.items()):
            look = {"color": LOOKS[arm]["color"], "hatch": "//" * (arm == HOST), "edgecolor": "white"}
            panel.bar(np.arange(len(values)) + 0.36 * (k - 0.5), values, 0.34, label=ARM_TITLES[arm], **look)
        panel.set_xticks(range(len(similarity.layers)), map(wrapped, similarity.layers), fontsize="small")
        panel.set(title=f"{images} images", ylim=(0, 1))
    axes[0].set_ylabel("linear CKA with the reference")
    axes[0].legend(fontsize="small")
    return figure
