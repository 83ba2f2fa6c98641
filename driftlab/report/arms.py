"""Arms: the mean over training seeds, and each arm beside the null control, which is a random walk and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import (
    Array,
    AverageDifference,
    Interval,
    PairedDifference,
    average_difference,
    paired_difference,
)
from driftlab.report.pairing import each
from driftlab.report.scores import Scores, TaskScores
from driftlab.report.verdicts import AVERAGE

NULL_CONTROL = "shuffled-reward"
_SEED_NUMBERS = ["seeds", "mean", "sd", "low", "high"]
SEED_COLUMNS = ["arm", "task", "profile", "step", *_SEED_NUMBERS]
_CONTROL_NUMBERS = ["step", "change", "walk", "difference", "low", "high", "n"]
CONTROL_COLUMNS = ["arm", "kind", "against", "alike", "task", "profile", "unit", *_CONTROL_NUMBERS, "note"]

Difference = PairedDifference | AverageDifference
Place = tuple[str, int]
"""A run and a measured step of it."""


@dataclass(frozen=True, slots=True)
class Pooled:
    """One comparison in several seeds: the value of each, and the same over items with the seeds' scores averaged."""

    values: list[float]
    items: Difference

    def summary(self) -> dict[str, Any]:
        if len(self.values) == 1:
            one = self.items
            return {"mean": one.difference, "sd": None, "low": one.low, "high": one.high, "seeds": 1, "n": one.n}
        known = self.items.low is not None and self.items.high is not None
        # Without an interval over items, the one over seeds would claim to know what it cannot.
        ends = Interval(self.items.low, self.items.high) if known else None  # type: ignore[arg-type]
        found = over_seeds(self.values, ends)
        low, high = (found.low, found.high) if known else (None, None)
        return {"mean": found.mean, "sd": found.sd, "low": low, "high": high, "seeds": found.n, "n": found.n}

    def p_value(self) -> float:
        """Two-sided t test of the interval in ``summary``: the larger of those over items and over seeds.

        NaN for an average over tasks, and where no interval is known.
        """
        one = self.items
        if not isinstance(one, PairedDifference) or one.stderr is None:
            return float("nan")
        items = 2 * float(stats.t.sf(abs(one.difference) / one.stderr, one.n_clusters - 1))
        if len(self.values) == 1 or np.ptp(self.values) == 0:
            return items
        count = len(self.values)
        error = float(np.std(self.values, ddof=1)) / np.sqrt(count)
        return max(items, 2 * float(stats.t.sf(abs(np.mean(self.values)) / error, count - 1)))


def seed_table(
    runs: pd.DataFrame, scores: Scores, target: str, averaged: Sequence[str], profiles: Mapping[str, str]
) -> pd.DataFrame:
    """Per (arm, task, step): mean change since base over the arm's runs (fractions); with one run, that run's.

    A step counts when every run of the arm has the task there. Over several seeds the seed is the unit, and the
    interval is no narrower than that over items (``paired.over_seeds``). Averages over prior tasks have the task
    ``AVERAGE``.
    """
    rows = []
    for arm, own in runs.groupby("arm", sort=False):
        names = list(own["run"])
        found = {task: _arm_changes([scores.get((run, task)) for run in names]) for task in (target, *profiles)}
        for task, changes in found.items():
            where = {"arm": arm, "task": task, "profile": profiles.get(task)}
            rows += [where | {"step": step} | pooled.summary() for step, pooled in changes.items()]
        for profile in dict.fromkeys(profiles[task] for task in averaged):
            members = [found[task] for task in averaged if profiles[task] == profile]
            for step in members[0]:
                parts = [changes[step] for changes in members if step in changes]
                if len(parts) == len(members):
                    where = {"arm": arm, "task": AVERAGE, "profile": profile}
                    rows.append(where | {"step": step} | mean_of(parts).summary())
    return pd.DataFrame(rows, columns=SEED_COLUMNS).astype(dict.fromkeys(_SEED_NUMBERS, "float64"))


