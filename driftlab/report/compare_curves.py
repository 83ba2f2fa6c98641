"""What is drawn of a comparison: every measured quantity of every run against what had been spent by then."""

from __future__ import annotations

from typing import Any

import pandas as pd

from driftlab.report.compare import Comparison
from driftlab.report.pairing import each
from driftlab.report.verdict_tables import average_name, profiles

AXES = {"step": "iteration", "rollouts": "rollouts", "flops": "FLOPs", "target_accuracy": "target accuracy (%)"}
"""Columns that a curve can be drawn against, with their labels."""
CURVE_COLUMNS = ["run", "arm", *AXES, "quantity", "group", "value", "status"]
NORM, TARGET, PRIORS, KL = "update norm", "target accuracy", "prior average", "KL"


def curve_table(c: Comparison) -> pd.DataFrame:
    """One row per run, measured step, quantity and group: norms, accuracies (fractions), KL (nats per token).

    Averages over the prior tasks have their profile's name as group, KL its text set.
    """
    places = {
        (track.run, step): (track.rollouts[index], track.flops[index], track.accuracy[index])
        for track in c.tracks
        for index, step in enumerate(track.steps)
    }
    rows: list[tuple[Any, ...]] = []

    def add(row: Any, quantity: str, group: str, value: float, status: str) -> None:
        rows.append((row.run, row.arm, row.step, *places[row.run, row.step], quantity, group, value, status))

    norms = c.frames.rows("update_norm", probe="weights", ok=False)
    for row in each(norms[norms["group"] == "all"]):
        add(row, NORM, "", row.value, row.status)
    for track in c.tracks:
        for step, value in zip(track.steps, track.accuracy, strict=True):
            status = "ok" if value == value else "not measured"
            where = (track.run, track.arm, step, *places[track.run, step])
            rows.append((*where, TARGET, c.frames.target, value, status))
    for profile in profiles(c.frames):
        for row in each(c.frames.prior_averages[c.frames.prior_averages["profile"] == profile]):
            add(row, PRIORS, average_name(c.frames, profile), row.prior_average, "ok")
    for row in each(c.frames.rows("kl_base_to_step", probe="kl", ok=False)):
        add(row, KL, row.group, row.value, row.status)
    return pd.DataFrame(rows, columns=CURVE_COLUMNS).astype(dict.fromkeys([*AXES, "value"], "float64"))


def mean_curve(rows: pd.DataFrame, axis: str) -> pd.DataFrame:
    """Mean over the runs of an arm, at the steps that all of them measured: columns x and y.

    The place on the axis is a mean as well, so a point is where the arm stands on average at one step.
    """
    good = rows[(rows["status"] == "ok") & rows[axis].notna()]
    whole = good.groupby("step")["run"].nunique() == rows["run"].nunique()
    own = good[good["step"].map(whole)]
    found = own.groupby("step").agg(x=(axis, "mean"), y=("value", "mean"))
    return found.sort_index().reset_index()
