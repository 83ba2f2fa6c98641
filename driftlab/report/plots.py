"""What the report's figures are drawn with; the only module that imports matplotlib.

Figures are drawn for a phone's width (4.2 inches with 9-point text) and scale up. No pyplot: nothing global is left
behind.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, LogFormatterSciNotation, MaxNLocator

from driftlab.report.frames import Frames
from driftlab.report.looks import GREY, STYLE, WIDTH, Look, looks

GAP = "failed or skipped"


@contextmanager
def style() -> Iterator[None]:
    """The report's matplotlib settings, independent of the user's own."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, STYLE))
        yield


def save(figure: Figure) -> tuple[bytes, bytes]:
    """PNG and SVG bytes; the same figure gives the same bytes: no date, no software version, fixed ids."""
    with style():
        FigureCanvasAgg(figure)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def small_multiples(
    frames: Frames,
    names: tuple[str, ...],
    draw: Callable[[Axes, str, Mapping[str, Look]], None],
    ylabel: str,
    extra: list[tuple[Any, str]],
    *,
    share: bool,
) -> Figure:
    """One panel per name in two columns; ``share`` gives all panels one vertical scale."""
    with style():
        columns = min(2, max(1, len(names)))
        count = max(1, math.ceil(len(names) / columns))
        figure, cells = panels(count, columns, 0.9 + 1.65 * count, sharey=share, sharex=True)
        drawn = looks(frames)
        for number, axes in enumerate(cells):
            if number >= len(names):
                axes.set_visible(False)
                continue
            draw(axes, names[number], drawn)
            axes.set_title(names[number], loc="left")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=4, steps=[1, 2, 2.5, 5, 10]))
            # With an odd number of panels the last of the right column has none below it either.
            axes.tick_params(labelbottom=number + columns >= len(names))
            if number // columns == count - 1:
                axes.set_xlabel("iteration")
            if number % columns == 0:
                axes.set_ylabel(ylabel)
        legend(figure, frames, drawn, extra)
        return figure


def panels(
    rows: int, columns: int, height: float, *, sharex: bool = False, sharey: bool = False, width: float = WIDTH
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(width, height))
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel())


def span(frames: Frames) -> int:
    return max(1, int(frames.measurements["step"].max()))


def bars(
    axes: Axes, frames: Frames, look: Look, x: pd.Series, y: pd.Series, low: Iterable[float], high: Iterable[float]
) -> None:
    """A line through points with error bars; a point whose interval is NaN gets no bar."""
    centre = y.to_numpy(float)
    # Rounding can leave an end a hair inside the point, which matplotlib refuses.
    below = np.maximum(centre - np.asarray(list(low), float), 0)
    above = np.maximum(np.asarray(list(high), float) - centre, 0)
    axes.errorbar(
        x.to_numpy(float) + look.shift * span(frames),
        centre,
        yerr=np.vstack([below, above]),
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        elinewidth=0.9,
        capsize=1.5,
    )


def gaps(axes: Axes, frames: Frames, run: str, look: Look, rows: pd.DataFrame) -> None:
    """A cross on the bottom edge at each step whose value failed or was skipped."""
    steps = rows.loc[(rows["run"] == run) & (rows["status"] != "ok"), "step"].to_numpy(float)
    if len(steps):
        x = steps + look.shift * span(frames)
        place = axes.get_xaxis_transform()
        axes.plot(x, [0.03] * len(x), transform=place, marker="x", markersize=6, linestyle="", color=look.colour)
        axes.set_label(GAP)


