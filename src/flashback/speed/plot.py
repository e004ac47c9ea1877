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


def plot_speeds(bench: Bench) -> Figure | None:
    """Bars for hosts alone, diamonds for the same with flashback."""
    if not bench.speeds:
        return None
    hosts = sorted({speed.host for speed in bench.speeds})
    batches = sorted({speed.batch_size for speed in bench.speeds})
    modes = [mode for mode in MODES if any(speed.mode == mode for speed in bench.speeds)]
    thick = THICK / len(modes)
    height = 1.5 + len(hosts) * (0.16 + 0.2 * len(modes))
    figure, panels = new_figure(1.6 + 2.4 * len(batches), height, len(batches), sharey=True)
    for axes, batch in zip(panels, batches, strict=True):
        here = [speed for speed in bench.speeds if speed.batch_size == batch]
        for speed in here:
            place = hosts.index(speed.host) + (modes.index(speed.mode) - (len(modes) - 1) / 2) * thick
            draw(axes, speed, place, thick)
        finish(axes, max(speed.images_per_second for speed in here))
        axes.set_title(f"batch {batch}", fontsize="medium")
    panels[0].set_yticks(range(len(hosts)), [shown(host) for host in hosts])
    panels[0].set_ylim(len(hosts) - 0.4, -0.6)
    figure.suptitle(shown(f"Training step, {bench.size.net}: {bench.device}, {bench.precision}"), fontsize="medium")
    figure.legend(handles=legend(modes), loc="outside lower center", ncols=len(modes) + 1, frameon=False)
    return figure


def draw(axes: Any, speed: Speed, place: float, thick: float) -> None:
    """A bar with its figure at its end; a slow host is a short bar, but it can still be read."""
    rate = speed.images_per_second
    if speed.flashback:
        axes.plot(rate, place, zorder=3, **DIAMOND)
        return
    axes.barh(place, rate, thick, color=COLOURS[speed.mode], zorder=2)
    axes.annotate(
        f"{rate:,.0f}", (rate, place), (7, 0), textcoords="offset points", va="center", fontsize="small", zorder=4
    )


def finish(axes: Any, fastest: float) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0, 1.32 * fastest)
    axes.xaxis.set_major_locator(MaxNLocator(3))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("images/s")
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
