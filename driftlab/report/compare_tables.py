"""The tables of a comparison about accuracy and KL. Changes and differences are in percentage points ("points")."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.compare import Comparison
from driftlab.report.compare_weights import NORM, text_sets
from driftlab.report.formats import NOT_MEASURED, Table, interval, points
from driftlab.report.frames import Frames
from driftlab.report.matching import Match
from driftlab.report.pairing import each
from driftlab.report.tables import digits
from driftlab.report.verdict_tables import average_name
from driftlab.report.verdicts import AVERAGE

UNMATCHED = "no matched step"
"""In a cell of an arm none of whose runs has a step at the match; the table of matched runs says why."""
NOT_RECORDED = "not recorded"
ALIKE = (
    "Runs of two arms with one training seed are held against each other; arms that share no seed in the order of "
    "their seeds. With one pair the interval is over items and another seed can move the number further; with several "
    "the pair is the unit, and the interval is no narrower than that over items."
)
SELECTED = (
    " The step of a run is the first whose measured accuracy reaches the value, so it is picked for reading high: the "
    "accuracy there, and what goes with it, is a little better than that of the step itself, most of all where few "
    "items were asked or many steps measured."
)


def matched_at(match: Match) -> str:
    """``step 60``, ``9,600 rollouts``, ``1.2e12 FLOPs`` or ``32.5 % target accuracy``."""
    if match.kind == "step":
        return f"step {match.value:.0f}"
    if match.kind == "target":
        return f"{100 * match.value:.4g} % target accuracy"
    return f"{count(match.value)} rollouts" if match.kind == "rollouts" else f"{large(match.value)} FLOPs"


def count(value: float) -> str:
    return NOT_RECORDED if pd.isna(value) else f"{value:,.0f}"


def large(value: float) -> str:
    """Three digits with a power of ten: operations."""
    return NOT_RECORDED if pd.isna(value) else f"{value:.2e}".replace("e+", "e").replace("e0", "e") if value else "0"


def over_runs(values: Iterable[float], text: Callable[[float], str]) -> str:
    """``mean (smallest to largest)``, or the one value that all runs have."""
    numbers = np.array(list(values), dtype=np.float64)
    if not len(numbers):
        return UNMATCHED
    if np.isnan(numbers).any():
        return NOT_RECORDED if np.isnan(numbers).all() else "not recorded in every run"
    mean, low, high = (text(float(one)) for one in (numbers.mean(), numbers.min(), numbers.max()))
    return mean if low == high else f"{mean} ({low} to {high})"


def matched_table(c: Comparison) -> Table:
    """The step of every run, and what it had spent and reached there."""
    rows = []
    for row in each(c.chosen.runs):
        if pd.isna(row.step):
            rows.append((row.run, "–", "–", "–", "–", f"{UNMATCHED}: {row.note}"))
            continue
        accuracy = NOT_MEASURED if pd.isna(row.target_accuracy) else points(row.target_accuracy, sign=False)
        rows.append((row.run, f"{row.step:.0f}", count(row.rollouts), large(row.flops), accuracy, row.note or "–"))
    match = c.chosen.match
    selected = SELECTED if match.kind == "target" else ""
    return Table(
        name="matched",
        title=f"Where the runs are compared: matched at {matched_at(match)}",
        columns=("run", "step", "rollouts", "FLOPs", "target accuracy, %", "note"),
        rows=tuple(rows),
        data=c.chosen.runs,
        source=f"{_RULES[match.kind]} Only measured steps count: nothing is interpolated or extrapolated. Rollouts and "
        f"FLOPs (forward and backward) are cumulated from `cost` in `updates.jsonl`.{selected}",
    )


_RULES = {
    "step": "Every run at the same step; without a value the last one that all measured.",
    "rollouts": "The last measured step that had cost no more rollouts than the value, in runs that spent as many; "
    "without a value the smallest budget of all runs.",
    "flops": "The last measured step that had cost no more floating-point operations than the value, in runs that "
    "spent as many; without a value the smallest budget of all runs.",
    "target": "The first measured step whose target accuracy is at least the value; without a value the highest "
    "accuracy that every run reached, null controls aside (the smallest of their best).",
}


def prior_keys(frames: Frames) -> list[tuple[str, str]]:
    """Task and profile of what sums up the prior tasks: the average of each profile, or its only task."""
    found = []
    for profile in dict.fromkeys(frames.profiles[task] for task in frames.averaged):
        members = [task for task in frames.averaged if frames.profiles[task] == profile]
        found.append((AVERAGE if len(members) > 1 else members[0], profile))
    return found


def name_of(frames: Frames, task: str, profile: Any) -> str:
    if task == AVERAGE:
        return average_name(frames, profile)
    return f"{task} (target)" if task == frames.target else task


def final_table(c: Comparison) -> Table:
    """Arms x tasks: change since the base at the match, and verdicts."""
    table = c.chosen.changes
    cells = {(row.arm, row.task, profile_of(row)): row for row in each(table)}
    rows = []
    for task, profile in _tasks(table):
        own = [cells.get((arm, task, profile)) for arm in c.arms]
        rows.append((name_of(c.frames, task, profile), *(change_text(cell, c.chosen.match) for cell in own)))
    return Table(
        name="final",
        title=f"Change since the base at {matched_at(c.chosen.match)}, in points [95 % interval]: verdicts",
        columns=("task", *(_with_seeds(c.chosen.match, arm) for arm in c.arms)),
        rows=tuple(rows),
        data=table,
        source="`correct` of the same items at step 0 and at the matched step of each run in `examples/`. With one run "
        "of an arm the interval is over items; with several the seed is the unit and the interval is no narrower than "
        "that over items. Intervals are of one comparison, not corrected. The verdicts are those of every run on its "
        "own curve up to the matched step, corrected for all prior tasks and steps of that run; stable means within "
        f"±{100 * c.frames.margin:g} points.",
    )


def _with_seeds(match: Match, arm: str) -> str:
    found, all_ = len(match.places(arm)), len(match.places(arm)) + len(match.missing(arm))
    return f"{arm}, {found if found == all_ else f'{found} of {all_}'} run{'' if all_ == 1 else 's'}"


def profile_of(row: Any) -> str | None:
    return None if pd.isna(row.profile) else str(row.profile)


def _tasks(table: pd.DataFrame) -> list[tuple[str, str | None]]:
    return list(dict.fromkeys((row.task, profile_of(row)) for row in each(table)))


def change_text(row: Any, match: Match) -> str:
    if row is None:
        return NOT_MEASURED
    if not match.places(row.arm):
        return UNMATCHED
    if pd.isna(row.change):
        return NOT_MEASURED
    text = ends(row.change, row.low, row.high)
    return f"{text}: {row.verdicts}" if row.verdicts else text


def ends(value: float, low: float, high: float) -> str:
    """``−2.0 [−4.1, +0.1]`` in points; without an interval it says so."""
    return f"{points(value)} [no interval]" if pd.isna(low) else interval(value, low, high)


def against_table(c: Comparison) -> Table:
    """Tasks x arms: difference of every arm from the first, at the match."""
    first, table = c.arms[0], c.chosen.pairs
    own = table[table["against"] == first]
    cells = {(row.arm, row.task, profile_of(row)): row for row in each(own)}
    others = c.arms[1:]
    rows = [
        (name_of(c.frames, task, profile), *(_difference(cells[arm, task, profile]) for arm in others))
        for task, profile in _tasks(own)
    ]
    return Table(
        name="against-first",
        title=f"Difference from {first} at {matched_at(c.chosen.match)}, in points [95 % interval]",
        columns=("task", *others),
        rows=tuple(rows),
        data=own.reset_index(drop=True),
        source=f"`correct` of the same items at the matched steps of both arms in `examples/`, arm minus {first}, "
        f"paired by item. {ALIKE} The intervals are not corrected; ✱ marks a prior task whose difference stays below "
        "p = 0.05 after Holm's correction over the prior tasks of the pair (`p_holm` in the CSV).",
    )


def _difference(row: Any) -> str:
    if pd.isna(row.difference):
        return UNMATCHED if row.note else NOT_MEASURED
    return ends(row.difference, row.low, row.high) + (" ✱" if row.p_holm < 0.05 else "")


def pair_table(c: Comparison) -> Table:
    """Every pair of arms and task, one row each."""
    rows = []
    for row in each(c.chosen.pairs):
        name = name_of(c.frames, row.task, profile_of(row))
        if pd.isna(row.difference):
            rows.append((name, row.arm, row.against, "–", "–", _difference(row), "–", "–"))
            continue
        held = f"{row.n:.0f} items" if row.seeds == 1 else f"{row.seeds:.0f} pairs of runs"
        adjusted = "–" if pd.isna(row.p_holm) else p_text(row.p_holm)
        difference = ends(row.difference, row.low, row.high)
        rows.append((name, row.arm, row.against, points(row.change), points(row.other), difference, adjusted, held))
    return Table(
        name="pairs",
        title=f"Every pair of arms at {matched_at(c.chosen.match)}, in points [95 % interval]",
        columns=("task", "arm", "against", "its change", "change of the other", "difference", "p, Holm", "unit"),
        rows=tuple(rows),
        data=c.chosen.pairs,
        source=f"As the table of differences from the first arm. {ALIKE} p: two-sided t test of the same error as the "
        "interval, with Holm's correction over the prior tasks of the pair; the target and the average are one "
        "comparison each and have none. A run without a step at the match is left out of its arm and named in `note` "
        "of the CSV.",
    )


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.2g}"


def kl_table(c: Comparison) -> Table:
    """Text sets x arms: KL from the base at the match."""
    table = c.chosen.kl
    cells = {(row.arm, row.group): row for row in each(table)}
    rows = []
    for group in dict.fromkeys(table["group"]):
        rows.append((kl_name(c.frames, group), *(kl_text(cells[arm, group]) for arm in c.arms)))
    return Table(
        name="kl",
        title=f"KL(base ‖ step) at {matched_at(c.chosen.match)}, nats per token [95 % interval]",
        columns=("text set", *c.arms),
        rows=tuple(rows) if len(table) else (),
        data=table,
        source="`value`, `stderr` and `n` of rows with probe `kl`, quantity `kl_base_to_step` in `measurements.jsonl`, "
        "token-weighted, on continuations drawn from the base. One run: t interval over texts. Several: over seeds, no "
        "narrower than over texts, whose error is taken as shared by the seeds in full; an end below 0 is cut at 0. "
        "The average over the prior tasks' text sets is unweighted.",
    )


def kl_name(frames: Frames, group: str) -> str:
    if group == AVERAGE:
        return f"average of {len([one for one in text_sets(frames) if one != frames.target])} prior text sets"
    return f"{group} (target)" if group == frames.target else group


def kl_text(row: Any) -> str:
    if pd.isna(row.value):
        return str(row.note)
    if pd.isna(row.low):
        return f"{digits(row.value)} [no interval]"
    return f"{digits(row.value)} [{digits(row.low) if row.low else '0'}, {digits(row.high)}]"


def ratio_table(c: Comparison) -> Table:
    """Ratios of norms and of KL for every pair of arms."""
    rows = []
    for row in each(c.chosen.ratios):
        text = row.note if pd.isna(row.value) else ratio_text(row._asdict())
        held = "–" if pd.isna(row.value) else f"{row.pairs:.0f}"
        rows.append((row.quantity, row.arm, row.against, text, held))
    return Table(
        name="ratios",
        title=f"Ratios between arms at {matched_at(c.chosen.match)} [95 % interval]",
        columns=("quantity", "arm", "over", "ratio", "pairs of runs"),
        rows=tuple(rows),
        data=c.chosen.ratios,
        source="Geometric mean over pairs of runs of the value of the arm over that of the other; the interval is made "
        "on the logarithm. Over several pairs the pair is the unit. A norm has no error of its own: with one pair it "
        "has no interval. KL: no narrower than the interval over texts, in which the errors of the two arms count as "
        "independent; over the prior tasks' texts it is the geometric mean over text sets.",
    )


def ratio_text(row: Mapping[str, Any]) -> str:
    text = digits(row["value"])
    if pd.isna(row["low"]):
        why = "one pair of runs" if row["quantity"] == NORM else "no error stored"
        return f"{text} [no interval: {why}]"
    return f"{text} [{digits(row['low'])}, {digits(row['high'])}]"