def _arm_changes(seeds: Sequence[TaskScores | None]) -> dict[int, Pooled]:
    known = [one for one in seeds if one is not None and one.steps[0] == 0]
    if len(known) < len(seeds):
        return {}
    steps = [step for step in known[0].steps if step > 0 and all(step in one.steps for one in known)]
    found = {step: _change([(one, step) for one in known]) for step in steps}
    return {step: pooled for step, pooled in found.items() if pooled is not None}


def _change(seeds: Sequence[tuple[TaskScores, int]]) -> Pooled | None:
    """Change since the base of runs, each at a step of its own."""
    first = seeds[0][0]
    return _pool([(one, one.aligned(first, 0), one.aligned(first, step)) for one, step in seeds])


def arm_change(places: Sequence[Place], scores: Scores, task: str) -> Pooled | None:
    """Change of one task since the base over the runs of an arm, each at its own step; None where one lacks it."""
    found = [(scores.get((run, task)), step) for run, step in places]
    known = [(one, step) for one, step in found if one is not None and one.steps[0] == 0 and step in one.steps]
    return _change(known) if known and len(known) == len(places) else None


def _pool(seeds: Sequence[tuple[TaskScores, Array, Array]]) -> Pooled | None:
    """Paired changes of (before, after), in every seed and with the seeds averaged, over the items that all have."""
    usable = np.all([np.isfinite(before) & np.isfinite(after) for _, before, after in seeds], axis=0)
    if not usable.any():
        return None
    clusters = seeds[0][0].choose(usable)
    values = [float((after[usable] - before[usable]).mean()) for _, before, after in seeds]
    base = np.mean([before[usable] for _, before, _ in seeds], axis=0)
    tuned = np.mean([after[usable] for _, _, after in seeds], axis=0)
    return Pooled(values, paired_difference(base, tuned, *clusters))


def mean_of(tasks: Sequence[Pooled]) -> Pooled:
    """Unweighted mean over tasks, seed by seed."""
    values = np.mean([task.values for task in tasks], axis=0)
    items = average_difference([task.items for task in tasks if isinstance(task.items, PairedDifference)])
    return Pooled([float(value) for value in values], items)


def control_table(
    runs: pd.DataFrame, scores: Scores, target: str, averaged: Sequence[str], profiles: Mapping[str, str]
) -> pd.DataFrame:
    """Per (arm, task): change of the arm, that of another arm at the same step, and the difference.

    The other arm (column ``against``) is a shuffled-reward arm (kind ``control``) or the first arm that trains (kind
    ``arm``).

    The step is the last one that all runs of both arms share. Items are the same in both, so the difference is paired.
    With two or more common seeds the seed is the unit; with one the interval is over items and another seed could move
    it further. An arm is compared with the control of its own settings (ES and anchor); only where there is none, with
    the others, and ``alike`` is False: a walk without the arm's anchor goes further.
    """
    rows: list[dict[str, Any]] = []
    walks = runs[runs["control"] == NULL_CONTROL]
    trained = runs[runs["control"] == "none"]
    for arm, own in trained.groupby("arm", sort=False):
        alike = walks[walks["settings"] == own["settings"].iloc[0]]
        for control, null in (alike if len(alike) else walks).groupby("arm", sort=False):
            where = {"arm": arm, "kind": "control", "against": control, "alike": len(alike) > 0}
            rows += [where | row for row in _compare(own, null, scores, target, averaged, profiles)]
    for arm, own in trained.groupby("arm", sort=False):
        first = trained["arm"].iloc[0]
        if arm != first:
            where = {"arm": arm, "kind": "arm", "against": first, "alike": True}
            other = trained[trained["arm"] == first]
            rows += [where | row for row in _compare(own, other, scores, target, averaged, profiles)]
    return pd.DataFrame(rows, columns=CONTROL_COLUMNS).astype(dict.fromkeys(_CONTROL_NUMBERS, "float64"))


