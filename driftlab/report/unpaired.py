"""Runs of other code that say how many items were right but not which: changes with unpaired binomial errors.

Each accuracy has the error of a proportion, independent of every other one given what the model can do; the base is
measured once, so its error is shared by all changes of a run. Where the same items were asked at every step, as they
usually were, paired errors would be smaller: these intervals are too wide rather than too narrow. Such a run says so
itself, task by task, in ``tasks`` of its ``run.json``: ``{"paired": false, "profile": ..., ...}``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from driftlab.drift.bands import Curve
from driftlab.drift.curves import too_short
from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import HALF_COUNTS, Array, Interval
from driftlab.report.runs import RunData

NOTE = "unpaired: no items are stored, so each accuracy counts with the binomial error of its own"
"""Of every number that stands where a paired one is expected."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskAccuracies:
    """Accuracy of one task in one run, without its items.

    Attributes:
        steps: measured steps, ascending, shape [S].
        values: fractions, shape [S].
        counts: items behind each, shape [S].
        profile: how the task was asked, as in ``scores``.
    """

    steps: tuple[int, ...]
    values: Array
    counts: Array
    profile: str

    @property
    def curve_steps(self) -> tuple[int, ...]:
        return self.steps

    @property
    def variances(self) -> Array:
        """Of each accuracy, shape [S]; a quarter of a right and of a wrong item is added.

        So a change of an accuracy of 0 or 1 has the error of half a gained and half a lost item, as paired ones have.
        """
        spread = self.values * (1 - self.values) / np.maximum(self.counts - 1, 1)
        return np.asarray(spread + HALF_COUNTS / 2 / self.counts**2)

    def why_not(self, last_step: int) -> str | None:
        """Why there is no curve to judge; None when there is one."""
        if self.steps[0] != 0:
            return "the base was not measured"
        if self.steps[-1] != last_step:
            return f"the final step {last_step} was not measured"
        if self.counts.min() < 2:
            return "one item says nothing about the error"
        return too_short(len(self.steps))

    def curve(self) -> Curve:
        """Changes since the base; ``gained`` and ``lost`` are NaN, because nobody knows them."""
        change = self.values[1:] - self.values[0]
        return Curve(
            change=change,
            covariance=self.variances[0] + np.diag(self.variances[1:]),
            n=int(self.counts.min()),
            freedom=float(self.counts.min() - 1),
            gained=np.full(len(change), np.nan),
            lost=np.full(len(change), np.nan),
        )

    def difference(self, step: int) -> dict[str, Any]:
        """The columns of a difference table at a measured step; 95 % t interval, p-value of the t test."""
        at = self.steps.index(step)
        change = float(self.values[at] - self.values[0])
        error, n = float(np.sqrt(self.variances[0] + self.variances[at])), int(min(self.counts[0], self.counts[at]))
        row: dict[str, Any] = {"difference": change, "n": n, "n_clusters": n, "status": "ok", "note": NOTE}
        if n < 2:
            return row
        half = float(stats.t.ppf(0.975, n - 1)) * error
        p_value = 2 * float(stats.t.sf(abs(change) / error, n - 1))
        return row | {"stderr": error, "low": change - half, "high": change + half, "p_value": p_value}


_TEXTS = ("arm", "kind", "against", "alike", "task", "profile", "unit", "note")
Accuracies = Mapping[tuple[str, str], TaskAccuracies]
"""By (run, task)."""


def stated_unpaired(run: RunData) -> dict[str, Mapping[str, Any]]:
    """What a run says about the tasks it holds no items of."""
    stated = {task: said for task, said in run.manifest.tasks.items() if isinstance(said, Mapping)}
    return {task: said for task, said in stated.items() if not said.get("paired", True)}


