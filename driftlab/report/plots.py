"""The report's figures. Each function takes the frames and returns a Figure; the only module that imports matplotlib.

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
from matplotlib.ticker import MaxNLocator

from driftlab.drift.stats import norm_band, proportion_interval, t_quantile
from driftlab.report.frames import Frames
from driftlab.report.looks import GREY, STYLE, WIDTH, Look, looks
from driftlab.report.pairing import accuracy_rows, each
from driftlab.report.words import prior_tasks

GAP = "failed or skipped"


@contextmanager
def style() -> Iterator[None]:
    """The report's matplotlib settings, independent of the user's own."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, STYLE))
        yield


def target_figure(frames: Frames) -> Figure:
    """Training reward and target accuracy against iteration, the highest value of each run marked by a star."""
    with style():
        figure, (top, bottom) = _panels(2, 1, 4.6, sharex=True)
        drawn = looks(frames)
        for run, look in drawn.items():
            rewards = frames.updates[frames.updates["run"] == run]
            top.plot(rewards["step"], rewards["reward"], color=look.colour, linestyle=look.line, linewidth=1.1)
            rows = accuracy_rows(frames.measurements)
            own = rows[(rows["run"] == run) & (rows["group"] == frames.target) & (rows["status"] == "ok")]
            ends = [proportion_interval(round(r.value * (n := r.n - r.n_failed), 6), n) for r in each(own)]
            lows, highs = [end.low for end in ends], [end.high for end in ends]
            _bars(bottom, frames, look, own["step"], own["value"], lows, highs)
            _gaps(bottom, frames, run, look, rows[rows["group"] == frames.target])
            for peak in each(frames.peaks[frames.peaks["run"] == run]):
                reward = peak.quantity == "training reward"
                x = peak.step if reward else peak.step + look.shift * _span(frames)
                (top if reward else bottom).plot(
                    x, peak.value, marker="*", markersize=11, color=look.colour, markeredgecolor="black", zorder=5
                )
        top.set_ylabel("training reward\n(mean over members)")
        bottom.set_ylabel("target accuracy (%)")
        bottom.set_xlabel("iteration")
        _percent(bottom, "y")
        star = Line2D([], [], linestyle="", marker="*", markersize=10, color="white", markeredgecolor="black")
        _legend(figure, frames, drawn, [(star, "highest value")])
        return figure


def prior_figure(frames: Frames) -> Figure:
    """Accuracy of every prior task against iteration, with the 95 % interval of the paired change and the base line."""
    stored = accuracy_rows(frames.measurements)
    rows = stored[stored["status"] == "ok"]
    changes = {(row.run, row.task, row.step): row for row in each(frames.differences)}

    def draw(axes: Axes, task: str, drawn: Mapping[str, Look]) -> None:
        table = rows[rows["group"] == task]
        for base in sorted(set(table.loc[table["step"] == 0, "value"])):
            axes.axhline(base, color="black", linestyle=":", linewidth=1.1)
        for run, look in drawn.items():
            own = table[table["run"] == run].sort_values("step", kind="stable")
            lows, highs = [], []
            for row in each(own):
                ends = (math.nan, math.nan)
                change = changes.get((run, task, row.step))
                if change is not None:
                    shift = row.value - change.difference
                    ends = (shift + change.low, shift + change.high)
                lows.append(ends[0])
                highs.append(ends[1])
            _bars(axes, frames, look, own["step"], own["value"], lows, highs)
            _gaps(axes, frames, run, look, stored[stored["group"] == task])
        _percent(axes, "y")

    base = Line2D([], [], color="black", linestyle=":", linewidth=1.1)
    return _small_multiples(frames, frames.priors, draw, "accuracy (%)", [(base, "base model")], share=False)


