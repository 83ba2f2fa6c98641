"""The figures of the geometry of two solutions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.geometry_frames import Geometry
from driftlab.report.geometry_tables import number
from driftlab.report.looks import COLOURS, GREY, LINES, MARKERS
from driftlab.report.plots import Axes, Figure, key, panels, percent, save, style, whole_steps

CAPTIONS = {
    "cosines": "Cosine of the two displacements in the whole model and its layer groups; bars: two standard deviations "
    "of a random direction's cosine about 0.",
    "path": "Accuracy on the straight path from A (s = 0) to B (s = 1). Bars: at each point the 95 % interval of its "
    "paired difference from the lower end, at an end from the other one; of one comparison each.",
    "directions": "Accuracy against the signed distance from the base, along either displacement and one random "
    "direction; where distances span a wide range the axis is logarithmic beyond the smallest. Bars: 95 % interval of "
    "the paired change from the base (dotted), of one comparison each.",
    "kl": "KL(after || before) from stage to stage of each run, nats per token; the colour is logarithmic.",
    "growth": "Squared norm of the displacement against the step, with its least-squares line.",
    "sparsity": "Parameters changed by at most tau, by layer and part; dashed: the unweighted mean over the layer's "
    "tensors, as LIT-237 draws it. Parts outside layers are in the table.",
}
TITLES = {
    "cosines": "Angle between the displacements",
    "path": "Straight path",
    "directions": "Along the displacements",
    "kl": "KL from stage to stage",
    "growth": "Growth of the squared norm",
    "sparsity": "Sparsity by layer",
}
_WIDE = 12.0
"""Ratio of distances beyond which a linear axis hides the small ones."""


def figures(geometry: Geometry) -> Iterator[tuple[str, bytes, bytes]]:
    """(name, PNG, SVG) of every figure whose numbers exist."""
    plan: tuple[tuple[str, bool, Callable[[Geometry], Figure]], ...] = (
        ("cosines", bool(geometry.cosines["cosine"].notna().any()), _cosines),
        ("path", not geometry.path.empty, _path),
        ("directions", not geometry.directions.empty, _directions),
        ("kl", not geometry.kl.empty and bool(geometry.kl["kl"].notna().any()), _kl),
        ("growth", True, _growth),
        ("sparsity", True, _sparsity),
    )
    for name, measured, draw in plan:
        if measured:
            with style():
                figure = draw(geometry)
            yield name, *save(figure)


def _cosines(geometry: Geometry) -> Figure:
    rows = geometry.cosines[(geometry.cosines["level"] != "tensor") & geometry.cosines["cosine"].notna()]
    y = np.arange(len(rows))[::-1]
    figure, (axes,) = panels(1, 1, 1.2 + 0.22 * len(rows))
    axes.errorbar(
        np.zeros(len(rows)), y, xerr=2 * rows["random_sd"].to_numpy(float), color=GREY, linestyle="", capsize=2
    )
    axes.plot(rows["cosine"].to_numpy(float), y, color=COLOURS[0], marker="o", linestyle="")
    axes.set_yticks(y, list(rows["name"]))
    axes.set_xlabel(r"$\cos(\Delta_A, \Delta_B)$")
    entries = {"measured": key(color=COLOURS[0], marker="o", linestyle=""), "random ± 2 sd": key(color=GREY)}
    _legend(figure, entries)
    return figure


def _grid(geometry: Geometry, draw: Callable[[Axes, str], None], xlabel: str) -> Figure:
    """One panel per task, two beside each other."""
    columns = min(2, len(geometry.tasks))
    count = math.ceil(len(geometry.tasks) / columns)
    figure, cells = panels(count, columns, 0.9 + 1.65 * count, sharex=True)
    for number_, axes in enumerate(cells):
        if number_ >= len(geometry.tasks):
            axes.set_visible(False)
            continue
        draw(axes, geometry.tasks[number_])
        axes.set_title(geometry.tasks[number_], loc="left")
        axes.tick_params(labelbottom=number_ + columns >= len(geometry.tasks))
        if number_ + columns >= len(geometry.tasks):
            axes.set_xlabel(xlabel)
        if number_ % columns == 0:
            axes.set_ylabel("accuracy (%)")
        percent(axes, "y")
    return figure


def _path(geometry: Geometry) -> Figure:
    def draw(axes: Axes, task: str) -> None:
        own = geometry.path[geometry.path["task"] == task]
        ends = own["accuracy"].iloc[[0, -1]].to_numpy(float)
        _points(axes, own, "s", [_lower(row, ends) for row in own.to_dict("records")], color=COLOURS[0], marker="o")
        for value, colour in zip(ends, (COLOURS[1], COLOURS[2]), strict=True):
            if np.isfinite(value):
                axes.axhline(value, color=colour, linestyle=":", linewidth=1.1)

    figure = _grid(geometry, draw, "s, from A to B")
    entries = {"on the path": key(color=COLOURS[0], marker="o")}
    for label, colour in zip(geometry.solutions, (COLOURS[1], COLOURS[2]), strict=True):
        entries[label] = key(color=colour, linestyle=":", linewidth=1.1)
    _legend(figure, entries)
    return figure


def _lower(row: dict[Any, Any], ends: np.ndarray) -> str:
    """Which end is the lower one; an end itself is held against the other one."""
    if row["verdict"] == "end":
        return "minus_b" if row["s"] == 0.0 else "minus_a"
    return "minus_b" if ends[1] < ends[0] else "minus_a"


def _points(axes: Axes, rows: pd.DataFrame, x: str, prefixes: list[str], **look: Any) -> None:
    """Accuracies with the interval of a paired difference about each; a cross on the bottom edge where it failed."""
    values = rows["accuracy"].to_numpy(float)
    below, above = (
        np.array(
            [
                np.nan if pd.isna(row[f"{prefix}_{end}"]) else abs(row[f"{prefix}_{end}"] - row[prefix])
                for row, prefix in zip(rows.to_dict("records"), prefixes, strict=True)
            ]
        )
        for end in ("low", "high")
    )
    known = np.isfinite(values)
    places = rows[x].to_numpy(float)
    axes.errorbar(
        places[known], values[known], yerr=np.vstack([below, above])[:, known], elinewidth=0.9, capsize=1.5, **look
    )
    if not known.all():
        at = axes.get_xaxis_transform()
        axes.plot(places[~known], [0.03] * int((~known).sum()), transform=at, marker="x", linestyle="", color=GREY)


def _directions(geometry: Geometry) -> Figure:
    table = geometry.directions
    names = [name for name in (*geometry.labels, "random") if (table["direction"] == name).any()]
    colours = dict(zip((*geometry.labels, "random"), (COLOURS[1], COLOURS[2], GREY), strict=True))
    distances = table.loc[table["distance"] > 0, "distance"].to_numpy(float)
    log = len(distances) > 0 and distances.max() > _WIDE * distances.min()
    # Error bars of different lines must not hide each other; a logarithmic axis spreads them by itself.
    shift = 0.0 if log or not len(distances) else 0.012 * distances.max()

    def draw(axes: Axes, task: str) -> None:
        own = table[table["task"] == task]
        base = own[own["direction"] == "base"]
        for name in names:
            line = pd.concat([own[own["direction"] == name], base]).sort_values("distance")
            line["place"] = line["distance"] + shift * (list(colours).index(name) - 1)
            line.loc[line["distance"] == 0.0, ["minus_base", "minus_base_low", "minus_base_high"]] = 0.0
            look = {"color": colours[name], "marker": MARKERS[list(colours).index(name)]}
            _points(axes, line, "place", ["minus_base"] * len(line), **look)
        if base["accuracy"].notna().all():
            axes.axhline(float(base["accuracy"].iloc[0]), color="black", linestyle=":", linewidth=1.1)
        if log:
            axes.set_xscale("symlog", linthresh=float(distances.min()))
            # Labels of more decades would run into each other on a phone.
            decade = 10.0 ** math.floor(math.log10(distances.max()))
            axes.set_xticks([-decade, 0.0, decade], [number(-decade), "0", number(decade)])
            axes.minorticks_off()

    figure = _grid(geometry, draw, "signed distance")
    _legend(
        figure,
        {name: key(color=colours[name], marker=MARKERS[list(colours).index(name)]) for name in names}
        | {"base": key(color="black", linestyle=":", linewidth=1.1)},
    )
    return figure


def _kl(geometry: Geometry) -> Figure:
    table = geometry.kl.assign(stage=geometry.kl["before"].astype(str) + "→" + geometry.kl["after"].astype(str))
    runs = list(dict.fromkeys(table["run"]))
    grids = {
        run: table[table["run"] == run]
        .pivot_table(index="stage", columns="task", values="kl", sort=False, dropna=False)
        .reindex(columns=list(geometry.tasks))
        for run in runs
    }
    figure, cells = panels(len(runs), 1, 1.4 + sum(0.5 + 0.24 * len(grid) for grid in grids.values()))
    # A divergence can round to a hair below 0; the colour says nothing about it.
    logs = {run: np.log10(np.maximum(grid.to_numpy(float), 1e-12)) for run, grid in grids.items()}
    low, high = (float(end(np.concatenate([np.ravel(v) for v in logs.values()]))) for end in (np.nanmin, np.nanmax))
    for run, axes in zip(runs, cells, strict=True):
        axes.imshow(logs[run], cmap="cividis", vmin=low, vmax=max(high, low + 1e-9), aspect="auto")
        axes.grid(visible=False)
        for (y, x), value in np.ndenumerate(grids[run].to_numpy(float)):
            bright = np.isfinite(value) and logs[run][y, x] > (low + high) / 2
            text = f"{value:.2g}" if np.isfinite(value) else "–"
            axes.text(x, y, text, ha="center", va="center", fontsize=7, color="black" if bright else "white")
        axes.set_yticks(range(len(grids[run])), list(grids[run].index))
        last = run == runs[-1]
        labels = [task.replace("_", "_\n", 1) for task in geometry.tasks] if last else [""] * len(geometry.tasks)
        axes.set_xticks(range(len(geometry.tasks)), labels, fontsize=7)
        axes.set_title(run, loc="left")
        axes.set_ylabel("steps")
    return figure


def _growth(geometry: Geometry) -> Figure:
    figure, cells = panels(2, 1, 4.6)
    for index, (axes, label) in enumerate(zip(cells, geometry.labels, strict=True)):
        own = geometry.norms[(geometry.norms["run"] == label) & (geometry.norms["level"] == "all")]
        axes.plot(own["step"], own["squared_norm"], color=COLOURS[1 + index], marker=MARKERS[index], linestyle="")
        line = geometry.growth[(geometry.growth["run"] == label) & (geometry.growth["level"] == "all")].iloc[0]
        if pd.notna(line["slope"]):
            ends = np.array([own["step"].min(), own["step"].max()], dtype=float)
            axes.plot(ends, line["intercept"] + line["slope"] * ends, color=GREY)
            axes.set_title(f"{label}: R² = {number(line['r_squared'], '.5f')}", loc="left")
        else:
            axes.set_title(f"{label}: no line", loc="left")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(r"$\|\theta_t-\theta_0\|_2^2$")
    cells[-1].set_xlabel("iteration")
    return figure


def _sparsity(geometry: Geometry) -> Figure:
    table = geometry.sparsity[~geometry.sparsity["layer"].isin(["none", "all"])]
    table = table.assign(number=table["layer"].astype(int)).sort_values("number", kind="stable")
    names = list(dict.fromkeys(part for part in table["part"] if part != "all"))
    looks = {name: (COLOURS[i % len(COLOURS)], LINES[i // len(COLOURS)]) for i, name in enumerate(names)}
    figure, cells = panels(2, 1, 4.8, sharex=True)
    for axes, label in zip(cells, geometry.labels, strict=True):
        own = table[table["run"] == label]
        for name, (colour, line) in looks.items():
            part = own[own["part"] == name]
            marker = MARKERS[names.index(name) % len(MARKERS)]
            axes.plot(part["number"], part["sparsity"], color=colour, linestyle=line, marker=marker)
        everything = own[own["part"] == "all"]
        axes.plot(everything["number"], everything["sparsity"], color="black")
        axes.plot(everything["number"], everything["sparsity_tensor_mean"], color="black", linestyle=(0, (5, 2)))
        axes.set_title(label, loc="left")
        axes.set_ylabel("at most tau (%)")
        whole_steps(axes, 8)
        percent(axes, "y")
    cells[-1].set_xlabel("layer")
    entries = {
        name: key(color=colour, linestyle=line, marker=MARKERS[names.index(name) % len(MARKERS)])
        for name, (colour, line) in looks.items()
    }
    entries |= {"whole layer": key(color="black"), "mean over tensors": key(color="black", linestyle=(0, (5, 2)))}
    _legend(figure, entries)
    return figure


def _legend(figure: Figure, entries: dict[str, Any]) -> None:
    columns = 2 if max(map(len, entries)) <= 26 else 1
    figure.legend(list(entries.values()), list(entries), loc="outside lower center", ncols=columns, handlelength=2.8)
