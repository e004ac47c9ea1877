"""The speed of the training step as bars: a panel for each batch size, a group of bars for each host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashback.reports.plots import new_figure, shown
from flashback.speed.figures import MODES, Bench, Mode, Speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS: dict[Mode, str] = {"eager": "#999999", "captured": "#0072B2", "fast": "#E69F00"}  # Okabe and Ito's
TITLES: dict[Mode, str] = {"eager": "eager", "captured": "captured (default)", "fast": "captured, --fast"}
THICK = 0.8  # of a group of bars; hosts are 1 apart
WIDEST = 25  # a linear axis shows the slowest beside the fastest up to this ratio


def plot_speeds(bench: Bench) -> Figure | None:
    """Bars for hosts alone, diamonds for the same with flashback."""
    if not bench.speeds:
        return None
    hosts = sorted({speed.host for speed in bench.speeds})
    batches = sorted({speed.batch_size for speed in bench.speeds})
    modes = [mode for mode in MODES if any(speed.mode == mode for speed in bench.speeds)]
    thick = THICK / len(modes)
    height = 1.5 + len(hosts) * (0.16 + 0.2 * len(modes))
    figure, panels = new_figure(2.4 + 3.4 * len(batches), height, len(batches), sharey=True)
    logarithmic = max(map(rate, bench.speeds)) > WIDEST * min(map(rate, bench.speeds))
    for axes, batch in zip(panels, batches, strict=True):
        here = [speed for speed in bench.speeds if speed.batch_size == batch]
        for speed in here:
            place = hosts.index(speed.host) + (modes.index(speed.mode) - (len(modes) - 1) / 2) * thick
            draw(axes, speed, place, thick)
        finish(axes, [rate(speed) for speed in here], logarithmic)
        axes.set_title(f"batch {batch}", fontsize="medium")
    panels[0].set_yticks(range(len(hosts)), [shown(host) for host in hosts])
    panels[0].set_ylim(len(hosts) - 0.4, -0.6)
    figure.suptitle(shown(f"Training step, {bench.size.net}: {bench.device}, {bench.precision}"), fontsize="medium")
    figure.legend(handles=legend(modes), loc="outside lower center", ncols=len(modes) + 1, frameon=False)
    return figure


def draw(axes: Any, speed: Speed, place: float, thick: float) -> None:
    if speed.flashback:
        axes.plot(speed.images_per_second, place, zorder=3, **DIAMOND)
    else:
        axes.barh(place, speed.images_per_second, thick, color=COLOURS[speed.mode], zorder=2)


def rate(speed: Speed) -> float:
    return speed.images_per_second


def finish(axes: Any, rates: list[float], logarithmic: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    if logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(rates) / 1.6, 1.3 * max(rates))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, 1.08 * max(rates))
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("images/s, logarithmic" if logarithmic else "images/s")
    axes.grid(axis="x", alpha=0.3, zorder=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


DIAMOND: dict[str, Any] = {
    "marker": "D",
    "markersize": 4.5,
    "markerfacecolor": "white",
    "markeredgecolor": "#D55E00",
    "markeredgewidth": 1.3,
    "linestyle": "none",
}


def legend(modes: list[Mode]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [Patch(color=COLOURS[mode], label=TITLES[mode]) for mode in modes]
    return [*bars, Line2D([], [], label="with flashback", **DIAMOND)]
