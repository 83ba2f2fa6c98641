"""The figures of a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.compare import Comparison
from driftlab.report.compare_curves import AXES, KL, NORM, PRIORS, TARGET, mean_curve
from driftlab.report.compare_weights import text_sets
from driftlab.report.looks import GREY, WIDTH, Look, looks
from driftlab.report.pairing import each
from driftlab.report.plots import (
    GAP,
    Axes,
    Figure,
    counted,
    decades,
    heat_map,
    key,
    legend,
    on_edge,
    panels,
    percent,
    style,
    whole_steps,
)
from driftlab.report.tables import digits
from driftlab.report.verdicts import AVERAGE

WIDE = 2 * WIDTH
"""Four panels side by side."""
DECADE = 10.0
"""Largest ratio of positive values that still reads well on a linear axis."""
ZERO = "0, below a logarithmic axis"


def curve_figure(c: Comparison, curves: pd.DataFrame) -> Figure:
    """Update norm, target accuracy and prior averages against iteration, rollouts, FLOPs and target accuracy."""
    found = curves[curves["quantity"] != KL].drop_duplicates(["quantity", "group"])
    order = {NORM: 0, TARGET: 1, PRIORS: 2}
    lines = sorted(zip(found["quantity"], found["group"], strict=True), key=lambda one: order[one[0]])
    labels = {NORM: "update norm (L2)", TARGET: "target accuracy (%)"}
    names = [labels.get(quantity) or _average(group) for quantity, group in lines]
    return _grid(c, curves, lines, names)


def _average(group: str) -> str:
    return group.replace(", ", ",\n").replace("average of ", "average of\n") + " (%)"


def kl_figure(c: Comparison, curves: pd.DataFrame) -> Figure:
    """KL from the base on every text set against the same four axes."""
    groups = text_sets(c.frames)
    return _grid(c, curves, [(KL, group) for group in groups], [f"KL, {_short(group)}" for group in groups])


def _short(group: str) -> str:
    """A name that fits the height of a panel: broken at an underscore where it is long."""
    if len(group) <= 12 or "_" not in group:
        return group
    cut = group.index("_") + 1
    return f"{group[:cut]}\n{group[cut:]}"


def _grid(c: Comparison, curves: pd.DataFrame, lines: Sequence[tuple[str, str]], names: Sequence[str]) -> Figure:
    with style():
        figure, cells = panels(len(lines), len(AXES), 0.9 + 1.45 * len(lines), width=WIDE)
        drawn = looks(c.frames)
        marks: dict[str, Any] = {}
        for number, (quantity, group) in enumerate(lines):
            own = curves[(curves["quantity"] == quantity) & (curves["group"] == group)]
            row = cells[number * len(AXES) : (number + 1) * len(AXES)]
            for axes, axis in zip(row, AXES, strict=True):
                _panel(c, axes, own, axis, drawn, marks)
                if axis == "target_accuracy" and quantity == TARGET:
                    axes.set_visible(False)
                axes.tick_params(which="both", labelbottom=number == len(lines) - 1, labelleft=axis == "step")
                if number == len(lines) - 1:
                    axes.set_xlabel(AXES[axis])
            _same_height(row)
            row[0].set_ylabel(names[number])
        legend(figure, c.frames, drawn, [(mark, label) for label, mark in marks.items()])
        return figure


def _same_height(row: Sequence[Axes]) -> None:
    """One vertical scale for the panels of a row."""
    shown = [axes for axes in row if axes.get_visible() and axes.has_data()]
    if shown:
        low, high = (pick(axes.get_ylim()[end] for axes in shown) for end, pick in ((0, min), (1, max)))
        for axes in shown:
            axes.set_ylim(low, high)


def _panel(
    c: Comparison, axes: Axes, own: pd.DataFrame, axis: str, drawn: Mapping[str, Look], marks: dict[str, Any]
) -> None:
    """Runs thin, the mean of an arm thick; one run of an arm alone is thick."""
    quantity, log = own["quantity"].iloc[0], _is_log(own)
    # At the base nothing has been spent yet, recorded or not.
    if own.loc[own["step"] > 0, axis].isna().all():
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    first = c.frames.runs.drop_duplicates("arm").set_index("arm")["run"]
    for arm, runs in own.groupby("arm", sort=False):
        look = drawn[first[arm]]
        several = runs["run"].nunique() > 1
        for _, part in runs[runs["status"] == "ok"].groupby("run", sort=False):
            part = part[part[axis].notna()].sort_values("step", kind="stable")
            if several:
                axes.plot(part[axis], part["value"], color=look.colour, linewidth=0.7, alpha=0.5)
            zeros = part[(part["value"] <= 0) & (part["step"] > 0)]
            if log and len(zeros):
                on_edge(axes, zeros[axis], look.colour, "v")
                marks[ZERO] = key(color=GREY, marker="v", linestyle="")
        mean = mean_curve(runs, axis)
        axes.plot(mean["x"], mean["y"], color=look.colour, marker=look.marker, linestyle=look.line)
        gaps = runs[~runs["status"].isin(["ok", "not measured"]) & runs[axis].notna()]
        if len(gaps):
            on_edge(axes, gaps[axis], look.colour, "x")
            axes.set_label(GAP)
    if log:
        decades(axes)
    elif quantity in (NORM, KL):
        axes.set_ylim(bottom=0)
    else:
        percent(axes, "y", clip=False)
    _horizontal(axes, axis)


def _is_log(own: pd.DataFrame) -> bool:
    """Whether norms or divergences span so much that a row of panels needs a logarithmic axis."""
    positive = own.loc[(own["status"] == "ok") & (own["value"] > 0), "value"]
    spans = len(positive) > 0 and positive.max() > DECADE * positive.min()
    return bool(spans) and own["quantity"].iloc[0] in (NORM, KL)


def _horizontal(axes: Axes, axis: str) -> None:
    if axis == "step":
        whole_steps(axes, 4)
    elif axis == "target_accuracy":
        percent(axes, "x", clip=False)
    else:
        counted(axes)


def heat_figure(c: Comparison) -> Figure:
    """KL from the base, arms x text sets at the match, as LIT-238's Fig. 7."""
    table = c.chosen.kl
    groups = list(dict.fromkeys(table["group"]))
    values = np.array([[_cell(table, arm, group).value for group in groups] for arm in c.arms], dtype=np.float64)
    texts = [[_text(_cell(table, arm, group)) for group in groups] for arm in c.arms]
    names = [
        "average of the\nprior text sets"
        if group == AVERAGE
        else _short(group) + "\n(target)" * (group == c.frames.target)
        for group in groups
    ]
    arms = [arm if len(arm) <= 16 else arm.replace(" ", "\n", 1) for arm in c.arms]
    with style():
        figure, (axes,) = panels(1, 1, 1.3 + 0.5 * len(arms), width=max(WIDTH, 2.2 + 1.0 * len(groups)))
        heat_map(figure, axes, values, texts, arms, names)
        return figure


def _cell(table: pd.DataFrame, arm: str, group: str) -> Any:
    return next(each(table[(table["arm"] == arm) & (table["group"] == group)]))


def _text(row: Any) -> str:
    if pd.isna(row.value):
        return str(row.note).replace(" ", "\n")
    if pd.isna(row.low):
        return f"{digits(row.value)}\n[no interval]"
    return f"{digits(row.value)}\n[{digits(row.low) if row.low else '0'},\n{digits(row.high)}]"
