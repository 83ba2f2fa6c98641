"""The report's figures. Each function takes the frames and returns a Figure; the only module that imports matplotlib.

One colour per arm in every figure, one line style per run of that arm. Figures are drawn for a phone's width (4.8 inches
with 9-point text) and scale up. No pyplot: nothing global is left behind.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from driftlab.drift.stats import norm_band, proportion_interval
from driftlab.errors import DriftlabError
from driftlab.report.frames import Frames
from driftlab.report.pairing import accuracy_rows
from driftlab.report.tables import Z

# Okabe and Ito's palette without black (kept for the base) and yellow (too faint on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))
GREY = "#555555"
WIDTH = 4.8
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.hspace": 0.06,
    # Element ids in SVG come from this salt instead of a random one.
    "svg.hashsalt": "driftlab",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How one run is drawn everywhere."""

    colour: str
    marker: str
    line: Any
    shift: float
    """Sideways shift as a share of the axis, so that error bars of different runs do not hide each other."""


@contextmanager
def style() -> Iterator[None]:
    """The report's matplotlib settings, independent of the user's own."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        yield


def looks(frames: Frames) -> dict[str, Look]:
    """Colour and marker by arm, line style by run within the arm. Raises DriftlabError for more than six arms."""
    arms = list(dict.fromkeys(frames.runs["arm"]))
    if len(arms) > len(COLOURS):
        raise DriftlabError(f"a report draws at most {len(COLOURS)} arms, got {len(arms)}; report them in groups")
    seen = dict.fromkeys(arms, 0)
    found = {}
    middle = (len(frames.runs) - 1) / 2
    for number, (run, arm) in enumerate(zip(frames.runs["run"], frames.runs["arm"], strict=True)):
        index = arms.index(arm)
        found[run] = Look(COLOURS[index], MARKERS[index], LINES[seen[arm] % len(LINES)], 0.008 * (number - middle))
        seen[arm] += 1
    return found


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
            ends = [proportion_interval(round(r.value * r.n, 6), r.n) for r in own.itertuples()]
            lows, highs = [end.low for end in ends], [end.high for end in ends]
            _bars(bottom, frames, look, own["step"], own["value"], lows, highs)
            peaks = frames.peaks[frames.peaks["run"] == run].set_index("quantity")
            for axes, quantity, shift in ((top, "training reward", 0.0), (bottom, "target accuracy", look.shift)):
                if quantity in peaks.index:
                    step, value = peaks.loc[quantity, "step"], peaks.loc[quantity, "value"]
                    x = step + shift * _span(frames)
                    axes.plot(x, value, marker="*", markersize=11, color=look.colour, markeredgecolor="black", zorder=5)
        top.set_ylabel("training reward\n(mean over members)")
        bottom.set_ylabel("target accuracy (%)")
        bottom.set_xlabel("iteration")
        _percent(bottom, "y")
        star = Line2D([], [], linestyle="", marker="*", markersize=10, color="white", markeredgecolor="black")
        _legend(figure, frames, drawn, [(star, "highest value")])
        return figure


def prior_figure(frames: Frames) -> Figure:
    """Accuracy of every prior task against iteration, with the 95 % interval of the paired change and the base line."""
    rows = accuracy_rows(frames.measurements)
    rows = rows[rows["status"] == "ok"]
    changes = frames.differences.set_index(["run", "task", "step"])

    def draw(axes: Axes, task: str, drawn: Mapping[str, Look]) -> None:
        table = rows[rows["group"] == task]
        for base in sorted(set(table.loc[table["step"] == 0, "value"])):
            axes.axhline(base, color="black", linestyle=":", linewidth=1.1)
        for run, look in drawn.items():
            own = table[table["run"] == run].sort_values("step", kind="stable")
            lows, highs = [], []
            for row in own.itertuples():
                ends = (math.nan, math.nan)
                if (run, task, row.step) in changes.index:
                    change = changes.loc[(run, task, row.step)]
                    ends = (row.value + change[end] - change["difference"] for end in ("low", "high"))
                low, high = ends
                lows.append(low)
                highs.append(high)
            _bars(axes, frames, look, own["step"], own["value"], lows, highs)
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
            bands = [norm_band(value, n) for value, n in zip(law["value"], law["n"], strict=True)]
            ends = [band.low for band in bands], [band.high for band in bands]
            axes.fill_between(law["step"], *ends, color=look.colour, alpha=0.25, linewidth=0)
            axes.plot(law["step"], law["value"], color=look.colour, linestyle="-", linewidth=1.0)
            axes.plot(measured["step"], measured["value"], color=look.colour, marker=look.marker, linestyle="")
            for quantity, line, width in forms:
                form = _weights(frames, run, quantity)
                curve = tuple(zip(form["step"], form["value"].round(9), strict=True))
                # Arms with the same alpha, sigma and N have the same curve: draw it once.
                if curve and (quantity, curve) not in curves:
                    axes.plot(form["step"], form["value"], color=GREY, linestyle=line, linewidth=width)
                    curves.add((quantity, curve))
        axes.set_xlabel("iteration")
        axes.set_ylabel(r"update norm $\|\theta_t-\theta_0\|_2$")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        labels = (r"random walk, $\alpha\sqrt{dT/N}$", r"literal form, $\sigma\sqrt{dT/N}$")
        extra: list[tuple[Any, str]] = [
            (Line2D([], [], color=GREY, linestyle=line, linewidth=width), label)
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

    def draw(axes: Axes, group: str, drawn: Mapping[str, Look]) -> None:
        for run, look in drawn.items():
            own = rows[(rows["run"] == run) & (rows["group"] == group)].sort_values("step", kind="stable")
            lows, highs = own["value"] - Z * own["stderr"], own["value"] + Z * own["stderr"]
            _bars(axes, frames, look, own["step"], own["value"], lows, highs)

    groups = tuple(dict.fromkeys(rows["group"]))
    return _small_multiples(frames, groups, draw, "KL(base ‖ step)\n(nats/token)", [], share=True)


def path_figure(frames: Frames) -> Figure:
    """Target accuracy against the average prior accuracy, the path of each run coloured by iteration (LIT-238 Fig. 1)."""
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
        axes.set_xlabel(f"average accuracy over {frames_tasks(frames)} (%)")
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


def frames_tasks(frames: Frames) -> str:
    """``4 prior tasks``."""
    return f"{len(frames.priors)} prior task{'' if len(frames.priors) == 1 else 's'}"


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
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
            below = number + columns
            if below >= len(names):
                axes.set_xlabel("iteration")
                axes.tick_params(labelbottom=True)
            if number % columns == 0:
                axes.set_ylabel(ylabel)
        _legend(figure, frames, drawn, extra)
        return figure


def _panels(rows: int, columns: int, height: float, **share: bool) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(WIDTH, height))
    return figure, list(np.ravel(figure.subplots(rows, columns, squeeze=False, **share)))


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


def _weights(frames: Frames, run: str, quantity: str) -> pd.DataFrame:
    rows = frames.rows(quantity, probe="weights")
    return rows[(rows["run"] == run) & (rows["group"] == "all")].sort_values("step", kind="stable")


def _percent(axes: Axes, which: str) -> None:
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(nbins=5))
    axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}")


def _legend(figure: Figure, frames: Frames, drawn: Mapping[str, Look], extra: list[tuple[Any, str]]) -> None:
    """Below the axes, where it can cover no data."""
    runs = [
        (Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line), run) for run, look in drawn.items()
    ]
    handles, labels = zip(*runs, *extra, strict=True)
    # Two columns fit a phone's width only while the labels are short.
    columns = 2 if max(map(len, labels)) <= 32 else 1
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns)
