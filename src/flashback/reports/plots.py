"""The charts of a report as files for papers: each as PNG and PDF, drawn without a display."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, cycle, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashback.errors import printable
from flashback.files import make_folder, write_atomically
from flashback.metrics import PairedTest
from flashback.metrics.statistics import interval, signed
from flashback.plugin import PHASE_1
from flashback.records.terms import ARMS, FLASHBACK, HOST
from flashback.reports.data import varying_settings
from flashback.reports.report import Report
from flashback.reports.series import (
    Array,
    accuracy_band,
    aligned_confusions,
    balance,
    loss_curves,
    mean_difference,
    mean_matrix,
    thin,
)
from flashback.reports.words import ARM_TITLES, SETTING_TITLES
from flashback.results import Comparison, Frontier, Method, Similarity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish; dashes and markers differ too.
LOOKS: dict[str, dict[str, Any]] = {
    HOST: {"color": "#0072B2", "linestyle": "--", "marker": "o", "markerfacecolor": "white"},
    FLASHBACK: {"color": "#D55E00", "linestyle": "-", "marker": "s"},
}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1b1f26", "#8c6d31")
MARKERS = "osD^vP*X"
DASHES = ("-", "--", ":", "-.")
FORMATS: dict[str, dict[str, Any]] = {"png": {"dpi": 160}, "pdf": {"metadata": {"CreationDate": None}}}
SHADES = {"vmin": 0, "vmax": 100, "cmap": "cividis"}
POINTS = 600  # of a loss curve
LINE = 56  # letters in a line of a name


def write_plots(report: Report, folder: str | Path) -> list[Path]:
    """Write every chart of a report as PNG and PDF.

    Args:
        report: What `read_report` returned.
        folder: Gets the charts of all methods, and a folder for each comparison and similarity.

    Returns:
        The files written.
    """
    charts = ((Path(folder) / name, figure) for name, figure in figures(report) if figure is not None)
    return [file for path, figure in charts for file in write_figure(figure, path)]


def write_figure(figure: Figure, path: Path) -> list[Path]:
    """Write a chart as PNG and PDF, whose endings are added to the path."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    written: list[Path] = []
    make_folder(path.parent)
    ConstrainedLayoutEngine().execute(figure)  # once for all formats
    for suffix, options in FORMATS.items():
        content = io.BytesIO()
        figure.savefig(content, format=suffix, bbox_inches="tight", **options)
        written.append(path.with_name(f"{path.name}.{suffix}"))
        write_atomically(written[-1], content.getvalue())
    return written


def figures(report: Report) -> Iterator[tuple[str, Figure | None]]:
    """Every chart with the path of its file; None where there is nothing to draw."""
    used_names: set[str] = set()
    for setting, title in SETTING_TITLES.items():
        yield f"answers-{title}", plot_answers(report, setting)
        for where in report.protocols.values():
            yield folder_name(f"methods {where} {title}", used_names), plot_methods(report, where, setting)
        for (where, key), methods in grids(report).items():
            yield folder_name(f"{key} {where} {title}", used_names), plot_grid(methods, key, setting, where)
    only = f" on {Path(report.benchmarks[0]).stem}" if len(report.benchmarks) == 1 else ""  # names then leave it out
    for pairing in report.pairings:
        place = folder_name(pairing.name + only, used_names)
        for name, plot in BY_SETTING.items():
            for setting, title in SETTING_TITLES.items():
                yield f"{place}/{name}-{title}", plot(pairing, setting)
        for name, plot_once in ONCE.items():
            yield f"{place}/{name}", plot_once(pairing)
    for similarity in report.similarities:
        yield f"{folder_name(f'cka {similarity.title}', used_names)}/cka", plot_similarity(similarity)
    for frontier in report.frontiers:
        yield f"{folder_name(f'frontier {frontier.title}', used_names)}/frontier", plot_frontier(frontier)


def folder_name(text: str, used_names: set[str]) -> str:
    """Letters, digits and dashes only, and none twice."""
    base = re.sub(r"[^a-z0-9.+]+", "-", text.lower())[:120].strip("-.") or "plots"
    name = next(name for name in chain([base], (f"{base}-{k}" for k in count(2))) if name not in used_names)
    used_names.add(name)
    return name


# ---------------------------------------------------------------- what all charts share


