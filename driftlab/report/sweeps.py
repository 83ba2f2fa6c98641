"""A grid of runs as numbers: one row per cell and seed, and means over seeds per cell.

Accuracies and their changes are fractions here, points in what a reader sees; norms are L2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.report.arms import control_table, seed_table
from driftlab.report.frames import Frames, build_frames
from driftlab.report.pairing import NAN, accuracy_rows, average_table, each
from driftlab.report.runs import RunData, check_together
from driftlab.report.scores import Scores, task_scores
from driftlab.report.verdicts import AVERAGE

Value = str | int | float | bool | None
"""What a cell sets a key to; None where the key has no meaning in that cell (an anchor's, without an anchor)."""

NORMS = ("update_norm", "predicted_norm", "random_walk_ratio", "relative_update_norm")


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepCell:
    """One cell of a grid: the value of every swept key, in the order in which they were given, and a run per seed."""

    values: Mapping[str, Value]
    runs: Sequence[RunData]

    @property
    def anchored(self) -> bool:
        anchor = self.runs[0].manifest.spec["anchor"]
        return bool(anchor["penalty"] != "none" and anchor["lambda"] > 0)

    @property
    def apart_from_anchor(self) -> tuple[tuple[str, Value], ...]:
        """What a run without anchor must share to be compared with this cell."""
        return tuple((key, value) for key, value in self.values.items() if not key.startswith("anchor."))


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepFrames:
    """The tables of one grid.

    Attributes:
        keys: the swept keys, in the order given.
        priors: by column prefix (``prior``, or one per profile) the prior tasks in that average.
        inert: prior tasks none of whose items changed in any run of the grid: they are in no average.
        rows: per cell and seed: the values of the keys, seed, target accuracy and prior average at base and end, their
            paired change with its standard error, the same against the unanchored cell with its 95 % interval, norms.
        cells: per cell: means over seeds with 95 % intervals (``_low``, ``_high``); NaN where one of the runs lacks it.
    """

    keys: tuple[str, ...]
    priors: Mapping[str, tuple[str, ...]]
    inert: tuple[str, ...]
    rows: pd.DataFrame
    cells: pd.DataFrame

    @property
    def quantities(self) -> tuple[str, ...]:
        """Column prefixes of the accuracies: the target and every average over prior tasks."""
        return ("target", *self.priors)

    @property
    def compared(self) -> bool:
        """Whether some cell has an unanchored one beside it."""
        return bool(self.cells["against"].notna().any())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """One cell as the report's tables have it."""

    cell: SweepCell
    frames: Frames
    scores: Scores
    averages: Mapping[str, tuple[str, str, tuple[str, ...]]]
    """By column prefix: task or ``AVERAGE``, profile, and the tasks in it."""

    @property
    def averaged(self) -> tuple[str, ...]:
        return tuple(task for prefix, (_, _, tasks) in self.averages.items() if prefix != "target" for task in tasks)

    @property
    def label(self) -> str:
        return str(self.cell.runs[0].manifest.spec["arm"])


def build_sweep(cells: Sequence[SweepCell]) -> SweepFrames:
    """The numbers of a grid, each cell read on its own, so that cells may differ in anything that a spec holds.

    An anchored cell is compared with the unanchored one that shares all its values but the anchor's: same items, same
    seeds, at the last step that both have.

    Raises:
        DriftlabError: runs of a cell, or of two cells that are compared, cannot stand in one report.
    """
    frames = [build_frames(cell.runs) for cell in cells]
    moved = {task for one in frames for task in one.averaged}
    kept = [tuple(task for task in one.priors if task in moved) for one in frames]
    named = {one.profiles[task]: "" for one, tasks in zip(frames, kept, strict=True) for task in tasks}
    prefixes = {name: "prior" if len(named) == 1 else f"prior_{name.replace('-', '_')}" for name in named}
    parts = []
    for cell, one, tasks in zip(cells, frames, kept, strict=True):
        averages: dict[str, tuple[str, str, tuple[str, ...]]] = {"target": (one.target, "", (one.target,))}
        for profile, prefix in prefixes.items():
            members = tuple(task for task in tasks if one.profiles[task] == profile)
            averages[prefix] = (AVERAGE, profile, members)
        parts.append(_Part(cell=cell, frames=one, scores=task_scores(one.examples), averages=averages))
    references = [_reference(part, parts) for part in parts]
    found = list(zip(parts, references, strict=True))
    keys = tuple(cells[0].values)
    return SweepFrames(
        keys=keys,
        priors={
            prefix: tuple(dict.fromkeys(task for part in parts for task in part.averages[prefix][2]))
            for prefix in prefixes.values()
        },
        inert=tuple(dict.fromkeys(task for one in frames for task in one.priors if task not in moved)),
        rows=_table([row for part, other in found for row in _seed_rows(part, other)], keys),
        cells=_table([_cell_row(part, other) for part, other in found], keys),
    )


def _table(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> pd.DataFrame:
    """Values of the keys stay what they were set to: a column of whole numbers beside None would turn into floats."""
    return pd.DataFrame(rows).assign(**{key: pd.Series([row[key] for row in rows], dtype=object) for key in keys})


def _reference(part: _Part, parts: Sequence[_Part]) -> _Part | None:
    shared = part.cell.apart_from_anchor
    plain = [one for one in parts if not one.cell.anchored and one.cell.apart_from_anchor == shared]
    return plain[0] if part.cell.anchored and plain else None


def _seed_rows(part: _Part, other: _Part | None) -> list[dict[str, Any]]:
    frames = part.frames
    averages = average_table(frames.differences, part.averaged, frames.profiles)
    rows = []
    for run in each(frames.runs):
        last = int(run.last_step)
        row: dict[str, Any] = {"cell": part.label, **part.cell.values, "seed": run.seed, "run_id": run.run_id}
        row |= {"status": run.status, "step": last, "target": frames.target}
        for prefix, (_, profile, tasks) in part.averages.items():
            table = averages[averages["profile"] == profile] if profile else frames.differences
            own = table[(table["run"] == run.run) & (table["step"] == last)]
            change = _first(own if profile else own[own["task"] == frames.target])
            row |= {f"{prefix}_{name}": _level(frames, [run.run], tasks, at) for name, at in _ends(last)}
            row |= {f"{prefix}_change": change.get("difference", NAN), f"{prefix}_stderr": change.get("stderr", NAN)}
            row[f"{prefix}_items"] = change.get("n", NAN)
        row |= _against(part, other, [run.seed])
        row |= {name: value for name in NORMS for value in _norms(frames, [run.run], name, last)}
        row["predicted_norm_sd"] = next(iter(_norms(frames, [run.run], "predicted_norm", last, "stderr")), NAN)
        rows.append(row)
    return rows


def _cell_row(part: _Part, other: _Part | None) -> dict[str, Any]:
    frames = part.frames
    last, runs = int(frames.runs["last_step"].min()), list(frames.runs["run"])
    row: dict[str, Any] = {"cell": part.label, **part.cell.values, "anchored": part.cell.anchored}
    row |= {"seeds": len(runs), "step": last, "target": frames.target}
    means = seed_table(frames.runs, part.scores, frames.target, part.averaged, frames.profiles)
    means = means[means["step"] == last]
    for prefix, (task, profile, tasks) in part.averages.items():
        own = means[means["task"] == task]
        found = _first(own[own["profile"] == profile] if profile else own)
        row |= {f"{prefix}_{name}": _level(frames, runs, tasks, at) for name, at in _ends(last)}
        row |= {f"{prefix}_{name}": found.get(column, NAN) for name, column in _CHANGE}
        row[f"{prefix}_tasks"] = len(tasks)
    row["against"] = None if other is None else other.label
    row |= _against(part, other, list(frames.runs["seed"]))
    for name in NORMS:
        values = _norms(frames, runs, name, last)
        whole = over_seeds(values) if len(values) == len(runs) else None
        row |= {name: NAN, f"{name}_low": NAN, f"{name}_high": NAN}
        if whole is not None:
            row[name] = whole.mean
        if whole is not None and whole.low is not None:
            row |= {f"{name}_low": whole.low, f"{name}_high": whole.high}
    return row


_CHANGE = (("change", "mean"), ("low", "low"), ("high", "high"))


def _ends(last: int) -> tuple[tuple[str, int], ...]:
    return (("base", 0), ("final", last))


def _first(table: pd.DataFrame) -> dict[str, Any]:
    return {str(name): value for name, value in table.iloc[0].items()} if len(table) else {}


def _level(frames: Frames, runs: Sequence[str], tasks: Sequence[str], step: int) -> float:
    """Accuracy averaged over tasks and runs; NaN when one of them is missing."""
    rows = accuracy_rows(frames.measurements)
    rows = rows[(rows["step"] == step) & (rows["status"] == "ok") & rows["run"].isin(runs) & rows["group"].isin(tasks)]
    return float(rows["value"].mean()) if tasks and len(rows) == len(runs) * len(tasks) else NAN


def _norms(frames: Frames, runs: Sequence[str], quantity: str, step: int, column: str = "value") -> list[float]:
    """One per run that has it."""
    rows = frames.rows(quantity, probe="weights")
    rows = rows[(rows["group"] == "all") & (rows["step"] == step) & rows["run"].isin(runs) & rows[column].notna()]
    return [float(value) for value in rows[column]]


def _against(part: _Part, other: _Part | None, seeds: Sequence[int]) -> dict[str, float]:
    """Final accuracy of the cell minus that of the unanchored one, paired by item within each seed."""
    found: dict[str, float] = {}
    table = None
    if other is not None:
        check_together([*other.cell.runs, *part.cell.runs])
        runs = pd.concat([other.frames.runs, part.frames.runs])
        # Walks at random are compared with each other like arms that learn.
        runs = runs[runs["seed"].isin(seeds)].assign(control="none")
        scores = {**other.scores, **part.scores}
        table = control_table(runs, scores, part.frames.target, part.averaged, part.frames.profiles)
    for prefix, (task, profile, tasks) in part.averages.items():
        row: dict[str, Any] = {}
        if table is not None and tasks:
            # An average of one task stands under the task's own name.
            own = table[table["task"] == (task if len(tasks) > 1 else tasks[0])]
            row = _first(own[own["profile"] == profile] if profile else own)
        names = (("against", "difference"), ("against_low", "low"), ("against_high", "high"))
        found |= {f"{prefix}_{name}": row.get(column, NAN) for name, column in names}
    return found


def average_name(frames: SweepFrames, prefix: str) -> str:
    count = len(frames.priors[prefix])
    kind = prefix.removeprefix("prior").replace("_", " ")
    return f"average of {count} prior task{'' if count == 1 else 's'}" + (f",{kind}" if kind else "")


def shown_value(value: Any) -> str:
    """A key's value as a reader sees it: 10 for 10.0, a dash where the key has no meaning."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)
