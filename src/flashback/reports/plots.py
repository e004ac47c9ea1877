"""The charts of a report as files for papers: each as PNG and PDF, drawn without a display."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashback.plugin import PHASE_1
from flashback.records.terms import ARMS, FLASHBACK, HOST
from flashback.reports.data import varying_settings
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
from flashback.results import Comparison, Cost, Method, Similarity

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
    written: list[Path] = []
    for name, figure in figures(report):
        if figure is not None:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            area = laid_out(figure)
            for suffix, options in FORMATS.items():
                written.append(Path(folder) / f"{name}.{suffix}")
                figure.savefig(written[-1], bbox_inches=area, **options)
    return written


def figures(report: Report) -> Iterator[tuple[str, Figure | None]]:
    """Every chart with the path of its file; None where there is nothing to draw."""
    taken: set[str] = set()
    for setting, title in SETTING_TITLES.items():
        yield f"answers-{title}", plot_answers(report, setting)
        for where in report.protocols.values():
            yield folder_name(f"methods {where} {title}", taken), plot_methods(report, where, setting)
        for (where, key), methods in grids(report).items():
            yield folder_name(f"{key} {where} {title}", taken), plot_grid(methods, key, setting, where)
    only = f" on {Path(report.benchmarks[0]).stem}" if len(report.benchmarks) == 1 else ""  # names then leave it out
    for pairing in report.pairings:
        place = folder_name(pairing.name + only, taken)
        for setting, title in SETTING_TITLES.items():
            yield f"{place}/accuracy-{title}", plot_curve(pairing, setting)
            yield f"{place}/matrices-{title}", plot_matrices(pairing, setting)
            yield f"{place}/balance-{title}", plot_balance(pairing, setting)
        yield f"{place}/confusion", plot_confusion(pairing)
        yield f"{place}/losses", plot_losses(pairing)
        yield f"{place}/budget", plot_budget(pairing)
    for similarity in report.similarities:
        yield f"{folder_name(f'cka {similarity.title}', taken)}/cka", plot_similarity(similarity)


def folder_name(text: str, taken: set[str]) -> str:
    """Letters, digits and dashes only, and none twice."""
    base = re.sub(r"[^a-z0-9.+]+", "-", text.lower())[:120].strip("-.") or "plots"
    name = next(name for name in chain([base], (f"{base}-{k}" for k in count(2))) if name not in taken)
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


def finish(axes: Any, title: str, setting: str, x: str = "tasks learned", y: str = "") -> None:
    """Labels and grid of a chart with one panel."""
    axes.set_title(wrapped(title), fontsize="medium")
    axes.set(xlabel=wrapped(x), ylabel=y or f"average accuracy, % ({SETTING_TITLES[setting]})")
    axes.grid(alpha=0.3)


def arm_legend(figure: Figure, axes: Any, arms: Iterable[str]) -> None:
    for arm in arms:
        axes.plot([], [], color="0.4", linestyle=LOOKS[arm]["linestyle"], label=ARM_TITLES[arm])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")


def draw_bars(axes: Any, x: Any, values: Any, arm: str, width: float = 0.8) -> None:
    look = {"color": LOOKS[arm]["color"], "hatch": "//" * (arm == HOST), "edgecolor": "white"}
    axes.bar(x, values, width, label=ARM_TITLES[arm], **look)


# ---------------------------------------------------------------- all methods


def plot_answers(report: Report, setting: str) -> Figure | None:
    """The difference in average accuracy of every comparison, with its 95 % interval."""
    tests = [(pairing.name, pairing.row(setting).test) for pairing in report.comparisons]
    tests = [(name, test) for name, test in tests if test.difference is not None]
    if not tests:
        return None
    labels = [wrapped(name, lines=None) for name, _ in tests]
    letters = max(len(line) for label in labels for line in label.split("\n"))
    most = max(label.count("\n") + 1 for label in labels)
    figure, (axes,) = new_figure(4.5 + 0.09 * letters, 1.2 + (0.14 + 0.2 * most) * len(tests))
    widest = max(1.0, *(abs(test.difference or 0) for _, test in tests))
    limits = [abs(end) for _, test in tests for end in (test.low, test.high) if end is not None]
    reach = 1.1 * max(widest, min(4 * widest, max(limits, default=0)))  # an interval may be far wider than differences
    axes.axvline(0, color="0.6", linewidth=1)
    for k, (_, test) in enumerate(tests):
        ends = [test.difference if end is None else end for end in (test.low, test.high)]
        axes.plot(
            [ends[0], test.difference, ends[1]], [k] * 3, marker="s", markevery=[1], color=LOOKS[FLASHBACK]["color"]
        )
    axes.set_yticks(range(len(tests)), labels)
    axes.set(xlim=(-reach, reach), ylim=(len(tests) - 0.4, -0.6))
    axes.set_xlabel(f"average accuracy, flashback − host ({SETTING_TITLES[setting]}, 95 % interval)")
    return figure


def plot_methods(report: Report, where: str, setting: str) -> Figure | None:
    """Accuracy after every task of one protocol, a colour for each host; a bound is a level line at its end."""
    pairings = [p for p in report.pairings if report.protocols[p.methods[0].protocol] == where]
    if len(pairings) < 2:
        return None
    figure, (axes,) = new_figure(6.5, max(4.0, 0.21 * (len(pairings) + len(ARMS))))
    for k, pairing in enumerate(pairings):
        colour, marker = METHOD_COLOURS[k % len(METHOD_COLOURS)], METHOD_MARKERS[k // len(METHOD_COLOURS) % 8]
        axes.plot([], [], color=colour, marker=marker, label=wrapped(pairing.name, lines=2))
        for method in pairing.methods:
            mean = accuracy_band(list(method.runs.values()), setting).mean
            if method.is_bound:
                axes.axhline(mean[-1], color=colour, linestyle=":")
            else:
                look = {"linestyle": LOOKS[method.arm]["linestyle"], "marker": marker, "markersize": 4}
                axes.plot(np.arange(1, method.tasks + 1), mean, color=colour, **look)
    finish(axes, where, setting)
    axes.xaxis.get_major_locator().set_params(integer=True)
    arm_legend(figure, axes, ARMS)
    return figure


def grids(report: Report) -> dict[tuple[str, str], list[Method]]:
    """The methods of hosts for which one number alone was varied, by protocol (or benchmark) and key."""
    hosts: dict[tuple[str, str], list[Method]] = {}
    for method in report.methods:
        hosts.setdefault((method.benchmark, method.host), []).append(method)
    result: dict[tuple[str, str], list[Method]] = {}
    for (benchmark, _), methods in hosts.items():
        varying = varying_settings(method.any_run for method in methods)
        values = [method.flat_settings.get(key) for key in varying for method in methods]
        if len(varying) == 1 and all(value is None or type(value) in (int, float) for value in values):
            names = {report.protocols[method.protocol] for method in methods}
            where = names.pop() if len(names) == 1 else Path(benchmark).stem
            result.setdefault((where, varying[0]), []).extend(methods)
    return result


def plot_grid(methods: Sequence[Method], key: str, setting: str, where: str = "") -> Figure:
    """Accuracy against a setting, mean and deviation over seeds; a method without the setting is a level line."""
    figure, (axes,) = new_figure(5.5, 3.6)
    for k, host in enumerate(dict.fromkeys(method.host for method in methods)):
        colour = METHOD_COLOURS[k % len(METHOD_COLOURS)]
        axes.plot([], [], color=colour, label=wrapped(host, lines=2))
        for arm in ARMS:
            look = {name: LOOKS[arm][name] for name in ("linestyle", "marker")} | {"color": colour}
            known = []
            for method in (one for one in methods if (one.host, one.arm) == (host, arm)):
                value, sample = method.flat_settings.get(key), method.sample(setting=setting)
                if value is not None:
                    known.append((value, sample.mean, sample.deviation or 0))
                elif sample.mean is not None:
                    axes.axhline(sample.mean, color=colour, linestyle=look["linestyle"])
            if known:
                axes.errorbar(*zip(*sorted(known), strict=True), capsize=3, **look)
    values = [value for method in methods if (value := method.flat_settings.get(key)) is not None]
    axes.set_xscale("log" if min(values) > 0 and max(values) >= LOGARITHMIC * min(values) else "linear")
    finish(axes, where, setting, key)
    arm_legend(figure, axes, [arm for arm in ARMS if any(method.arm == arm for method in methods)])
    return figure


# ---------------------------------------------------------------- one comparison


def plot_curve(pairing: Comparison, setting: str) -> Figure:
    figure, (axes,) = new_figure(5, 3.4)
    for method in pairing.methods:
        band, steps = accuracy_band(list(method.runs.values()), setting), np.arange(1, method.tasks + 1)
        axes.fill_between(steps, band.low, band.high, color=LOOKS[method.arm]["color"], alpha=0.18, linewidth=0)
        axes.plot(steps, band.mean, label=ARM_TITLES[method.arm], **LOOKS[method.arm])
    finish(axes, pairing.name, setting)
    axes.xaxis.get_major_locator().set_params(integer=True)
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
    panels = [(name, matrix, {"vmin": 0, "vmax": 100, "cmap": "cividis"}) for name, matrix in matrices.items()]
    if with_difference and len(matrices) == len(ARMS):
        host, flashback = matrices.values()
        most = max(1.0, float(np.nanmax(np.abs(flashback - host))))
        panels.append(("flashback − host", flashback - host, {"vmin": -most, "vmax": most, "cmap": "PuOr_r"}))
    figure, axes = new_figure(4 * len(panels), 3.6, len(panels))
    ticks = thin(len(names), 10)
    labels = [wrapped(names[tick][:12]) for tick in ticks]
    for panel, (name, matrix, colours) in zip(axes, panels, strict=True):
        figure.colorbar(panel.imshow(matrix, **colours), ax=panel, shrink=0.8, use_gridspec=False)
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
    title = f"{pairing.name}, {SETTING_TITLES[setting]}"
    finish(axes, title, setting, "accuracy when new, % (plasticity)", "forgetting, %")
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
    quantities: dict[str, Callable[[Cost], float | None]] = {
        "optimiser steps": lambda cost: cost.steps,
        "images": lambda cost: cost.images,
        "seconds (device may be shared)": lambda cost: cost.seconds,
        "stable knowledge, bytes": lambda cost: cost.bytes.get("stable"),
        "plastic knowledge, bytes": lambda cost: cost.bytes.get("plastic"),
    }
    figure, axes = new_figure(11, 2.6, len(quantities))
    for panel, (title, amount) in zip(axes, quantities.items(), strict=True):
        for arm, cost in pairing.cost.items():
            draw_bars(panel, arm, amount(cost) or 0, arm)
        panel.set_title(title, fontsize="small")
    figure.suptitle(f"{wrapped(pairing.name)}: {pairing.budget}", fontsize="medium")
    return figure


def plot_similarity(similarity: Similarity) -> Figure:
    figure, axes = new_figure(9, 3.2, 2, sharey=True)
    for panel, (images, arms) in zip(axes, similarity.values.items(), strict=True):
        for k, (arm, values) in enumerate(arms.items()):
            draw_bars(panel, np.arange(len(values)) + 0.36 * (k - 0.5), values, arm, 0.34)
        panel.set_xticks(range(len(similarity.layers)), map(wrapped, similarity.layers), fontsize="small")
        panel.set(title=f"{images} images", ylim=(0, 1))
    axes[0].set_ylabel("linear CKA with the reference")
    axes[0].legend(fontsize="small")
    return figure
