"""Tables about the weights: how far they moved, and what rounding left of the steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from driftlab.drift.stats import norm_band
from driftlab.drift.theory import fit_constant
from driftlab.report.formats import Table
from driftlab.report.frames import Frames
from driftlab.report.tables import at_last_step, cell_text

_NORMS = {
    "update_norm": "measured",
    "predicted_norm": "random walk, applied coefficients",
    "predicted_norm_alpha": "α√(dT/N)",
    "predicted_norm_sigma": "σ√(dT/N)",
    "random_walk_ratio": "measured / random walk",
    "relative_update_norm": "relative to base norm",
}


def norm_table(frames: Frames) -> Table:
    """Measured update norm beside the forms of the random-walk law, at each run's last step."""
    table = frames.measurements[frames.measurements["probe"] == "weights"]
    table = table[(table["group"] == "all") & table["quantity"].isin(_NORMS)]
    rows = []
    for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
        cells = {name: at_last_step(frames, table, run, quantity=name) for name in _NORMS}
        values = [cell_text(cell, lambda row: f"{row['value']:.4g}") for cell in cells.values()]
        count = cell_text(cells["update_norm"], lambda row: f"{row['n']:,}")
        band = _band(cells["predicted_norm"])
        rows.append((run, str(last), count, values[0], values[1], band, *values[2:], _constant(table, run)))
    names = list(_NORMS.values())
    return Table(
        name="norms",
        title="Update norm ‖θₜ − θ₀‖ (L2) and the random-walk law, at the last measured step t = T",
        columns=("run", "step", "parameters d", *names[:2], "95 % band", *names[2:], "fitted constant"),
        rows=tuple(rows),
        data=table.drop(columns="arm").reset_index(drop=True),
        source="`value` of rows with probe `weights`, group `all` in `measurements.jsonl`; d is their `n`. The first "
        "random-walk column follows the applied coefficients and the anchor; the α form is exact for standardised "
        "scores that are independent of the noise, with no anchor; the σ form takes σ for the step scale. The band is "
        "the 95 % range of the norm of such a walk. The fitted constant c is the least-squares slope of "
        "measured² = c · random walk² through the origin over all measured steps; steps of one run share their past, "
        "so it has no error of its own, and the band is what to judge by. The CSV holds every step.",
    )


def _constant(table: pd.DataFrame, run: str) -> str:
    usable = table[(table["run"] == run) & (table["status"] == "ok")]
    wide = usable.pivot(index="step", columns="quantity", values="value").reindex(
        columns=["update_norm", "predicted_norm"]
    )
    wide = wide.dropna()
    fitted = fit_constant(list(wide["update_norm"] ** 2), list(wide["predicted_norm"] ** 2))
    if fitted is None:
        return "not defined"
    return f"{fitted.constant:.4f}"


def _band(row: Mapping[str, Any] | None) -> str:
    def text(row: Mapping[str, Any]) -> str:
        if pd.isna(row["stderr"]):
            return "not defined"
        low, high = norm_band(row["value"], row["stderr"])
        return f"{low:.4g} to {high:.4g}"

    return cell_text(row, text)


_ROUNDING = {
    "update_survival": "step: applied / intended",
    "update_survival_cosine": "cosine",
    "update_unmoved": "unmoved (%)",
    "decay_survival": "decay: applied / intended",
    "decay_survival_cosine": "cosine, decay",
    "decay_unmoved": "unmoved, decay (%)",
    "dead_zone": "half spacing, mean",
    "restore_residue": "restore residue (% of σ)",
}
_PERCENT = ("update_unmoved", "decay_unmoved", "restore_residue")


def rounding_table(frames: Frames) -> Table | None:
    """What of the last measured step arrived, per run and format; None where no run asked."""
    table = frames.measurements[frames.measurements["probe"] == "rounding"]
    if table.empty:
        return None
    rows = []
    for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
        for form in ("served", "master"):
            cells = {
                name: at_last_step(frames, table, run, quantity=f"{name}_{form}", group="all") for name in _ROUNDING
            }
            if any(cell is not None for cell in cells.values()):
                texts = [_rounding_text(name, cell) for name, cell in cells.items()]
                rows.append((run, str(last), form, *texts))
    return Table(
        name="rounding",
        title="What rounding left of the last measured step",
        columns=("run", "step", "format", *_ROUNDING.values()),
        rows=tuple(rows),
        data=table.drop(columns="arm").reset_index(drop=True),
        source="`value` of rows with probe `rounding`, group `all` in `measurements.jsonl`. Applied / intended is a "
        "ratio of norms; unmoved is the share of weights meant to move that kept their value; the residue is what "
        "adding and subtracting one member's noise leaves behind. The CSV holds every step and layer group.",
    )


def _rounding_text(name: str, cell: Mapping[str, Any] | None) -> str:
    scale = 100 if name in _PERCENT else 1
    return cell_text(cell, lambda row: f"{scale * row['value']:.4g}")