def task_accuracies(pairs: Sequence[tuple[str, RunData]]) -> dict[tuple[str, str], TaskAccuracies]:
    """From the accuracy rows of runs that state them to be unpaired; ``pairs`` are (label, run)."""
    found = {}
    for label, run in pairs:
        for task, said in stated_unpaired(run).items():
            rows = {
                row.step: row
                for row in run.measurements
                if (row.probe, row.quantity, row.group, row.status) == ("lm_eval", "accuracy", task, "ok")
            }
            if rows:
                ordered = [rows[step] for step in sorted(rows)]
                found[label, task] = TaskAccuracies(
                    steps=tuple(row.step for row in ordered),
                    values=np.array([row.value for row in ordered], dtype=np.float64),
                    counts=np.array([row.n for row in ordered], dtype=np.float64),
                    profile=str(said["profile"]),
                )
    return found


def marked(reason: str, *, unpaired: bool) -> str:
    """The reason of a verdict, with a word before it where it does not rest on paired items."""
    return f"unpaired; {reason}" if unpaired else reason


@dataclass(frozen=True, slots=True, eq=False)
class _Arm:
    """One task, or the mean of several, in all runs of an arm, at the later steps that all of them share.

    Runs of one arm were asked the same items, whose error does not average out over seeds: the mean of the runs'
    variances is kept whole.

    Attributes:
        seeds: training seed of each run, shape [R].
        base: accuracy at the base, shape [R].
        changes: since then, shape [R, K].
        errors, base_error: variances of the mean accuracy, shape [K] and a number.
    """

    steps: tuple[int, ...]
    seeds: tuple[int, ...]
    base: Array
    changes: Array
    errors: Array
    base_error: float
    n: int
    freedom: float

    def at(self, step: int) -> tuple[Array, Array]:
        """Changes there, shape [R], and the variance of the accuracy there."""
        index = self.steps.index(step)
        return self.changes[:, index], self.errors[index]

    def only(self, seeds: Sequence[int]) -> _Arm:
        rows = [self.seeds.index(seed) for seed in seeds]
        base, changes = self.base[rows], self.changes[rows]
        return _Arm(self.steps, tuple(seeds), base, changes, self.errors, self.base_error, self.n, self.freedom)


def _arm(runs: Sequence[Any], task: str, accuracies: Accuracies) -> _Arm | None:
    """None where a run of the arm has items, no accuracies or no base for the task."""
    found = [accuracies.get((run.run, task)) for run in runs]
    known = [one for one in found if one is not None and one.steps[0] == 0 and one.counts.min() > 1]
    if len(known) < len(found):
        return None
    steps = tuple(step for step in known[0].steps[1:] if all(step in one.steps for one in known))
    places = [[one.steps.index(step) for step in steps] for one in known]
    chosen = list(zip(known, places, strict=True))
    fewest = int(min(one.counts.min() for one in known))
    return _Arm(
        steps=steps,
        seeds=tuple(run.seed for run in runs),
        base=np.array([one.values[0] for one in known]),
        changes=np.array([one.values[place] - one.values[0] for one, place in chosen]),
        errors=np.mean([one.variances[place] for one, place in chosen], axis=0),
        base_error=float(np.mean([one.variances[0] for one in known])),
        n=fewest,
        freedom=fewest - 1.0,
    )


def _mean(tasks: Sequence[_Arm | None]) -> _Arm | None:
    """Unweighted mean over independent tasks; None where one is missing. The fewest degrees of freedom are kept."""
    known = [task for task in tasks if task is not None]
    if not known or len(known) < len(tasks) or len({task.steps for task in known}) > 1:
        return None
    count = len(known)
    return _Arm(
        steps=known[0].steps,
        seeds=known[0].seeds,
        base=np.mean([task.base for task in known], axis=0),
        changes=np.mean([task.changes for task in known], axis=0),
        errors=np.sum([task.errors for task in known], axis=0) / count**2,
        base_error=sum(task.base_error for task in known) / count**2,
        n=sum(task.n for task in known),
        freedom=min(task.freedom for task in known),
    )


