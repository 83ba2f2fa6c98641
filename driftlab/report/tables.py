"""The report's tables: what a reader sees, the numbers at full precision, and where each cell comes from.

Changes of accuracy are in percentage points ("points"), accuracies in per cent, norms are L2, KL in nats per token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import holm
from driftlab.drift.stats import proportion_interval, t_quantile
from driftlab.report.formats import NOT_MEASURED, Table, interval, points
from driftlab.report.frames import Frames
from driftlab.report.pairing import accuracy_rows, each
from driftlab.report.verdict_tables import (
    average_name,
    floor_of,
    profiles,
)


def change(row: Mapping[str, Any] | None) -> str:
    """Change in points with its 95 % interval, or why there is none."""
    if row is None:
        return NOT_MEASURED
    if row["status"] != "ok":
        return str(row["status"])
    if pd.isna(row["low"]):
        return f"{points(row['difference'])} [no interval: one cluster]"
    return interval(row["difference"], row["low"], row["high"])


def at_last_step(frames: Frames, table: pd.DataFrame, run: str, **where: str) -> dict[str, Any] | None:
    """The row of ``table`` at the last measured step of ``run``; None when there is none."""
    last = frames.runs.loc[frames.runs["run"] == run, "last_step"].iloc[0]
    chosen = table[(table["run"] == run) & (table["step"] == last)]
    for column, value in where.items():
        chosen = chosen[chosen[column] == value]
    return {str(key): value for key, value in chosen.iloc[0].items()} if len(chosen) else None


def final_table(frames: Frames) -> Table:
    """Final minus base per task and run, and the averages over the prior tasks."""
    runs = [(row.run, row.last_step) for row in each(frames.runs)]
    rows = []
    for task in (frames.target, *frames.priors):
        cells = [at_last_step(frames, frames.differences, run, task=task) for run, _ in runs]
        name = f"{task} (target)" if task == frames.target else task
        rows.append((name, _items(cells), *(change(cell) for cell in cells), floor_of(frames, task)))
    for profile in profiles(frames):
        cells = [at_last_step(frames, frames.averages, run, profile=profile) for run, _ in runs]
        rows.append((average_name(frames, profile), _items(cells), *(change(cell) for cell in cells), "–"))
    last = frames.runs.set_index("run")["last_step"]
    data = pd.concat(
        [frames.differences.drop(columns="arm"), frames.averages.drop(columns="arm").assign(task="", role="average")]
    )
    data = data[data["step"] == data["run"].map(last)].reset_index(drop=True)
    data = data.astype(dict.fromkeys(["n", "n_clusters", "gained", "lost", "unpaired", "n_tasks"], "Int64"))
    data["p_value_holm"] = _holm(data)
    return Table(
        name="final-minus-base",
        title="Accuracy, final minus base, in points [95 % interval]",
        columns=("task", "items", *(f"{run}, step {last_step}" for run, last_step in runs), "floor"),
        rows=tuple(rows),
        data=data,
        source="Each change is the mean of `correct` at the final step minus `correct` at step 0 in `examples/`, over "
        "items with the same `task` and `item` at both; items with the same `cluster` are not taken as independent, "
        "and a `stratum` is not taken as sampled. Intervals are of one comparison each, not corrected. The average is "
        "the unweighted mean of the prior tasks' changes; its items are their sum. The CSV also holds bootstrap "
        "intervals, McNemar's mid-p (of a t test where items share clusters) with Holm's correction over the prior "
        "tasks of a run, the smallest change visible, chance-corrected retention and the change of the margin.",
    )


def _holm(data: pd.DataFrame) -> pd.Series:
    """Holm-adjusted p-values of each run's prior tasks."""
    adjusted = pd.Series(float("nan"), index=data.index)
    known = data[(data["role"] == "prior") & data["p_value"].notna()]
    for _, part in known.groupby("run", sort=False):
        adjusted.loc[part.index] = np.array(holm(part["p_value"].tolist()))
    return adjusted


def _items(cells: list[dict[str, Any] | None]) -> str:
    counts = ["–" if cell is None or pd.isna(cell["n"]) else str(int(cell["n"])) for cell in cells]
    return counts[0] if len(set(counts)) == 1 else " / ".join(counts)


def accuracy_table(frames: Frames) -> Table:
    """Accuracy at the base, at the final step and at the lowest measured step after the base."""
    stored = accuracy_rows(frames.measurements)
    rows, data = [], []
    for task in (frames.target, *frames.priors):
        for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
            own = stored[(stored["run"] == run) & (stored["group"] == task)].sort_values("step", kind="stable")
            later = own[(own["step"] > 0) & (own["status"] == "ok")]
            lowest = later.loc[[later["value"].idxmin()]] if len(later) else later
            kinds = {"base": own[own["step"] == 0], "final": own[own["step"] == last], "lowest": lowest}
            picked = {kind: _first(part) for kind, part in kinds.items()}
            step = "" if picked["lowest"] is None else f" (step {picked['lowest']['step']})"
            shown = {kind: _accuracy(row) for kind, row in picked.items()}
            margin = _margin(at_last_step(frames, frames.differences, run, task=task))
            rows.append((task, run, shown["base"], shown["final"], shown["lowest"] + step, margin))
            data += [{"at": kind} | row for kind, row in picked.items() if row is not None]
    return Table(
        name="accuracy",
        title="Accuracy in % [95 % interval], at step 0, at the final step and where it was lowest",
        columns=("task", "run", "base", "final", "lowest after base", "margin change, nats"),
        rows=tuple(rows),
        data=pd.DataFrame(data, columns=["at", *stored.columns.drop("arm")]),
        source="`value` and `n` of rows with probe `lm_eval`, quantity `accuracy` in `measurements.jsonl`. Intervals "
        "are Wilson's, items taken as independent. The lowest of many measured steps is picked for being low, so it "
        "reads lower than it is; the verdicts account for that. The margin (right choice minus best other, "
        "log-likelihood) is that of the same items, `score` in `examples/`, with its 95 % interval; it moves before "
        "answers flip. Generated answers have none.",
    )