def percent(axes: Axes, which: str, *, clip: bool = True) -> None:
    """Fractions shown times 100; ``clip`` keeps the axis within what an accuracy can be."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if clip:
        low, high = axis.get_view_interval()
        # A margin below 0 or above 100 % would show accuracies that do not exist; a bar touching 100 % stays visible.
        axis.set_view_interval(max(low, -0.02), min(high, 1.02), ignore=True)
    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}")


def legend(figure: Figure, frames: Frames, drawn: Mapping[str, Look], extra: list[tuple[Any, str]]) -> None:
    """Below the axes, where it can cover no data; arms instead of runs where an arm has several."""
    arms = frames.runs.set_index("run")["arm"]
    shown: dict[str, Look] = {}
    for run, look in drawn.items():
        shown.setdefault(str(arms[run] if frames.repeated else run), look)
    runs = [
        (Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line), label)
        for label, look in shown.items()
    ]
    if any(axes.get_label() == GAP for axes in figure.axes):
        extra = [*extra, (Line2D([], [], color=GREY, marker="x", markersize=6, linestyle=""), GAP)]
    handles, labels = zip(*runs, *extra, strict=True)
    # Two columns fit a phone's width only while the runs' labels are short.
    columns = 2 if max(map(len, shown)) <= 26 else 1
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns, handlelength=2.8)


def key(**looks: Any) -> Line2D:
    """An entry of a legend."""
    return Line2D([], [], **looks)


def whole_steps(axes: Axes, most: int) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=most, steps=[1, 2, 2.5, 5, 10]))


def iteration_bar(figure: Figure, axes: Axes, last: int) -> tuple[Any, str]:
    """A colour bar for iterations; returns the normalisation and the colour map for a scatter."""
    norm, name = mpl.colors.Normalize(0, max(1, last)), "cividis"
    colours = mpl.cm.ScalarMappable(norm=norm, cmap=name)
    figure.colorbar(colours, ax=axes, label="iteration", ticks=MaxNLocator(integer=True, nbins=5))
    return norm, name


def counted(axes: Axes) -> None:
    """A horizontal axis from 0 for large counts, written with SI prefixes: ``20k``, ``5G``."""
    # Half a marker of room for what has spent nothing.
    axes.set_xlim(left=-0.03 * axes.get_xlim()[1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def decades(axes: Axes) -> None:
    """A logarithmic vertical axis; labels between the powers of ten only where there are few of them."""
    axes.set_yscale("log", nonpositive="mask")
    axes.yaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(1.8, 0.4)))
    axes.tick_params(axis="y", which="minor", labelsize=7)


def on_edge(axes: Axes, x: Iterable[float], colour: str, marker: str) -> None:
    """Markers on the bottom edge, for values that the vertical axis cannot show."""
    places = list(x)
    axes.plot(
        places,
        [0.04] * len(places),
        transform=axes.get_xaxis_transform(),
        marker=marker,
        markersize=5,
        linestyle="",
        color=colour,
    )


def heat_map(
    figure: Figure, axes: Axes, values: np.ndarray, texts: list[list[str]], rows: list[str], columns: list[str]
) -> None:
    """A matrix of positive values on a logarithmic colour scale, each cell with its text; NaN and 0 are left grey."""
    shown = np.ma.masked_invalid(np.where(values > 0, values, np.nan))
    colours = mpl.colormaps["viridis_r"].with_extremes(bad="#d9d9d9")
    low, high = (float(shown.min()), float(shown.max())) if shown.count() else (1.0, 1.0)
    norm = mpl.colors.LogNorm(low, high if high > low else low * 10)
    axes.imshow(shown, cmap=colours, norm=norm, aspect="auto")
    for (row, column), masked in np.ndenumerate(np.ma.getmaskarray(shown)):
        # Dark cells get white text.
        dark = not masked and norm(shown[row, column]) > 0.55
        ink = "white" if dark else "black"
        axes.text(column, row, texts[row][column], ha="center", va="center", fontsize=7, color=ink)
    axes.set_xticks(range(len(columns)), columns, fontsize=8)
    axes.set_yticks(range(len(rows)), rows)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.colorbar(mpl.cm.ScalarMappable(norm=norm, cmap=colours), ax=axes, label="nats per token", pad=0.02)
