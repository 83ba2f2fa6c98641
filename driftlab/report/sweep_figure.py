"""The figure of a grid of runs: accuracy, change of the prior average and update norm against the first swept key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.looks import COLOURS, GREY, LINES
from driftlab.report.plots import Axes, Figure, key, panels, percent, style
from driftlab.report.sweeps import SweepFrames, average_name, shown_value

COMBINATIONS = len(COLOURS) * len(LINES)
"""Values of all keys but the first that a figure can tell apart."""
MARKERS = ("o", "s", "^")
"""The target, and the averages over prior tasks."""
WIDE = 5.0
"""Largest ratio of positive values that still reads well on a linear axis."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """The horizontal axis: where each value of the first key is drawn."""

    places: Mapping[Any, float]
    log: bool
    numeric: bool

    def at(self, values: Sequence[Any], shift: float) -> np.ndarray:
        """Places, moved sideways by a share of the axis, so that error bars do not hide each other."""
        x = np.array([self.places[value] for value in values], dtype=float)
        low, high = min(self.places.values()), max(self.places.values())
        if self.log:
            return np.asarray(x * (high / low) ** shift)
        return np.asarray(x + shift * ((high - low) or 1.0))


@dataclass(frozen=True, slots=True)
class _Combination:
    """One value of all keys but the first: its cells along the axis, and those drawn as a horizontal line."""

    label: str
    colour: str
    line: Any
    shift: float
    cells: pd.DataFrame
    references: pd.DataFrame


def sweep_figure(frames: SweepFrames) -> Figure | None:
    """Against the first key: accuracies with their base, change of the prior average, update norm beside a random walk.

    The axis is logarithmic where all values are positive and span more than a factor 5. Runs without anchor are dashed
    horizontal lines where the first key is a number of the anchor's. A panel of which nothing was measured is left
    out; None when nothing was.
    """
    axis, combinations = _layout(frames)
    plan = [
        (_accuracies, [f"{prefix}_final" for prefix in frames.quantities]),
        (_changes, [f"{prefix}_change" for prefix in frames.priors]),
        (_norms, ["update_norm"]),
    ]
    drawn = [draw for draw, columns in plan if columns and frames.cells[columns].notna().any(axis=None)]
    if not drawn:
        return None
    with style():
        figure, cells = panels(len(drawn), 1, 1.0 + 1.9 * len(drawn) + 0.16 * len(combinations), sharex=True)
        entries: dict[str, Any] = {}
        for axes, draw in zip(cells, drawn, strict=True):
            if axis.log:
                axes.set_xscale("log")
            entries |= draw(axes, frames, axis, combinations)
        _ticks(cells[-1], axis)
        cells[-1].set_xlabel(frames.keys[0])
        if len(combinations) > 1:
            entries |= {
                one.label: key(color=one.colour, linestyle=one.line if axis.numeric else "", marker="o")
                for one in combinations
            }
        figure.align_ylabels(cells)
        columns = 2 if max(map(len, entries)) <= 26 else 1
        figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=columns, handlelength=2.8
        )
    return figure


def _layout(frames: SweepFrames) -> tuple[_Axis, list[_Combination]]:
    first, others, cells = frames.keys[0], frames.keys[1:], frames.cells
    reference = np.array(
        [
            first.startswith("anchor.") and not anchored and not isinstance(value, str)
            for anchored, value in zip(cells["anchored"], cells[first], strict=True)
        ]
    )
    if reference.all():
        reference[:] = False
    values = list(dict.fromkeys(cells.loc[~reference, first]))
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    log = numeric and min(values) > 0 and max(values) > WIDE * min(values)
    places = {value: float(value) if numeric else float(place) for place, value in enumerate(values)}
    names = [", ".join(f"{name} {shown_value(row[name])}" for name in others) for row in cells.to_dict("records")]
    distinct = list(dict.fromkeys(names))
    found = []
    for number, name in enumerate(distinct):
        own = np.array([one == name for one in names])
        chosen = cells[own & ~reference]
        colour, line = COLOURS[number % len(COLOURS)], LINES[number // len(COLOURS) % len(LINES)]
        shift = 0.012 * (number - (len(distinct) - 1) / 2)
        found.append(_Combination(name, colour, line, shift, chosen, cells[own & reference]))
    return _Axis(places, log, numeric), found


def _ticks(axes: Axes, axis: _Axis) -> None:
    """A tick at every value that was tried; labels that would run into the one before are left out."""
    scale = np.log if axis.log else np.asarray
    places = scale(np.array(list(axis.places.values())))
    span = float(np.ptp(places)) or 1.0
    labels = [shown_value(value) for value in axis.places]
    end, shown = -np.inf, dict.fromkeys(labels, "")
    for place, label in sorted(zip((places - places.min()) / span, labels, strict=True)):
        half = 0.011 * len(label) + 0.01
        if not axis.numeric or place - half >= end:
            shown[label], end = label, place + half
    axes.minorticks_off()
    ticks = axes.set_xticks(list(axis.places.values()), [shown[label] for label in labels])
    if not axis.numeric and sum(map(len, labels)) > 30:
        for tick in ticks:
            tick.label1.set(rotation=30, ha="right", rotation_mode="anchor")


def _draw(axes: Axes, axis: _Axis, one: _Combination, column: str, first: str, colour: str, **look: Any) -> None:
    """Cells with error bars, a cross on the bottom edge where the number is missing; runs without anchor as a line."""
    # Averages stand a little beside the target, whose error bars would hide theirs.
    shift = one.shift + (0.006 if column.startswith("prior") else 0.0)
    known = one.cells[one.cells[column].notna()].sort_values(
        first, kind="stable", key=lambda values: values.map(axis.places)
    )
    y, low, high = _with_ends(known, column)
    axes.errorbar(
        axis.at(list(known[first]), shift),
        y,
        yerr=np.vstack([np.maximum(y - low, 0), np.maximum(high - y, 0)]),
        color=colour,
        linestyle=one.line if axis.numeric else "",
        elinewidth=0.9,
        capsize=1.5,
        **look,
    )
    missing = one.cells[one.cells[column].isna()]
    if len(missing):
        x = axis.at(list(missing[first]), shift)
        axes.plot(x, [0.04] * len(x), transform=axes.get_xaxis_transform(), marker="x", linestyle="", color=colour)
    for value in one.references[column].dropna():
        # The marker on the right edge tells whose line it is.
        axes.axhline(value, color=colour, linestyle=(0, (5, 3)), linewidth=1.1, markevery=[1], clip_on=False, **look)


def _with_ends(cells: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values and their interval; an accuracy has that of its change since the base."""
    prefix, _, name = column.rpartition("_")
    lows, highs = (f"{prefix}_{end}" if name in ("final", "change") else f"{column}_{end}" for end in ("low", "high"))
    shift = cells[column] - cells[f"{prefix}_change"] if name == "final" else 0.0
    return tuple(
        np.asarray(values, dtype=float) for values in (cells[column], shift + cells[lows], shift + cells[highs])
    )  # type: ignore[return-value]