def _margin(row: Mapping[str, Any] | None) -> str:
    if row is None or pd.isna(row["margin_low"]):
        return "–"
    values = (row["margin_difference"], row["margin_low"], row["margin_high"])
    texts = [f"{value:+.3f}".replace("-", "−") for value in values]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]"


def _first(part: pd.DataFrame) -> dict[str, Any] | None:
    return {str(key): value for key, value in part.iloc[0].items()} if len(part) else None


def cell_text(row: Mapping[str, Any] | None, text: Callable[[Mapping[str, Any]], str]) -> str:
    if row is None:
        return NOT_MEASURED
    return text(row) if row["status"] == "ok" else str(row["status"])


def _accuracy(row: Mapping[str, Any] | None) -> str:
    def text(row: Mapping[str, Any]) -> str:
        scored = row["n"] - row["n_failed"]
        ends = proportion_interval(round(row["value"] * scored, 6), scored)
        return f"{points(row['value'], sign=False)} [{points(ends.low, sign=False)}, {points(ends.high, sign=False)}]"

    return cell_text(row, text)


_FORMAT = {
    "accuracy": "accuracy",
    "unparsed_fraction": "unparsed",
    "accuracy_parsed": "accuracy among parsed",
    "truncated_fraction": "truncated",
}


def _parsed_at_both(row: Mapping[str, Any] | None) -> str:
    if row is None or pd.isna(row["parsed_low"]):
        return "–"
    ends = interval(row["parsed_difference"], row["parsed_low"], row["parsed_high"])
    return f"{ends} ({row['parsed_n']:.0f})"


def format_table(frames: Frames) -> Table:
    """Generated answers, base and final: loss of format told apart from loss of knowledge."""
    table = frames.measurements[frames.measurements["probe"] == "lm_eval"]
    generated = set(table.loc[table["quantity"] == "unparsed_fraction", "group"])
    rows = []
    for task in (task for task in (frames.target, *frames.priors) if task in generated):
        for run in frames.runs["run"]:
            own = table[(table["run"] == run) & (table["group"] == task) & (table["step"] == 0)]
            cells = []
            for quantity in _FORMAT:
                base = _first(own[own["quantity"] == quantity])
                final = at_last_step(frames, table, run, quantity=quantity, group=task)
                shown = [cell_text(row, lambda row: points(row["value"], sign=False)) for row in (base, final)]
                cells.append(" → ".join(shown))
            change_there = at_last_step(frames, frames.differences, run, task=task)
            rows.append((task, run, *cells, _parsed_at_both(change_there)))
    return Table(
        name="format",
        title="Generated answers in %, base → final: what could be read, and what was right among that",
        columns=("task", "run", *_FORMAT.values(), "change of the items parsed at both, points"),
        rows=tuple(rows),
        data=table[table["group"].isin(generated) & table["quantity"].isin(_FORMAT)].drop(columns="arm"),
        source="`value` of rows with probe `lm_eval` in `measurements.jsonl`. An answer that cannot be read is wrong "
        "and counted as unparsed. What can be read is a selection of items, and another one at each step; the last "
        "column is paired over those that could be read at both (number in brackets): what is lost there is not lost "
        "format. The CSV holds every step.",
    )


def kl_table(frames: Frames) -> Table:
    """KL divergence of each run's last measured step from the base, per text set."""
    table = frames.measurements[frames.measurements["probe"] == "kl"]
    rows = []
    for group in dict.fromkeys(table["group"]):
        for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
            cells = [
                at_last_step(frames, table, run, quantity=quantity, group=group)
                for quantity in ("kl_base_to_step", "kl_base_to_step_prompt_average")
            ]
            count = cell_text(cells[0], lambda row: str(row["n"]))
            rows.append((group, run, str(last), count, *(cell_text(cell, _nats) for cell in cells)))
    return Table(
        name="kl",
        title="KL(base ‖ step) in nats per token [95 % interval], at the last measured step",
        columns=("text set", "run", "step", "sequences", "token-weighted", "prompt-averaged"),
        rows=tuple(rows),
        data=table.drop(columns="arm").reset_index(drop=True),
        source="`value`, `stderr` and `n` of rows with probe `kl` in `measurements.jsonl`, the text set being their "
        "`group`; the interval is the value ± a t quantile (n − 1 degrees of freedom) "
        "times the standard error over sequences. The CSV holds every step.",
    )


def _nats(row: Mapping[str, Any]) -> str:
    if pd.isna(row["stderr"]):
        return f"{digits(row['value'])} [no interval]"
    low, high = (row["value"] + side * t_quantile(row["n"]) * row["stderr"] for side in (-1, 1))
    return f"{digits(row['value'])} [{digits(low)}, {digits(high)}]".replace("-", "−")


def digits(value: float) -> str:
    """Three significant digits, trailing zeros kept."""
    return f"{value:#.3g}".rstrip(".")
