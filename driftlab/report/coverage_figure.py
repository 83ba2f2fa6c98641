"""pass@k against k: the base, and every run at its last sampled step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import t_quantile
from driftlab.report.coverage_tables import PASS, coverage_rows, pass_levels
from driftlab.report.formats import count_range
from driftlab.report.frames import Frames
from driftlab.report.looks import Look, looks
from driftlab.report.plots import Axes, Figure, key, legend, panels, percent, style

NAME, TITLE = "coverage", "g. Coverage: pass@k"
_BASE = {"color": "black", "linestyle": ":", "linewidth": 1.1}
Curve = list[tuple[int, float, float, float]]
"""k, value and the ends of its interval."""


def drawable(frames: Frames) -> bool:
    """Whether there is a value to draw."""
    return len(_passes(frames)) > 0


def caption(frames: Frames) -> str:
    """What is drawn, how answers were drawn, and how the intervals were made."""
    rows = _passes(frames)
    notes = dict.fromkeys(note.partition(";")[0] for note in rows["note"])
    bars = "over seeds" if frames.repeated else "over problems, clustered"
    return (
        f"Chance that at least one of k sampled answers is right (unbiased estimate; {', or '.join(notes)}; "
        f"{count_range(rows['n'])} problems per task), at the base and at each run's last sampled step; bars are "
        f"95 % t intervals {bars}, of one curve each: the same problems are asked at base and later, so read a change "
        "from the coverage table. A curve above the base on the left and below it on the right has sharpened."
    )


def coverage_figure(frames: Frames) -> Figure:
    """One panel per task; k on a logarithmic axis of base 2."""
    rows = _passes(frames)
    tasks = list(dict.fromkeys(rows["group"]))
    with style():
        columns = min(2, len(tasks))
        count = math.ceil(len(tasks) / columns)
        figure, cells = panels(count, columns, 1.0 + 1.9 * count)
        drawn = looks(frames)
        for number, axes in enumerate(cells):
            if number >= len(tasks):
                axes.set_visible(False)
                continue
            own = rows[rows["group"] == tasks[number]]
            _panel(axes, frames, own, drawn)
            axes.set_title(tasks[number], loc="left")
            axes.set_xlabel("k (answers)")
            if number % columns == 0:
                axes.set_ylabel("pass@k (%)")
        legend(figure, frames, drawn, [(key(**_BASE, marker="."), "base model")])
        return figure


def _panel(axes: Axes, frames: Frames, own: pd.DataFrame, drawn: dict[str, Look]) -> None:
    levels = pass_levels(own)
    bases = {run: _curve(own[(own["run"] == run) & (own["step"] == 0)]) for run in drawn}
    # Runs that ask the same draw the same answers from the same base: one curve.
    for curve in {tuple(curve): curve for curve in bases.values() if curve}.values():
        _draw(axes, curve, 0.0, marker=".", **_BASE)
    for run, look in drawn.items():
        curve = _last(own, run)
        if curve and frames.repeated:
            k, value, _, _ = zip(*curve, strict=True)
            axes.plot(k, value, color=look.colour, linewidth=0.7, alpha=0.5)
        elif curve:
            _draw(axes, curve, look.shift, color=look.colour, marker=look.marker, linestyle=look.line)
    if frames.repeated:
        for _, part in frames.runs.groupby("arm", sort=False):
            curves = [curve for curve in (_last(own, run) for run in part["run"]) if curve]
            look = drawn[part["run"].iloc[0]]
            if curves:
                _draw(axes, _mean(curves), look.shift, color=look.colour, marker=look.marker, linestyle=look.line)
    axes.set_xscale("log", base=2)
    axes.set_xticks(levels, [str(k) for k in levels])
    percent(axes, "y")


def _last(own: pd.DataFrame, run: str) -> Curve:
    """The run's last sampled step; nothing where that is the base."""
    mine = own[(own["run"] == run) & (own["step"] > 0)]
    return _curve(mine[mine["step"] == mine["step"].max()])


def _curve(rows: pd.DataFrame) -> Curve:
    found: Curve = []
    for quantity, value, error, n in rows[["quantity", "value", "stderr", "n"]].itertuples(index=False, name=None):
        half = error * t_quantile(n)
        found.append((int(quantity.removeprefix(PASS)), value, value - half, value + half))
    return sorted(found)


def _mean(curves: list[Curve]) -> Curve:
    """Mean over seeds at every k that all have, with the interval over seeds."""
    tables = [{k: value for k, value, *_ in curve} for curve in curves]
    found: Curve = []
    for k in sorted(set.intersection(*(set(table) for table in tables))):
        mean = over_seeds([table[k] for table in tables])
        low, high = (math.nan if end is None else end for end in (mean.low, mean.high))
        found.append((k, mean.mean, low, high))
    return found


def _draw(axes: Axes, curve: Curve, shift: float, **look: Any) -> None:
    """A line with error bars, moved aside by ``shift`` of the axis so that bars do not hide each other."""
    k, value, low, high = (np.array(column, dtype=float) for column in zip(*curve, strict=True))
    moved = k * 2 ** (shift * max(1.0, float(np.log2(k.max()))))
    ends = np.vstack([np.maximum(value - low, 0), np.maximum(high - value, 0)])
    axes.errorbar(moved, value, yerr=ends, elinewidth=0.9, capsize=1.5, **look)


def _passes(frames: Frames) -> pd.DataFrame:
    rows = coverage_rows(frames)
    return rows[rows["quantity"].str.startswith(PASS) & (rows["status"] == "ok")]
