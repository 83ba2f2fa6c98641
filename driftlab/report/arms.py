"""Arms: the mean over training seeds, and each arm beside the null control, which is a random walk and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import AverageDifference, PairedDifference, average_difference, paired_difference
from driftlab.report.pairing import each
from driftlab.report.scores import Scores, TaskScores
from driftlab.report.verdicts import AVERAGE

NULL_CONTROL = "shuffled-reward"
_SEED_NUMBERS = ["seeds", "mean", "sd", "low", "high"]
SEED_COLUMNS = ["arm", "task", "profile", "step", *_SEED_NUMBERS]
_CONTROL_NUMBERS = ["step", "change", "walk", "difference", "low", "high", "n"]
CONTROL_COLUMNS = ["arm", "control", "task", "profile", "unit", *_CONTROL_NUMBERS, "note"]


def seed_table(differences: pd.DataFrame, averages: pd.DataFrame) -> pd.DataFrame:
    """Per (arm, task, step): mean change since base over the arm's runs, the seed being the unit (fractions).

    A step counts when every run of the arm has the number. The average over prior tasks has the task ``AVERAGE``.
    """
    columns = ["run", "arm", "task", "profile", "step", "difference", "status"]
    both = pd.concat([differences[columns], averages.assign(task=AVERAGE)[columns]])
    sizes = both.groupby("arm")["run"].nunique().to_dict()
    rows = []
    for (arm, task, step), part in both.groupby(["arm", "task", "step"], sort=False):
        if len(part) == sizes[arm] and (part["status"] == "ok").all():
            found = over_seeds(part["difference"].tolist())
            numbers = {"seeds": found.n, "mean": found.mean, "sd": found.sd, "low": found.low, "high": found.high}
            rows.append({"arm": arm, "task": task, "profile": part["profile"].iloc[0], "step": step} | numbers)
    return pd.DataFrame(rows, columns=SEED_COLUMNS).astype(dict.fromkeys(_SEED_NUMBERS, "float64"))


@dataclass(frozen=True, slots=True)
class _Beside:
    """One run of an arm beside one of the null control, at their last common step."""

    step: int
    profile: str
    change: float
    walk: float
    difference: PairedDifference | AverageDifference


def control_table(runs: pd.DataFrame, scores: Scores, tasks: Sequence[str], averaged: Sequence[str]) -> pd.DataFrame:
    """Per (arm, task): final change of the arm, that of the shuffled-reward arm at the same step, and the difference.

    Items are the same in both, so the difference is paired. With two or more common seeds the seed is the unit (t over
    seeds of the paired means); with one the interval is over items and another seed could move it further.
    """
    rows: list[dict[str, Any]] = []
    walks = runs[runs["control"] == NULL_CONTROL]
    for control in walks["arm"].unique():
        null = {row.seed: row.run for row in each(walks[walks["arm"] == control])}
        for arm in runs.loc[runs["control"] == "none", "arm"].unique():
            own = {row.seed: row.run for row in each(runs[runs["arm"] == arm])}
            pairs = [(own[seed], null[seed]) for seed in own if seed in null]
            where = {"arm": arm, "control": control}
            found = {task: [_beside(scores.get((a, task)), scores.get((b, task))) for a, b in pairs] for task in tasks}
            rows += [where | {"task": task} | _summary(found[task]) for task in tasks]
            profiles = {task: one.profile for task in averaged for one in found[task] if one is not None}
            for profile in dict.fromkeys(profiles.values()):
                members = [found[task] for task in averaged if profiles.get(task) == profile]
                if len(members) > 1:
                    rows.append(
                        where | {"task": AVERAGE} | _summary([_mean(one) for one in zip(*members, strict=True)])
                    )
    return pd.DataFrame(rows, columns=CONTROL_COLUMNS).astype(dict.fromkeys(_CONTROL_NUMBERS, "float64"))


def _beside(arm: TaskScores | None, null: TaskScores | None) -> _Beside | None:
    if arm is None or null is None or 0 not in arm.steps:
        return None
    steps = [step for step in arm.steps if step in null.steps and step > 0]
    if not steps:
        return None
    step, place = steps[-1], {item: index for index, item in enumerate(null.items)}
    walked = null.correct[null.steps.index(step)]
    walk = np.array([walked[place[item]] if item in place else np.nan for item in arm.items])
    base, tuned = arm.correct[0], arm.correct[arm.steps.index(step)]
    usable = np.isfinite(base) & np.isfinite(tuned) & np.isfinite(walk)
    if not usable.any():
        return None
    base, tuned, walk = base[usable], tuned[usable], walk[usable]
    difference = paired_difference(walk, tuned, *arm.choose(usable))
    return _Beside(step, arm.profile, float((tuned - base).mean()), float((walk - base).mean()), difference)


def _mean(tasks: Sequence[_Beside | None]) -> _Beside | None:
    """Unweighted mean over the prior tasks of one profile; None where one is missing or stands at another step."""
    known = [one for one in tasks if one is not None]
    if len(known) < len(tasks) or len({one.step for one in known}) > 1:
        return None
    differences = [one.difference for one in known if isinstance(one.difference, PairedDifference)]
    change, walk = (float(np.mean([getattr(one, name) for one in known])) for name in ("change", "walk"))
    return _Beside(known[0].step, known[0].profile, change, walk, average_difference(differences))


def _summary(seeds: Sequence[_Beside | None]) -> dict[str, Any]:
    known = [one for one in seeds if one is not None]
    if not known or len(known) < len(seeds):
        reason = "not measured in both arms at a common step" if seeds else "the two arms share no training seed"
        return {"note": reason}
    row: dict[str, Any] = {"step": known[0].step, "profile": known[0].profile}
    row |= {name: float(np.mean([getattr(one, name) for one in known])) for name in ("change", "walk")}
    first = known[0].difference
    if len(known) == 1:
        return row | {
            "difference": first.difference,
            "low": first.low,
            "high": first.high,
            "n": first.n,
            "unit": "items",
        }
    found = over_seeds([one.difference.difference for one in known])
    return row | {"difference": found.mean, "low": found.low, "high": found.high, "n": found.n, "unit": "seeds"}
