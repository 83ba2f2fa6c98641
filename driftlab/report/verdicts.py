"""Verdicts of every run as tables: prior tasks with their simultaneous bands, and the target's two curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from driftlab.drift.bands import Curve, average_curve, paired_curve
from driftlab.drift.curves import (
    Critical,
    Point,
    PriorVerdict,
    prior_verdict,
    run_critical_values,
    since_base,
    too_short,
)
from driftlab.drift.peaks import Level, level_of, pooled, reward_level, target_verdict
from driftlab.report.pairing import SEED, each
from driftlab.report.scores import TaskScores
from driftlab.report.unpaired import TaskAccuracies, marked

AVERAGE = ""
"""In the column ``task``: the unweighted mean over the prior tasks of the row's profile."""
_POINTS = ("final", "lowest", "highest", "came_back", "average")
_ENDS = [f"{point}_{part}" for point in _POINTS for part in ("step", "change", "low", "high")]
_NUMBERS = [*_ENDS, "drawdown", "drawdown_noise", "n", "gained", "lost", "items_needed", "detectable"]
VERDICT_COLUMNS = ["run", "arm", "task", "profile", "verdict", "reason", *_NUMBERS]
BAND_COLUMNS = ["run", "arm", "task", "profile", "step", "change", "low", "high"]
_TARGET_NUMBERS = [
    *("highest", "fallen", "peak", "peak_low", "peak_high"),
    *("late_step", "late_change", "late_low", "late_high"),
]
TARGET_COLUMNS = ["run", "arm", "curve", "verdict", "reason", *_TARGET_NUMBERS]


Evidence = Mapping[tuple[str, str], TaskScores | TaskAccuracies]
"""By (run, task): items, or accuracies where a run stores none."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Prior tasks of one run and profile that were measured at the same steps, judged together."""

    profile: str
    steps: tuple[int, ...]
    tasks: list[str]
    curves: list[Curve]