def _accuracies(axes: Axes, frames: SweepFrames, axis: _Axis, combinations: Sequence[_Combination]) -> dict[str, Any]:
    entries = {}
    for number, prefix in enumerate(frames.quantities):
        # With one combination colours are free to tell the quantities apart.
        own = COLOURS[number] if len(combinations) == 1 else None
        face = {"marker": MARKERS[number], "markerfacecolor": "white"} if number else {"marker": MARKERS[0]}
        for one in combinations:
            _draw(axes, axis, one, f"{prefix}_final", frames.keys[0], own or one.colour, **face)
        for base in sorted(set(frames.cells[f"{prefix}_base"].dropna())):
            axes.axhline(base, color=own or "black", linestyle=":", linewidth=1.1)
        entries[_name(frames, prefix)] = key(color=own or GREY, linestyle="", **face)
    axes.set_ylabel("accuracy (%)")
    percent(axes, "y")
    entries["base model"] = key(color=GREY, linestyle=":", linewidth=1.1)
    if any(len(one.references) for one in combinations):
        entries["without anchor"] = key(color=GREY, linestyle=(0, (5, 3)), linewidth=1.1)
    return entries


def _changes(axes: Axes, frames: SweepFrames, axis: _Axis, combinations: Sequence[_Combination]) -> dict[str, Any]:
    axes.axhline(0.0, color="black", linestyle=":", linewidth=1.1)
    for number, prefix in enumerate(frames.priors, start=1):
        for one in combinations:
            colour = COLOURS[number] if len(combinations) == 1 else one.colour
            look = {"marker": MARKERS[number], "markerfacecolor": "white"}
            _draw(axes, axis, one, f"{prefix}_change", frames.keys[0], colour, **look)
    axes.set_ylabel("change of prior\naverage (points)")
    percent(axes, "y", clip=False)
    return {}


def _norms(axes: Axes, frames: SweepFrames, axis: _Axis, combinations: Sequence[_Combination]) -> dict[str, Any]:
    # Around the measured one, so that both are seen where they agree.
    walked: dict[str, Any] = {"linestyle": "", "marker": "D", "markersize": 8, "markerfacecolor": "none"}
    for one in combinations:
        colour = "black" if len(combinations) == 1 else one.colour
        _draw(axes, axis, one, "update_norm", frames.keys[0], colour, marker="D")
        walk = one.cells[one.cells["predicted_norm"].notna()]
        x = axis.at(list(walk[frames.keys[0]]), one.shift)
        axes.plot(x, walk["predicted_norm"], color=colour, **walked)
    axes.set_ylabel(r"update norm $\|\theta_T-\theta_0\|_2$")
    axes.set_ylim(bottom=0)
    return {
        "update norm": key(color=GREY, linestyle="", marker="D"),
        "random walk, as applied": key(color=GREY, **walked),
    }


def _name(frames: SweepFrames, prefix: str) -> str:
    return "target" if prefix == "target" else average_name(frames, prefix)