def new_figure(width: float, height: float, columns: int = 1, title: str = "", **options: Any) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # without pyplot: no display, no global state

    figure = Figure(figsize=(width, height))
    figure.suptitle(wrapped(title), fontsize="medium")
    return figure, figure.subplots(1, columns, squeeze=False, **options)[0]


def wrapped(text: str) -> str:
    """Text in at most three short lines; a dollar sign in a name is not mathematics."""
    return "\n".join(textwrap.wrap(printable(text), LINE, max_lines=3, placeholder=" …")).replace("$", r"\$")


def finish(axes: Any, setting: str, x: str = "tasks learned", y: str = "average accuracy, %") -> None:
    axes.set(xlabel=wrapped(x), ylabel=f"{y} ({SETTING_TITLES[setting]})")
    axes.grid(alpha=0.3)
    if x == "tasks learned":
        axes.xaxis.get_major_locator().set_params(integer=True)


def arm_legend(figure: Figure, axes: Any) -> None:
    """Explain the colours of hosts and the dashes of arms beside the chart."""
    for arm in ARMS:
        axes.plot([], [], color="0.4", linestyle=LOOKS[arm]["linestyle"], label=ARM_TITLES[arm])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small")


def draw_bars(axes: Any, x: Any, values: Any, arm: str, width: float = 0.8) -> None:
    look = {"color": LOOKS[arm]["color"], "hatch": "//" * (arm == HOST), "edgecolor": "white"}
    axes.bar(x, values, width, label=ARM_TITLES[arm], **look)


# ---------------------------------------------------------------- all methods


def plot_answers(report: Report, setting: str) -> Figure | None:
    tests = {pairing.name: pairing.row(setting).test for pairing in report.comparisons}
    tests = {name: test for name, test in tests.items() if test.difference is not None}
    if not tests:
        return None
    figure, (axes,) = new_figure(9, 1.2 + 0.6 * len(tests))
    axes.axvline(0, color="0.6", linewidth=1)
    for k, test in enumerate(tests.values()):
        low, high = (test.difference if end is None else end for end in (test.low, test.high))
        axes.plot([low, test.difference, high], [k] * 3, marker="s", markevery=[1], color=LOOKS[FLASHBACK]["color"])
    widest = max(1.0, *(abs(test.difference or 0) for test in tests.values()))
    left, right = axes.get_xlim()
    axes.set_xlim(max(left, -4 * widest), min(right, 4 * widest))  # an interval may be far wider than differences
    axes.set_yticks(range(len(tests)), map(wrapped, tests))
    axes.set_ylim(len(tests) - 0.4, -0.6)
    axes.set_xlabel(f"average accuracy, flashback − host ({SETTING_TITLES[setting]}, 95 % interval)")
    return figure


def plot_methods(report: Report, where: str, setting: str) -> Figure | None:
    """Accuracy after every task of one protocol, a colour for each host; a bound is a level line at its end."""
    pairings = [p for p in report.pairings if report.protocols[p.methods[0].protocol] == where]
    if len(pairings) < 2:
        return None
    figure, (axes,) = new_figure(6.5, max(4.0, 0.21 * (len(pairings) + len(ARMS))), title=where)
    for k, pairing in enumerate(pairings):
        look = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k // len(COLOURS) % len(MARKERS)]}
        axes.plot([], [], label=wrapped(pairing.name), **look)
        for method in pairing.methods:
            mean = accuracy_band(method.runs.values(), setting)["mean"]
            if method.is_bound:
                axes.axhline(mean[-1], color=look["color"], linestyle=":")
            else:
                dashes = LOOKS[method.arm]["linestyle"]
                axes.plot(np.arange(1, method.tasks + 1), mean, linestyle=dashes, markersize=4, **look)
    finish(axes, setting)
    arm_legend(figure, axes)
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
    figure, (axes,) = new_figure(5.5, 3.6, title=where)
    hosts = list(dict.fromkeys(method.host for method in methods))
    for colour, (host, arm) in zip(cycle(COLOURS), product(hosts, ARMS), strict=False):
        look = {"color": colour, "linestyle": LOOKS[arm]["linestyle"], "label": f"{wrapped(host)}, {ARM_TITLES[arm]}"}
        points = []
        for method in methods:
            if (method.host, method.arm) == (host, arm):
                value, sample = method.flat_settings.get(key), method.sample(setting=setting)
                if value is not None:
                    points.append((value, sample.mean, sample.deviation or 0))
                elif sample.mean is not None:
                    axes.axhline(sample.mean, **look)
        if points:
            axes.errorbar(*zip(*sorted(points), strict=True), capsize=3, marker=LOOKS[arm]["marker"], **look)
    finish(axes, setting, key)
    axes.legend(fontsize="small")
    return figure