def norm_figure(frames: Frames) -> Figure:
    """Update norm against iteration with the random-walk law: its 95 % band, the alpha form and the sigma form."""
    with style():
        figure, (axes,) = _panels(1, 1, 3.6)
        drawn = looks(frames)
        curves: set[tuple[str, tuple[tuple[float, float], ...]]] = set()
        forms = (("predicted_norm_alpha", (0, (1, 1.2)), 1.1), ("predicted_norm_sigma", (0, (6, 2)), 0.9))
        for run, look in drawn.items():
            measured = _weights(frames, run, "update_norm")
            law = _weights(frames, run, "predicted_norm")
            band = np.array([norm_band(v, sd) for v, sd in zip(law["value"], law["stderr"], strict=True)])
            axes.fill_between(law["step"], *band.reshape(-1, 2).T, color=look.colour, alpha=0.25, linewidth=0)
            axes.plot(law["step"], law["value"], color=look.colour, linestyle="-", linewidth=1.0)
            axes.plot(measured["step"], measured["value"], color=look.colour, marker=look.marker, linestyle="")
            for quantity, line, width in forms:
                form = _weights(frames, run, quantity)
                curve = tuple(zip(form["step"], form["value"].round(9), strict=True))
                # Arms with the same alpha, sigma and N have the same curve: draw it once.
                if curve and (quantity, curve) not in curves:
                    axes.plot(form["step"], form["value"], color="black", linestyle=line, linewidth=width, zorder=4)
                    curves.add((quantity, curve))
        axes.set_xlabel("iteration")
        axes.set_ylabel(r"update norm $\|\theta_t-\theta_0\|_2$")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        labels = (r"$\alpha$ form, $\alpha\sqrt{dT/N}$", r"literal $\sigma$ form, $\sigma\sqrt{dT/N}$")
        extra: list[tuple[Any, str]] = [
            (Line2D([], [], color="black", linestyle=line, linewidth=width), label)
            for (_, line, width), label in zip(forms, labels, strict=True)
        ]
        solid = Line2D([], [], color=GREY, linewidth=1.0)
        dots = Line2D([], [], color=GREY, marker="o", linestyle="")
        extra = [(dots, "measured"), (solid, "random walk, as applied"), *extra]
        _legend(figure, frames, drawn, extra)
        return figure


def kl_figure(frames: Frames) -> Figure:
    """Token-weighted KL(base || step) of every text set against iteration, with 95 % intervals over sequences."""
    rows = frames.rows("kl_base_to_step", probe="kl")
    stored = frames.rows("kl_base_to_step", probe="kl", ok=False)

    def draw(axes: Axes, group: str, drawn: Mapping[str, Look]) -> None:
        for run, look in drawn.items():
            own = rows[(rows["run"] == run) & (rows["group"] == group)].sort_values("step", kind="stable")
            half = own["stderr"] * [t_quantile(n) for n in own["n"]]
            lows, highs = own["value"] - half, own["value"] + half
            _bars(axes, frames, look, own["step"], own["value"], lows, highs)
            _gaps(axes, frames, run, look, stored[stored["group"] == group])

    groups = tuple(dict.fromkeys(rows["group"]))
    return _small_multiples(frames, groups, draw, "KL(base ‖ step)\n(nats/token)", [], share=True)


def path_figure(frames: Frames) -> Figure:
    """Target accuracy against the average prior accuracy, each run's path coloured by iteration (LIT-238 Fig. 1)."""
    with style():
        figure, (axes,) = _panels(1, 1, 4.0)
        drawn = looks(frames)
        table = frames.prior_averages
        for base in sorted(set(table.loc[table["step"] == 0, "prior_average"])):
            axes.axvline(base, color="black", linestyle=":", linewidth=1.1)
        steps = table["step"]
        norm = mpl.colors.Normalize(0, max(1, steps.max()) if len(steps) else 1)
        for run, look in drawn.items():
            own = table[table["run"] == run].sort_values("step", kind="stable")
            x, y = own["prior_average"], own["target_accuracy"]
            axes.plot(x, y, color=look.colour, linestyle=look.line, linewidth=1.0, zorder=2)
            axes.scatter(
                x,
                y,
                c=own["step"],
                cmap="cividis",
                norm=norm,
                marker=look.marker,
                s=42,
                edgecolors=look.colour,
                zorder=3,
            )
        axes.margins(0.08)
        axes.set_xlabel(f"average accuracy over {prior_tasks(frames)} (%)")
        axes.set_ylabel("target accuracy (%)")
        _percent(axes, "x")
        _percent(axes, "y")
        colours = mpl.cm.ScalarMappable(norm=norm, cmap="cividis")
        figure.colorbar(colours, ax=axes, label="iteration", ticks=MaxNLocator(integer=True, nbins=5))
        _legend(figure, frames, drawn, [(Line2D([], [], color="black", linestyle=":"), "base model")])
        return figure


