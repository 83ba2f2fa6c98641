"""The tables of a comparison about what training took: arms at one target accuracy, and the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.compare import AtMatch, Comparison
from driftlab.report.compare_tables import (
    NOT_RECORDED,
    SELECTED,
    UNMATCHED,
    change_text,
    count,
    kl_name,
    kl_text,
    large,
    matched_at,
    name_of,
    over_runs,
    prior_keys,
    profile_of,
)
from driftlab.report.formats import NOT_MEASURED, Table, points
from driftlab.report.ledger import ADDED, PEAKS
from driftlab.report.pairing import each
from driftlab.report.tables import digits
from driftlab.report.verdicts import AVERAGE


def at_target_table(c: Comparison) -> Table:
    """One row per arm at the same target accuracy; no row where there is no such match."""
    name, columns = "at-target", ["arm", "runs", "step", "rollouts", "FLOPs", "seconds", "target accuracy, %"]
    groups = [group for group in (c.frames.target, AVERAGE) if (c.chosen.kl["group"] == group).any()]
    columns += ["update norm", *(f"KL, {kl_name(c.frames, group)}" for group in groups)]
    columns += [f"change, {name_of(c.frames, task, profile)}" for task, profile in prior_keys(c.frames)]
    columns.append("note")
    at = c.at_target
    if at is None:
        empty = pd.DataFrame(columns=columns)
        title = "Every arm at the same target accuracy"
        return Table(name=name, title=title, columns=tuple(columns), rows=(), data=empty, source=f"{c.no_target}.")
    return Table(
        name=name,
        title=f"Every arm where its runs first measure {matched_at(at.match)}: mean (range over runs) [95 % interval]",
        columns=tuple(columns),
        rows=tuple(_at_target(c, at, arm, groups) for arm in c.arms),
        data=at.runs,
        source="The first measured step of each run whose target accuracy is at least the value, without `--at` the "
        "highest that every run reached, null controls aside; what was spent by then is summed over `updates.jsonl`, "
        "norms and KL are rows of `measurements.jsonl`, changes are paired on the items in `examples/`."
        f"{SELECTED} Seconds are those of training on the machine of each run; measuring is not counted.",
    )


def _at_target(c: Comparison, at: AtMatch, arm: str, groups: list[str]) -> tuple[str, ...]:
    own = at.runs[(at.runs["arm"] == arm) & at.runs["step"].notna()]
    whole = c.frames.runs["arm"].eq(arm).sum()
    note = "; ".join(f"seed {row.seed}: {row.note}" for row in at.match.missing(arm)) or "–"
    spent = [over_runs(own["step"], count), over_runs(own["rollouts"], count), over_runs(own["flops"], large)]
    spent.append(over_runs(own["seconds"], lambda value: f"{value:.3g}"))
    spent.append(over_runs(own["target_accuracy"], lambda value: points(value, sign=False)))
    norm = next(row for row in each(at.norms) if row.arm == arm)
    kl = {row.group: row for row in each(at.kl) if row.arm == arm}
    changes = {(row.task, profile_of(row)): row for row in each(at.changes) if row.arm == arm}
    moved = NOT_MEASURED if pd.isna(norm.value) else digits(norm.value)
    moved += f" ({digits(norm.least)} to {digits(norm.most)})" if norm.seeds > 1 else ""
    shown = [moved, *(kl_text(kl[group]) if group in kl else NOT_MEASURED for group in groups)]
    shown = shown if len(own) else [UNMATCHED] * len(shown)
    shown += [change_text(changes.get(key), at.match) for key in prior_keys(c.frames)]
    return (arm, f"{len(own)} of {whole}", *spent, *shown, note)


def bytes_text(value: float) -> str:
    """Binary units: ``1.5 GiB``."""
    if pd.isna(value):
        return NOT_RECORDED
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:.3g} GiB"


def _seconds(value: float) -> str:
    return NOT_RECORDED if pd.isna(value) else f"{value:.3g}"


_LINES: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("iterations", "iterations", count),
    ("rollouts", "rollouts", count),
    ("prompt tokens", "prompt_tokens", count),
    ("generated tokens", "generated_tokens", count),
    ("forward FLOPs", "forward_flops", large),
    ("backward FLOPs", "backward_flops", large),
    ("seconds in the model", "model_seconds", _seconds),
    ("seconds in the environment", "environment_seconds", _seconds),
    ("seconds, rest", "rest_seconds", _seconds),
    ("seconds, total", "total_seconds", _seconds),
    ("share of the environment, %", "environment_share", lambda value: f"{100 * value:.3g}"),
    ("peak memory, process", "process_peak_bytes", bytes_text),
    ("peak memory, accelerator", "device_peak_bytes", bytes_text),
    ("stored", "stored_bytes", bytes_text),
)


def whole_runs(ledger: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """One row per run: everything its training took."""
    rows = []
    for run in each(runs):
        own = ledger[ledger["run"] == run.run]
        row: dict[str, Any] = {"run": run.run, "arm": run.arm, "iterations": float(len(own))}
        # A run without iterations was trained by somebody else, who wrote nothing down.
        row |= {name: float(own[f"cumulated_{name}"].iloc[-1]) if len(own) else np.nan for name in ADDED}
        row |= {name: float(own[name].max()) if len(own) else np.nan for name in PEAKS}
        row["environment_share"] = row["environment_seconds"] / row["total_seconds"] if row["total_seconds"] else np.nan
        row["rollouts_derived"] = bool(own["derived"].any())
        rows.append(row)
    return pd.DataFrame(rows)


def ledger_table(c: Comparison) -> Table:
    """Everything that training took, per arm: mean and range over its runs."""
    data = whole_runs(c.ledger, c.frames.runs)
    rows = []
    for label, name, text in _LINES:
        cells = []
        for arm in c.arms:
            own = data[data["arm"] == arm]
            if name == "device_peak_bytes" and own["process_peak_bytes"].notna().all() and own[name].isna().all():
                cells.append("none used")
                continue
            derived = " (derived)" if name == "rollouts" and own["rollouts_derived"].any() else ""
            cells.append(over_runs(own[name], text) + derived)
        rows.append((label, *cells))
    return Table(
        name="ledger",
        title="What training took, whole runs: mean (range over runs)",
        columns=("", *c.arms),
        rows=tuple(rows),
        data=data,
        source="Sums over `updates.jsonl`: `cost`, `prompt_tokens`, `generated_tokens`, `seconds`; measuring is not "
        "counted. Seconds in the model are those of generation, and for gradient steps of their two passes; in the "
        "environment those of the reward; the rest is what is left of the total. FLOPs by the formula of the README, "
        "padding and recomputation not counted; process memory is the largest so far, probes included. Derived: a run "
        "of schema 3 or older stores no cost, its rollouts are members times prompts, and its FLOPs, memory and bytes "
        "are not known. `tables/ledger-iterations.csv` holds every iteration.",
    )