# ---------------------------------------------------------------- one comparison


def plot_curve(pairing: Comparison, setting: str) -> Figure:
    figure, (axes,) = new_figure(5, 3.4, title=pairing.name)
    for method in pairing.methods:
        band, steps = accuracy_band(method.runs.values(), setting), np.arange(1, method.tasks + 1)
        axes.fill_between(steps, band["low"], band["high"], color=LOOKS[method.arm]["color"], alpha=0.18, linewidth=0)
        axes.plot(steps, band["mean"], label=ARM_TITLES[method.arm], **LOOKS[method.arm])
    finish(axes, setting)
    axes.legend()
    return figure


def plot_matrices(pairing: Comparison, setting: str) -> Figure:
    panels = [(ARM_TITLES[m.arm], mean_matrix(m.runs.values(), setting), SHADES) for m in pairing.methods]
    difference = mean_difference(pairing, setting)
    if difference is not None:
        most = max(1.0, float(np.nanmax(np.abs(difference))))
        panels.append(("flashback − host", difference, {"vmin": -most, "vmax": most, "cmap": "PuOr_r"}))
    names = [str(task + 1) for task in range(pairing.methods[0].tasks)]
    return heat_maps(panels, names, f"{pairing.name}, {SETTING_TITLES[setting]}", "accuracy on task", "after task")


def plot_confusion(pairing: Comparison) -> Figure | None:
    """Classes confused after the last task, in percent of the true class, where the records have it."""
    names, confusions = aligned_confusions(pairing.methods)
    if not confusions:
        return None
    panels = [(ARM_TITLES[arm], matrix, SHADES) for arm, matrix in confusions.items()]
    return heat_maps(panels, names, f"{pairing.name}, class-incremental", "predicted class", "true class")


def heat_maps(
    panels: Sequence[tuple[str, Array, dict[str, Any]]], names: Sequence[str], title: str, x: str, y: str
) -> Figure:
    figure, axes = new_figure(4 * len(panels), 3.6, len(panels), title)
    ticks = thin(len(names), 10)
    labels = [wrapped(names[tick][:12]) for tick in ticks]
    for panel, (name, matrix, colours) in zip(axes, panels, strict=True):
        figure.colorbar(panel.imshow(matrix, **colours), ax=panel, shrink=0.8, use_gridspec=False)
        panel.set_xticks(ticks, labels, rotation=90)
        panel.set_yticks(ticks, labels)
        panel.set(xlabel=x, ylabel=y, title=name)
    return figure


def plot_balance(pairing: Comparison, setting: str) -> Figure | None:
    """Forgetting of every task but the last against its accuracy when new; lines join the arms of a task."""
    if pairing.methods[0].tasks < 2:
        return None
    figure, (axes,) = new_figure(4.4, 3.6, title=pairing.name)
    points = np.array([balance(method.runs.values(), setting) for method in pairing.methods])  # arm, axis, task
    axes.plot(points[:, 0], points[:, 1], color="0.7", linewidth=1, zorder=0)
    for method, (learned, forgotten) in zip(pairing.methods, points, strict=True):
        axes.plot(learned, forgotten, label=ARM_TITLES[method.arm], **LOOKS[method.arm] | {"linestyle": "none"})
    for task, point in enumerate(points[-1].T, 1):
        axes.annotate(str(task), point, xytext=(5, -4), textcoords="offset points", fontsize="small")
    finish(axes, setting, "accuracy when new, % (plasticity)", "forgetting, %")
    axes.legend()
    return figure