def save(figure: Figure) -> tuple[bytes, bytes]:
    """PNG and SVG bytes; the same figure gives the same bytes: no date, no software version, fixed ids."""
    with style():
        FigureCanvasAgg(figure)
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=200, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def _small_multiples(
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
        figure, panels = _panels(count, columns, 0.9 + 1.65 * count, sharey=share, sharex=True)
        drawn = looks(frames)
        for number, axes in enumerate(panels):
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
        _legend(figure, frames, drawn, extra)
        return figure


def _panels(
    rows: int, columns: int, height: float, *, sharex: bool = False, sharey: bool = False
) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).ravel())


def _span(frames: Frames) -> int:
    return max(1, int(frames.measurements["step"].max()))


def _bars(
    axes: Axes, frames: Frames, look: Look, x: pd.Series, y: pd.Series, low: Iterable[float], high: Iterable[float]
) -> None:
    """A line through points with error bars; a point whose interval is NaN gets no bar."""
    centre = y.to_numpy(float)
    # Rounding can leave an end a hair inside the point, which matplotlib refuses.
    below = np.maximum(centre - np.asarray(list(low), float), 0)
    above = np.maximum(np.asarray(list(high), float) - centre, 0)
    axes.errorbar(
        x.to_numpy(float) + look.shift * _span(frames),
        centre,
        yerr=np.vstack([below, above]),
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        elinewidth=0.9,
        capsize=1.5,
    )


def _gaps(axes: Axes, frames: Frames, run: str, look: Look, rows: pd.DataFrame) -> None:
    """A cross on the bottom edge at each step whose value failed or was skipped."""
    steps = rows.loc[(rows["run"] == run) & (rows["status"] != "ok"), "step"].to_numpy(float)
    if len(steps):
        x = steps + look.shift * _span(frames)
        place = axes.get_xaxis_transform()
        axes.plot(x, [0.03] * len(x), transform=place, marker="x", markersize=6, linestyle="", color=look.colour)
        axes.set_label(GAP)


def _weights(frames: Frames, run: str, quantity: str) -> pd.DataFrame:
    rows = frames.rows(quantity, probe="weights")
    return rows[(rows["run"] == run) & (rows["group"] == "all")].sort_values("step", kind="stable")


def _percent(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axis.get_view_interval()
    # A margin below 0 or above 100 % would show accuracies that do not exist; a bar that touches 100 % stays visible.
    axis.set_view_interval(max(low, -0.02), min(high, 1.02), ignore=True)
    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}")


def _legend(figure: Figure, frames: Frames, drawn: Mapping[str, Look], extra: list[tuple[Any, str]]) -> None:
    """Below the axes, where it can cover no data."""
    runs = [
        (Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line), run) for run, look in drawn.items()
    ]
    if any(axes.get_label() == GAP for axes in figure.axes):
        extra = [*extra, (Line2D([], [], color=GREY, marker="x", markersize=6, linestyle=""), GAP)]
    handles, labels = zip(*runs, *extra, strict=True)
    # Two columns fit a phone's width only while the runs' labels are short.
    columns = 2 if max(map(len, drawn)) <= 26 else 1
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns, handlelength=2.8)