def _by_task(
    runs: Sequence[Any], accuracies: Accuracies, target: str, averaged: Sequence[str], profiles: Mapping[str, str]
) -> Iterator[tuple[str, str | None, _Arm | None]]:
    """Task (empty for an average), profile and values."""
    found = {task: _arm(runs, task, accuracies) for task in (target, *profiles)}
    for task, arm in found.items():
        yield task, profiles.get(task), arm
    for profile in dict.fromkeys(profiles[task] for task in averaged):
        yield "", profile, _mean([found[task] for task in averaged if profiles[task] == profile])


def _summary(values: Array, variance: float, freedom: float) -> dict[str, Any]:
    """Mean over seeds with its interval, which is no narrower than that over items; one seed has that one."""
    mean, half = float(np.mean(values)), float(stats.t.ppf(0.975, freedom) * np.sqrt(variance))
    if len(values) == 1:
        return {"mean": mean, "sd": None, "low": mean - half, "high": mean + half}
    found = over_seeds([float(value) for value in values], Interval(mean - half, mean + half))
    return {"mean": mean, "sd": found.sd, "low": found.low, "high": found.high}


def with_seeds(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    accuracies: Accuracies,
    target: str,
    averaged: Sequence[str],
    profiles: Mapping[str, str],
) -> pd.DataFrame:
    """``arms.seed_table`` with rows for the arms that have no items; without any it is ``table`` itself."""
    rows = []
    for arm, own in runs.groupby("arm", sort=False):
        members = list(own.itertuples(index=False))
        for task, profile, found in _by_task(members, accuracies, target, averaged, profiles):
            for step in () if found is None else found.steps:
                assert found is not None
                values, error = found.at(step)
                where = {"arm": arm, "task": task, "profile": profile, "step": step, "seeds": len(values)}
                rows.append(where | _summary(values, float(error) + found.base_error, found.freedom))
    return _like(table, [*table.to_dict("records"), *rows]) if rows else table


def _like(table: pd.DataFrame, rows: Sequence[Mapping[Any, Any]]) -> pd.DataFrame:
    """The rows with the columns of ``table``, numbers as numbers."""
    numbers = [name for name in table.columns if name not in _TEXTS]
    return pd.DataFrame(rows, columns=table.columns).astype(dict.fromkeys(numbers, "float64"))


def with_controls(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    accuracies: Accuracies,
    target: str,
    averaged: Sequence[str],
    profiles: Mapping[str, str],
) -> pd.DataFrame:
    """``arms.control_table`` with the comparisons filled in that lack items; without any it is ``table`` itself.

    Two arms with one base accuracy are taken to have measured the same base, which then cancels.
    """
    found = {
        arm: {(task, profile): one for task, profile, one in _by_task(list(own.itertuples(index=False)), *rest)}
        for arm, own in runs.groupby("arm", sort=False)
        for rest in [(accuracies, target, averaged, profiles)]
    }
    filled: list[dict[Any, Any]] = table.to_dict("records") if accuracies else []
    for row in filled:
        key = (row["task"], None if pd.isna(row["profile"]) else row["profile"])
        arm, other = found[row["arm"]].get(key), found[row["against"]].get(key)
        if pd.isna(row["difference"]) and arm is not None and other is not None:
            row |= _against(arm, other)
    return _like(table, filled) if filled else table


def _against(arm: _Arm, other: _Arm) -> dict[str, Any]:
    seeds = [seed for seed in arm.seeds if seed in other.seeds]
    steps = [step for step in arm.steps if step in other.steps]
    if not seeds or not steps:
        return {}
    arm, other, step = arm.only(seeds), other.only(seeds), steps[-1]
    (change, error), (walk, walk_error) = arm.at(step), other.at(step)
    variance = float(error + walk_error)
    if not np.array_equal(arm.base, other.base):
        variance += arm.base_error + other.base_error
    told = _summary(change - walk, variance, min(arm.freedom, other.freedom))
    row = {"step": step, "change": float(change.mean()), "walk": float(walk.mean()), "difference": told["mean"]}
    row |= {"low": told["low"], "high": told["high"], "note": NOTE}
    return row | {
        "n": min(arm.n, other.n) if len(seeds) == 1 else len(seeds),
        "unit": "items" if len(seeds) == 1 else "seeds",
    }