def plot_losses(pairing: Comparison) -> Figure | None:
    """Loss terms over all epochs, a line per stage; phase 1 is shaded."""
    curves = {m.arm: loss_curves([run.epochs for run in m.runs.values()], POINTS) for m in pairing.methods}
    known = {arm: curve for arm, curve in curves.items() if curve is not None}
    if not known:
        return None
    figure, axes = new_figure(4.6 * len(known), 3.4, len(known), pairing.name, sharey=True)
    names = list(dict.fromkeys(name for curve in known.values() for name in curve.terms))
    for panel, (arm, curve) in zip(axes, known.items(), strict=True):
        for segment in curve.segments:
            panel.axvline(segment.start, color="0.8", linewidth=0.8)
            if segment.stage == PHASE_1:
                panel.axvspan(segment.start, segment.stop, color="0.9", linewidth=0)
            inside = (curve.x > segment.start) & (curve.x <= segment.stop)
            for name, values in curve.terms.items():
                k = names.index(name)
                look = {"color": COLOURS[k % len(COLOURS)], "linestyle": DASHES[k % len(DASHES)], "marker": "."}
                label = wrapped(name) if segment is curve.segments[0] else None
                panel.plot(curve.x[inside], values[inside], markersize=3, label=label, **look)
        panel.set(xlabel="epochs of the whole run", title=ARM_TITLES[arm])
    axes[0].set_ylabel("loss")
    axes[-1].legend(fontsize="small")
    return figure


def plot_budget(pairing: Comparison) -> Figure | None:
    if pairing.is_single:
        return None
    figure, axes = new_figure(11, 2.6, 5, f"{pairing.name}: {pairing.budget} (the device may be shared)")
    for arm, cost in pairing.cost.items():
        for panel, (title, amount) in zip(axes, cost.amounts.items(), strict=True):
            draw_bars(panel, arm, amount or 0, arm)
            panel.set_title(title, fontsize="small")
    return figure


BY_SETTING: dict[str, Callable[[Comparison, str], Figure | None]] = {
    "accuracy": plot_curve,
    "matrices": plot_matrices,
    "balance": plot_balance,
}
ONCE = {"confusion": plot_confusion, "losses": plot_losses, "budget": plot_budget}


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


# ---------------------------------------------------------------- a frontier


def plot_frontier(frontier: Frontier) -> Figure:
    """Accuracy on old tasks against accuracy on new ones: a curve for each form, a point for each weight."""
    tallest = 4.2 + 0.2 * len(frontier.curves)
    figure, panels = new_figure(11, tallest, len(SETTING_TITLES), f"Frontier of {frontier.title}")
    for axes, (setting, title) in zip(panels, SETTING_TITLES.items(), strict=True):
        heights = {advantage.name: advantage.test for advantage in frontier.advantages(setting)}
        outlines = frontier.outlines(setting)
        for k, (name, points) in enumerate(frontier.points(setting).items()):
            known = [point for point in points if point.new is not None and point.old is not None]
            if not known:
                continue
            new, old = [point.new for point in known], [point.old for point in known]
            look = {"color": COLOURS[k % len(COLOURS)], "marker": MARKERS[k % len(MARKERS)], "markersize": 6}
            label = wrapped(f"{name}{in_brief(heights[name]) if name in heights else ''}")
            axes.plot(*np.array(outlines[name]).T, color=look["color"], linewidth=2.5, linestyle="-" if k else "--")
            axes.plot(new, old, linestyle=":", linewidth=1, label=label, zorder=2, **look)
            spread = {"xerr": [p.new_deviation or 0 for p in known], "yerr": [p.old_deviation or 0 for p in known]}
            axes.errorbar(new, old, **spread, fmt="none", ecolor=look["color"], alpha=0.35, zorder=1)
            beaten = [point for point in known if point.dominated]
            hollow = {"linestyle": "none", "markerfacecolor": "white", "zorder": 3}
            axes.plot([p.new for p in beaten], [p.old for p in beaten], **look | hollow)
            for point in known if k == 0 else []:
                style = {"fontsize": "x-small", "color": look["color"], "ha": "right", "va": "top", "zorder": 4}
                at = {"xytext": (-5, -5), "textcoords": "offset points"}
                axes.annotate(f"{point.weight:g}", (point.new, point.old), **at, **style)
        axes.plot([], [], color="0.4", marker="o", markerfacecolor="white", linestyle="none", label="dominated point")
        axes.set(xlabel="accuracy on the new task, % (plasticity)", ylabel="accuracy on old tasks, % (stability)")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small", frameon=False)
    return figure


def in_brief(test: PairedTest) -> str:
    """How far a form lies above the host's own curve, for a legend."""
    if test.difference is None:
        return ", no answer"
    return f", {signed(test.difference)}" + (f" ({interval(test)})" if test.low is not None else "")