def verdict_tables(
    runs: pd.DataFrame,
    scores: Evidence,
    priors: Sequence[str],
    averaged: Sequence[str],
    profiles: Mapping[str, str],
    *,
    margin: float,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Verdict per (run, prior task), and per (run, profile) on the average; and the bands, per step as well.

    Tasks of different profiles, or measured at different steps, are judged apart, each group at a level that keeps the
    run's at 95 %. A task without a verdict has the word *cannot say* and the reason: one that was not measured at the
    base or at the run's last step, and one that is not in ``averaged``, because none of its items ever changes.

    Args:
        averaged: the prior tasks that count in an average.
        profiles: of every prior task.
        margin: largest change that still counts as stable, a fraction.
    """
    rows: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    for run in each(runs):
        groups, unjudged = _groups(run, scores, priors, averaged)
        rows += [_no_verdict(run, task, reason) for task, reason in unjudged.items()]
        for group in groups:
            level = 1 - 0.05 / len(groups)
            names, curves = list(group.tasks), list(group.curves)
            members = [task for task in averaged if profiles[task] == group.profile]
            whole = len(members) > 1 and set(members) <= set(group.tasks)
            counted = [group.tasks.index(task) for task in members] if whole else []
            if counted:
                names.append(AVERAGE)
                curves.append(average_curve([group.curves[index] for index in counted]))
            critical = run_critical_values(group.curves, averaged=counted, seed=SEED, level=level)
            for task, curve in zip(names, curves, strict=True):
                where = {"run": run.run, "arm": run.arm, "task": task, "profile": group.profile}
                found = prior_verdict(curve, group.steps, critical, margin=margin, seed=SEED)
                rows.append(where | _row(found, curve, critical))
                bands += [where | point for point in _band(curve, group.steps, critical)]
        rows += _without_average(run, rows, averaged, profiles)
    order = {task: number for number, task in enumerate((*priors, AVERAGE))}
    table = pd.DataFrame(rows, columns=VERDICT_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64"))
    return _sorted(table, runs, order), _sorted(pd.DataFrame(bands, columns=BAND_COLUMNS), runs, order)


def _without_average(
    run: Any, rows: Sequence[dict[str, Any]], averaged: Sequence[str], profiles: Mapping[str, str]
) -> list[dict[str, Any]]:
    """A row for every average that could not be judged, naming a task that it lacks."""
    own = [row for row in rows if row["run"] == run.run]
    done = {row["profile"] for row in own if row["task"] == AVERAGE}
    reasons = {row["task"]: row["reason"] for row in own if "final_step" not in row}
    found = []
    for profile in dict.fromkeys(profiles[task] for task in averaged):
        members = [task for task in averaged if profiles[task] == profile]
        if profile not in done and len(members) > 1:
            lacking = next((f"{task}: {reasons[task]}" for task in members if task in reasons), None)
            reason = lacking or "its tasks were not measured at the same steps"
            found.append(_no_verdict(run, AVERAGE, reason) | {"profile": profile})
    return found


def _sorted(table: pd.DataFrame, runs: pd.DataFrame, order: Mapping[str, int]) -> pd.DataFrame:
    rank = {run: number for number, run in enumerate(runs["run"])}
    keys = pd.DataFrame({"task": table["task"].map(order), "run": table["run"].map(rank)})
    return table.loc[keys.sort_values(["task", "run"], kind="stable").index].reset_index(drop=True)


def _groups(
    run: Any, scores: Evidence, priors: Sequence[str], averaged: Sequence[str]
) -> tuple[list[_Group], dict[str, str]]:
    groups: dict[tuple[str, tuple[int, ...]], _Group] = {}
    unjudged: dict[str, str] = {}
    for task in priors:
        found = scores.get((run.run, task))
        reason = "no items are stored" if found is None else why_not(found, run.last_step)
        if reason is None and task not in averaged:
            reason = "no item changed at any step of any run: the metric is constant"
        if found is None or reason is not None:
            unjudged[task] = reason or ""
            continue
        steps = found.curve_steps[1:]
        group = groups.setdefault((found.profile, steps), _Group(found.profile, steps, [], []))
        group.tasks.append(task)
        group.curves.append(task_curve(found))
    return list(groups.values()), unjudged


def why_not(found: TaskScores | TaskAccuracies, last_step: int) -> str | None:
    """Why there is no curve to judge; None when there is one."""
    if isinstance(found, TaskAccuracies):
        return found.why_not(last_step)
    if found.steps[0] != 0:
        return "the base was not measured"
    if found.steps[-1] != last_step:
        return f"the final step {last_step} was not measured"
    short = too_short(len(found.curve_steps))
    if short is not None:
        return short
    mask = found.curve()[1]
    if not mask.any():
        return "no item was measured at every step"
    if len(set(found.choose(mask)[0])) < 2:
        return "all items share one cluster, so nothing is known about the error"
    return None


def task_curve(found: TaskScores | TaskAccuracies) -> Curve:
    """Paired curve over the items stored at all of its steps; unpaired without items."""
    if isinstance(found, TaskAccuracies):
        return found.curve()
    scores, mask = found.curve()
    return paired_curve(scores, *found.choose(mask))


def _no_verdict(run: Any, task: str, reason: str) -> dict[str, Any]:
    return {"run": run.run, "arm": run.arm, "task": task, "verdict": "cannot say", "reason": reason}


def _row(found: PriorVerdict, curve: Curve, critical: Critical) -> dict[str, Any]:
    gained, lost = float(curve.gained[-1]), float(curve.lost[-1])
    row: dict[str, Any] = {"verdict": found.word, "reason": marked(found.reason, unpaired=bool(np.isnan(gained)))}
    for name in _POINTS:
        point: Point | None = getattr(found, name)
        if point is not None:
            row |= {f"{name}_{part}": getattr(point, part) for part in ("step", "change", "low", "high")}
    # Found with 80 % power: the estimate then lies beyond the corrected interval in four of five repetitions.
    detectable = (critical.final + float(stats.norm.ppf(0.8))) * float(np.sqrt(curve.covariance[-1, -1]))
    return row | {
        "drawdown": found.drawdown,
        "drawdown_noise": found.drawdown_noise,
        "n": curve.n,
        "gained": gained,
        "lost": lost,
        "items_needed": found.items_needed,
        "detectable": detectable,
    }


def _band(curve: Curve, steps: Sequence[int], critical: Critical) -> list[dict[str, Any]]:
    found = since_base(curve, critical)
    ends = zip(steps, found.estimate, found.low, found.high, strict=True)
    return [{"step": step, "change": change, "low": low, "high": high} for step, change, low, high in ends]


def target_table(
    runs: pd.DataFrame,
    scores: Evidence,
    rewards: Mapping[str, Sequence[Sequence[float]]],
    target: str,
    *,
    margin: float,
) -> pd.DataFrame:
    """Verdict per run on the target's accuracy and on the training reward, with the interval of the peak.

    Where an arm has several runs, a row on their mean accuracy follows, with error over items and over seeds.

    Args:
        rewards: by run, mean reward of each member at each iteration; empty for a run without rollouts, absent for one
            that does not store them.
    """
    rows = []
    unpaired = {run.run: isinstance(scores.get((run.run, target)), TaskAccuracies) for run in each(runs)}
    levels: dict[tuple[str, str], list[Level]] = {}
    for run in each(runs):
        curves: dict[str, tuple[Level | None, str]] = {
            "target accuracy": _accuracy_level(scores.get((run.run, target)), run.last_step),
            "training reward": _reward_level(rewards.get(run.run)),
        }
        for name, (level, reason) in curves.items():
            where = {"run": run.run, "arm": run.arm, "curve": name}
            marks = unpaired[run.run] and name == "target accuracy"
            rows.append(
                where | ({"verdict": "cannot say", "reason": reason} if level is None else _peak(level, margin, marks))
            )
            if level is not None and name == "target accuracy":
                levels.setdefault((run.arm, name), []).append(level)
    sizes = runs["arm"].value_counts()
    for (arm, name), own in levels.items():
        if len(own) > 1 and len(own) == sizes[arm] and len({level.steps for level in own}) == 1:
            where = {"run": f"{arm}, mean of {len(own)} seeds", "arm": arm, "curve": name}
            rows.append(
                where | _peak(pooled(own), margin, any(unpaired[run] for run in runs.loc[runs["arm"] == arm, "run"]))
            )
    return pd.DataFrame(rows, columns=TARGET_COLUMNS).astype(dict.fromkeys(_TARGET_NUMBERS, "float64"))


def _peak(level: Level, margin: float, unpaired: bool) -> dict[str, Any]:
    found = target_verdict(level, margin=margin, seed=SEED)
    row: dict[str, Any] = {"verdict": found.word, "reason": marked(found.reason, unpaired=unpaired)}
    row |= {"fallen": found.fallen}
    row |= {"highest": float(level.value.max()), "peak": found.peak, "peak_low": found.low, "peak_high": found.high}
    return row | {f"late_{part}": getattr(found.late, part) for part in ("step", "change", "low", "high")}


def _accuracy_level(found: TaskScores | TaskAccuracies | None, last_step: int) -> tuple[Level | None, str]:
    reason = "no items are stored" if found is None else why_not(found, last_step)
    if found is None or reason is not None:
        return None, reason or ""
    level = level_of(task_curve(found), found.curve_steps[1:])
    # The level itself, not only its change: what a reader knows as accuracy.
    base = found.values[0] if isinstance(found, TaskAccuracies) else found.curve()[0][0].mean()
    return replace(level, value=level.value + float(base)), ""


def _reward_level(rewards: Sequence[Sequence[float]] | None) -> tuple[Level | None, str]:
    if rewards is None:
        return None, "the run stores no rewards"
    if not rewards or not all(rewards):
        return None, "this arm has no rollouts, hence no rewards"
    short = too_short(len(rewards))
    if short is not None:
        return None, short.replace("checkpoints, base included,", "iterations")
    if not any(np.ptp(row) for row in rewards):
        return None, "all members earned the same at every iteration"
    return reward_level(range(1, len(rewards) + 1), rewards), ""
