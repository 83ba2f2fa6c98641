"""The figures of sequences: every task after each stage, and how far the weights went."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.looks import COLOURS, GREY
from driftlab.report.plots import Axes, Figure, key, on_edge, panels, percent, save, style
from driftlab.report.sequences import SequenceFrames, mean_norms

TITLES = {"accuracy": "Every task after each stage", "norm": "How far the weights went"}
CAPTIONS = {
    "accuracy": "Accuracy at the base (0) and after each stage, mean over seeds. Bars: 95 % interval of the paired "
    "change since the base (dotted), of one comparison each. Shaded: the stage that trained on the task, none for a "
    "prior one. Thin lines: single seeds, where there are several. A cross on the bottom edge: not measured, or "
    "failed.",
    "norm": "Left: L2 norm of the weights minus the original base after each stage, beside a random walk with the "
    "coefficients and anchors that were applied. Right: the same of each stage alone. Bars: 95 % interval over seeds, "
    "where there are several.",
}


def figures(frames: SequenceFrames) -> Iterator[tuple[str, bytes, bytes]]:
    """(name, PNG, SVG) of both figures."""
    for name, draw in (("accuracy", accuracy_figure), ("norm", norm_figure)):
        yield name, *save(draw(frames))


def accuracy_figure(frames: SequenceFrames) -> Figure:
    """One panel per task, targets in their order first."""
    columns = min(2, len(frames.tasks))
    count = math.ceil(len(frames.tasks) / columns)
    with style():
        figure, cells = panels(count, columns, 0.9 + 1.65 * count, sharex=True)
        for number, axes in enumerate(cells):
            if number >= len(frames.tasks):
                axes.set_visible(False)
                continue
            _task(axes, frames, frames.tasks[number])
            axes.tick_params(labelbottom=number + columns >= len(frames.tasks))
            if number + columns >= len(frames.tasks):
                axes.set_xlabel("after stage")
            if number % columns == 0:
                axes.set_ylabel("accuracy (%)")
        entries = {
            "target": key(color=COLOURS[0], marker="o"),
            "prior task": key(color=COLOURS[1], marker="s"),
            "base": key(color="black", linestyle=":", linewidth=1.1),
            "own stage": key(color="#d0e4f2", linewidth=7),
        }
        if len(frames.seeds) > 1:
            entries["single seed"] = key(color=GREY, linewidth=0.7, alpha=0.6)
        if not frames.priors:
            del entries["prior task"]
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=3, handlelength=2.2)
    return figure


def _task(axes: Axes, frames: SequenceFrames, task: str) -> None:
    rows = frames.matrix[frames.matrix["task"] == task].sort_values("checkpoint")
    own = rows["target_of_stage"].iloc[0]
    target = not pd.isna(own)
    colour, marker = (COLOURS[0], "o") if target else (COLOURS[1], "s")
    if target:
        axes.axvspan(float(own) - 1, float(own), color="#d0e4f2", linewidth=0, zorder=0)
    if len(frames.seeds) > 1:
        for _, single in frames.per_seed[frames.per_seed["task"] == task].groupby("seed"):
            axes.plot(single["checkpoint"], single["accuracy"].astype(float), color=GREY, linewidth=0.7, alpha=0.6)
    x, y, low, high, base = (
        rows[name].to_numpy(float, na_value=np.nan)
        for name in ("checkpoint", "accuracy", "since_base_low", "since_base_high", "since_base")
    )
    shift = y - base
    below, above = np.maximum(y - (shift + low), 0), np.maximum(shift + high - y, 0)
    axes.errorbar(x, y, yerr=np.vstack([below, above]), color=colour, marker=marker, elinewidth=0.9, capsize=2)
    if np.isfinite(y[0]):
        axes.axhline(y[0], color="black", linestyle=":", linewidth=1.1)
    if np.isnan(y).any():
        on_edge(axes, x[np.isnan(y)], colour, "x")
    # Long names would run out of narrow panels.
    axes.set_title(task, loc="left", fontsize=9 if max(map(len, frames.tasks)) <= 20 else 7.5)
    axes.set_xticks(x, [f"{value:.0f}" for value in x])
    percent(axes, "y")


def norm_figure(frames: SequenceFrames) -> Figure:
    """Cumulative norm and increments, mean over seeds, beside their random walks."""
    table = mean_norms(frames)
    stages = table["stage"].to_numpy(float)
    walked: dict[str, Any] = {"linestyle": "", "marker": "D", "markersize": 8, "markerfacecolor": "none"}
    with style():
        figure, (left, right) = panels(1, 2, 2.9)
        norm = table["norm"].to_numpy(float)
        ends = table[["norm_low", "norm_high"]].astype(float)
        # One seed has no interval.
        bars = np.vstack([norm - ends["norm_low"], ends["norm_high"] - norm])
        left.errorbar(
            [0, *stages], [0, *norm], yerr=np.insert(bars, 0, np.nan, axis=1), color=COLOURS[0], marker="o", capsize=2
        )
        right.plot(stages, table["increment"].astype(float), color=COLOURS[0], marker="o", linestyle="")
        for axes, name in ((left, "predicted"), (right, "increment_predicted")):
            axes.plot(stages, table[name].astype(float), color=GREY, **walked)
            shown = [0, *stages] if axes is left else list(stages)
            axes.set_xlabel("after stage" if axes is left else "stage")
            axes.set_xticks(shown, [f"{value:.0f}" for value in shown])
            axes.set_xlim(shown[0] - 0.3, shown[-1] + 0.3)
            axes.margins(y=0.1)
            axes.set_ylim(0, 1.08 * axes.get_ylim()[1])
        left.set_ylabel(r"$\|\theta_i-\theta_0\|_2$")
        right.set_ylabel(r"$\|\theta_i-\theta_{i-1}\|_2$")
        entries = {"measured": key(color=COLOURS[0], marker="o")}
        if table["predicted"].notna().any() or table["increment_predicted"].notna().any():
            entries["random walk, as applied"] = key(color=GREY, **walked)
        figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=2)
    return figure
