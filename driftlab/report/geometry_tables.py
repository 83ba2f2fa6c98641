"""The geometry of two solutions as a page shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from driftlab.report.formats import NOT_MEASURED, Table, interval, points
from driftlab.report.geometry_frames import ABOUT, Geometry, records


def page_tables(geometry: Geometry) -> list[Table]:
    """What the page shows, in order; a part of which nothing was measured has no table."""
    built = [
        _cosines(geometry),
        _path(geometry),
        _directions(geometry),
        _kl(geometry),
        _shares(geometry),
        _growth(geometry),
        _sparsity(geometry),
    ]
    return [table for table in built if table.rows]


def _table(name: str, title: str, columns: Sequence[str], rows: Sequence[tuple[str, ...]], data: pd.DataFrame) -> Table:
    return Table(name=name, title=title, columns=tuple(columns), rows=tuple(rows), data=data, source=ABOUT[name])


def _cosines(geometry: Geometry) -> Table:
    rows = [
        (
            row["name"], f"{row['d']:,}", number(row["norm_a"]), number(row["norm_b"]), number(row["cosine"]),
            number(row["angle"], ".2f"), number(row["random_sd"]), number(row["random_abs"]), number(row["z"], ".1f"),
        )
        for row in records(geometry.cosines)
        if row["level"] != "tensor"
    ]  # fmt: skip
    columns = (
        "part",
        "parameters",
        "norm of A",
        "norm of B",
        "cosine",
        "angle, °",
        "random: sd",
        "random: mean of |cosine|",
        "z",
    )
    return _table("cosines", "Angle between the two displacements", columns, rows, geometry.cosines)


def _path(geometry: Geometry) -> Table:
    rows = []
    for task in geometry.tasks:
        own = geometry.path[geometry.path["task"] == task]
        inner = own[own["verdict"] != "end"]
        ends = [NOT_MEASURED if pd.isna(v) else points(v, sign=False) for v in own["accuracy"].iloc[[0, -1]]]
        known = inner[inner["accuracy"].notna()]
        if known.empty:
            rows.append((task, *ends, *[NOT_MEASURED] * 5))
            continue
        lowest = known.iloc[int(known["accuracy"].to_numpy(float).argmin())]
        drop = largest_drop(inner)
        rows.append(
            (
                task,
                *ends,
                f"{points(lowest['accuracy'], sign=False)} at s = {lowest['s']:.3g}",
                *(_with_ends(lowest, f"minus_{end}", "_corrected") for end in "ab"),
                ", ".join(f"{word} at {n}" for word, n in _counts(inner)),
                NOT_MEASURED if drop is None else points(drop, sign=False),
            )
        )
    columns = ("task", "A, %", "B, %", "lowest between, %", "minus A", "minus B", "interior points against both ends")
    title = "Straight path: changes in points [interval that holds with 95 % for all points, tasks and ends]"
    return _table("path", title, (*columns, "largest drop not excluded, points"), rows, geometry.path)


def terminal_tables(geometry: Geometry) -> list[Table]:
    """What fits a terminal."""
    shown = {
        "cosines": ("part", "norm of A", "norm of B", "cosine", "random: sd", "z"),
        "path": ("task", "A, %", "B, %", "lowest between, %", "interior points against both ends"),
    }
    found = []
    for table in page_tables(geometry):
        if table.name in shown:
            kept = [table.columns.index(column) for column in shown[table.name]]
            rows = tuple(tuple(row[index] for index in kept) for row in table.rows)
            found.append(replace(table, columns=shown[table.name], rows=rows))
    return found


def largest_drop(inner: pd.DataFrame) -> float | None:
    """Largest drop below the lower end that the corrected intervals leave open, a fraction; None where one is unknown.

    A point is below the lower end by the smaller of its drops from the two ends.
    """
    ends = inner[["minus_a_low_corrected", "minus_b_low_corrected"]].astype("float64")
    return None if ends.isna().any(axis=None) else max(0.0, float((-ends).min(axis=1).max()))


def _counts(inner: pd.DataFrame) -> list[tuple[str, int]]:
    return [(str(word), int(n)) for word, n in inner["verdict"].value_counts().sort_index().items()]


def _directions(geometry: Geometry) -> Table:
    rows = []
    for label, run in zip(geometry.labels, ("a", "b"), strict=True):
        norm = whole(geometry.cosines)[f"norm_{run}"]
        own = geometry.directions[geometry.directions.get("direction", pd.Series(dtype=object)) == label]
        for task in geometry.tasks:
            chosen = own[own["task"] == task]
            if chosen.empty:
                continue
            # The point of the solution itself, or the nearest to it.
            at = chosen.iloc[int((chosen["distance"] - norm).abs().to_numpy(float).argmin())]
            low, high = (chosen[f"minus_random_{end}_corrected"].astype("float64") for end in ("low", "high"))
            rows.append(
                (
                    task, label, number(at["distance"]), _with_ends(at, "minus_base"), _with_ends(at, "minus_random"),
                    f"{int((high < 0).sum())} below, {int((low > 0).sum())} above, of {len(chosen)}",
                )
            )  # fmt: skip
    columns = ("task", "direction", "distance", "minus base", "minus random", "all points against random, corrected")
    title = "Along each displacement, at the solution's distance: changes in points [95 % interval of one comparison]"
    return _table("directions", title, columns, rows, geometry.directions)


def _kl(geometry: Geometry) -> Table:
    rows = []
    if not geometry.kl.empty:
        for (run, before, after), own in geometry.kl.groupby(["run", "before", "after"], sort=False):
            by_task = {row["task"]: row for row in records(own)}
            cells = [NOT_MEASURED if t not in by_task else _plus_minus(by_task[t], "kl") for t in geometry.tasks]
            rows.append((f"{run}: {before} → {after}", *cells))
    title = "KL from stage to stage, nats per token ± standard error"
    return _table("kl", title, ("stage", *geometry.tasks), rows, geometry.kl)


def _shares(geometry: Geometry) -> Table:
    rows = [
        (
            row["run"], number(row["squared_norm"]), _plus_minus(row, "predicted", "predicted_sd"),
            _plus_minus(row, "share"), _plus_minus(row, "excess", "predicted_sd"),
            _plus_minus(row, "cross_terms", "cross_walk_sd"), row["note"] or "–",
        )
        for row in records(geometry.shares)
    ]  # fmt: skip
    columns = (
        "run",
        "squared norm",
        "random walk ± sd",
        "share explained ± error",
        "excess ± sd",
        "added by agreeing steps ± sd under the walk",
        "note",
    )
    return _table("shares", "Share of the displacement that a random walk explains", columns, rows, geometry.shares)


def _growth(geometry: Geometry) -> Table:
    rows = [
        (
            row["run"], row["name"], _plus_minus(row, "slope"), number(row["r_squared"], ".5f"),
            _plus_minus(row, "d_eff_fraction"), row["note"] or "–",
        )
        for row in records(geometry.growth)
        if row["level"] != "tensor"
    ]  # fmt: skip
    columns = ("run", "part", "slope ± sd under the walk", "R²", "d_eff / d ± sd", "note")
    return _table("growth", "Growth of the squared norm with the step", columns, rows, geometry.growth)


def _sparsity(geometry: Geometry) -> Table:
    quantities = ("sparsity", "sparsity_tensor_mean", "zero_fraction", "zero_fraction_tensor_mean")
    rows = [
        (row["run"], row["part"], f"{row['n']:,}", *(f"{100 * row[quantity]:.2f}" for quantity in quantities))
        for row in records(geometry.sparsity)
        if row["layer"] == "all"
    ]
    columns = (
        "run",
        "part",
        "parameters",
        "at most tau, %",
        "same, mean over tensors, %",
        "exactly unchanged, %",
        "same, mean over tensors, %",
    )
    title = f"Sparsity of the displacements over all layers, tau = {geometry.settings['tau']:g}"
    return _table("sparsity", title, columns, rows, geometry.sparsity)


def whole(cosines: pd.DataFrame) -> dict[str, Any]:
    """The row of the whole model."""
    return records(cosines[cosines["level"] == "all"])[0]


def number(value: float | None, digits: str = ".4g") -> str:
    return "–" if value is None or pd.isna(value) else f"{value:{digits}}".replace("-", "−")


def _with_ends(row: Mapping[str, Any] | pd.Series, prefix: str, suffix: str = "") -> str:
    value, low, high = (row[name] for name in (prefix, f"{prefix}_low{suffix}", f"{prefix}_high{suffix}"))
    if pd.isna(value):
        return NOT_MEASURED
    return f"{points(value)} [no interval]" if pd.isna(low) else interval(value, low, high)


def _plus_minus(row: Mapping[str, Any], name: str, error: str = "") -> str:
    value, sd = row[name], row[error or f"{name}_stderr"]
    if value is None:
        return "–"
    return number(value) if sd is None else f"{number(value)} ± {number(sd, '.2g')}"