def _compare(
    own: pd.DataFrame,
    null: pd.DataFrame,
    scores: Scores,
    target: str,
    averaged: Sequence[str],
    profiles: Mapping[str, str],
) -> list[dict[str, Any]]:
    mine, walk = ({row.seed: row.run for row in each(part)} for part in (own, null))
    pairs = [(mine[seed], walk[seed]) for seed in mine if seed in walk]
    measured = [
        {step for task in (target, *profiles) if (run, task) in scores for step in scores[run, task].steps}
        for pair in pairs
        for run in pair
    ]
    last = max(set.intersection(*measured), default=0) if measured else 0
    places = [((arm, last), (null, last)) for arm, null in pairs if last > 0]
    found = pair_differences(places, scores, target, averaged, profiles)
    why = "the two arms share no training seed" if not pairs else "not measured in both arms at a common step"
    return [{"task": task, "profile": profile} | _row(one, last, why) for task, profile, one in found]


def pair_differences(
    pairs: Sequence[tuple[Place, Place]],
    scores: Scores,
    target: str,
    averaged: Sequence[str],
    profiles: Mapping[str, str],
) -> list[tuple[str, str | None, tuple[Pooled, Pooled, Pooled] | None]]:
    """Per task, and average over the prior tasks of a profile: what ``_against`` says, with task and profile.

    An average over one task is left out.
    """
    tasks = [target, *profiles]
    found = {task: _against(pairs, scores, task) for task in tasks}
    rows: list[tuple[str, str | None, tuple[Pooled, Pooled, Pooled] | None]]
    rows = [(task, profiles.get(task), found[task]) for task in tasks]
    for profile in dict.fromkeys(profiles[task] for task in averaged):
        members = [found[task] for task in averaged if profiles[task] == profile]
        known = [one for one in members if one is not None]
        if len(members) > 1:
            whole = len(known) == len(members)
            rows.append((AVERAGE, profile, _means(known) if whole else None))
    return rows


def _means(tasks: Sequence[tuple[Pooled, Pooled, Pooled]]) -> tuple[Pooled, Pooled, Pooled]:
    change, other, difference = (mean_of(parts) for parts in zip(*tasks, strict=True))
    return change, other, difference


def _against(pairs: Sequence[tuple[Place, Place]], scores: Scores, task: str) -> tuple[Pooled, Pooled, Pooled] | None:
    """Change of the arm, change of the other, and arm minus other, each over the pairs; None where one is missing."""
    both = [((scores.get((a, task)), at), (scores.get((b, task)), there)) for (a, at), (b, there) in pairs]
    known = [
        (arm, at, other, there)
        for (arm, at), (other, there) in both
        if arm is not None and other is not None
        if arm.steps[0] == 0 == other.steps[0] and at in arm.steps and there in other.steps
    ]
    if not known or len(known) < len(pairs):
        return None
    first = known[0][0]
    seeds = [
        (arm, arm.aligned(first, 0), arm.aligned(first, at), other.aligned(first, there))
        for arm, at, other, there in known
    ]
    change = _pool([(arm, base, after) for arm, base, after, _ in seeds])
    walk = _pool([(arm, base, walked) for arm, base, _, walked in seeds])
    difference = _pool([(arm, walked, after) for arm, _, after, walked in seeds])
    return None if change is None or walk is None or difference is None else (change, walk, difference)


def _row(found: tuple[Pooled, ...] | None, step: int, why: str) -> dict[str, Any]:
    if found is None:
        return {"note": why}
    change, walk, difference = (one.summary() for one in found)
    return {
        "step": step,
        "change": change["mean"],
        "walk": walk["mean"],
        "difference": difference["mean"],
        "low": difference["low"],
        "high": difference["high"],
        "n": difference["n"],
        "unit": "items" if difference["seeds"] == 1 else "seeds",
    }
