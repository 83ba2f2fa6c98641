"""Accuracy at a match: what every arm changed since the base, and the difference of every pair of arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from driftlab.drift.paired import holm
from driftlab.report.arms import Place, Pooled, arm_change, mean_of, pair_differences
from driftlab.report.frames import Frames
from driftlab.report.matching import Match, Matched
from driftlab.report.scores import Scores, TaskScores
from driftlab.report.verdicts import AVERAGE, verdict_tables

_CHANGE_NUMBERS = ["change", "low", "high", "sd", "seeds", "n"]
CHANGE_COLUMNS = ["arm", "task", "profile", *_CHANGE_NUMBERS, "verdicts", "note"]
_PAIR_NUMBERS = ["change", "other", "difference", "low", "high", "seeds", "n", "p_value", "p_holm"]
PAIR_COLUMNS = ["arm", "against", "task", "profile", *_PAIR_NUMBERS, "note"]
Pairs = Mapping[tuple[str, str], Sequence[tuple[Place, Place]]]
"""By (arm, the other): the runs held against each other, each at its step."""


def seed_pairs(match: Match, arm: str, against: str) -> list[tuple[Place, Place]]:
    """Which runs of two arms are held against each other: those with one seed; in order of seeds where none is shared.

    Seeds that no run shares are independent draws, so any pairing of them is as good as another.
    """
    own, other = match.places(arm), match.places(against)
    shared = [seed for seed in own if seed in other]
    if shared:
        return [(own[seed], other[seed]) for seed in shared]
    return list(zip([own[seed] for seed in sorted(own)], [other[seed] for seed in sorted(other)], strict=False))


def missing_note(missing: Sequence[Matched]) -> str:
    """``seed 1: never reached within 60 steps, best 31.2 % at step 40``; empty where none is missing."""
    return "; ".join(f"seed {row.seed}: {row.note}" for row in missing)


def _until(found: TaskScores, step: int) -> TaskScores:
    """The steps up to and with ``step``."""
    kept = [place for place, one in enumerate(found.steps) if one <= step]
    return replace(
        found,
        steps=tuple(found.steps[place] for place in kept),
        correct=found.correct[kept],
        margin=found.margin[kept],
        parsed=found.parsed[kept],
    )


def _verdicts(match: Match, frames: Frames, scores: Scores) -> pd.DataFrame:
    """Verdicts on every matched run, on its curve up to the matched step."""
    steps = {row.run: row.step for row in match.rows if row.step is not None}
    runs = frames.runs[frames.runs["run"].isin(list(steps))]
    runs = runs.assign(last_step=runs["run"].map(steps))
    cut = {(run, task): _until(one, steps[run]) for (run, task), one in scores.items() if run in steps}
    cut = {key: one for key, one in cut.items() if one.steps}
    return verdict_tables(runs, cut, frames.priors, frames.averaged, frames.profiles, margin=frames.margin)[0]


def change_table(match: Match, frames: Frames, scores: Scores, arms: Sequence[str]) -> pd.DataFrame:
    verdicts = _verdicts(match, frames, scores)
    rows = []
    for arm in arms:
        places = list(match.places(arm).values())
        note = missing_note(match.missing(arm))
        for (task, profile), pooled in _pooled(places, frames, scores).items():
            own = verdicts[(verdicts["arm"] == arm) & (verdicts["task"] == task)]
            own = own[own["profile"] == profile] if task == AVERAGE else own
            row: dict[str, Any] = {"arm": arm, "task": task, "profile": profile, "note": note}
            row["verdicts"] = _counted(own["verdict"])
            if pooled is not None:
                told = pooled.summary()
                row |= {"change": told.pop("mean"), **told}
            elif places:
                row["note"] = "; ".join(filter(None, [note, "not measured at every matched step"]))
            rows.append(row)
    return pd.DataFrame(rows, columns=CHANGE_COLUMNS).astype(dict.fromkeys(_CHANGE_NUMBERS, "float64"))


def _pooled(places: Sequence[Place], frames: Frames, scores: Scores) -> dict[tuple[str, str | None], Pooled | None]:
    """By task and profile: the change since the base, averages over the prior tasks included."""
    found: dict[tuple[str, str | None], Pooled | None]
    found = {
        (task, frames.profiles.get(task)): arm_change(places, scores, task) for task in (frames.target, *frames.priors)
    }
    for profile in dict.fromkeys(frames.profiles[task] for task in frames.averaged):
        parts = [found[task, profile] for task in frames.averaged if frames.profiles[task] == profile]
        known = [part for part in parts if part is not None]
        if len(parts) > 1:
            found[AVERAGE, profile] = mean_of(known) if len(known) == len(parts) else None
    return found


def _counted(words: pd.Series) -> str:
    """``2 stable, 1 declined``; of one verdict the word alone."""
    if len(words) == 1:
        return str(words.iloc[0])
    return ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())


def pair_table(match: Match, frames: Frames, scores: Scores, pairs: Pairs) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for (arm, against), places in pairs.items():
        lacking = [f"{one}: {missing_note(match.missing(one))}" for one in (arm, against) if match.missing(one)]
        note = "; ".join(lacking)
        own = []
        for task, profile, found in pair_differences(places, scores, frames.target, frames.averaged, frames.profiles):
            row: dict[str, Any] = {"arm": arm, "against": against, "task": task, "profile": profile, "note": note}
            if found is None:
                why = "not measured at every matched step" if places else ""
                row["note"] = "; ".join(filter(None, [note, why]))
            else:
                change, other, difference = (one.summary() for one in found)
                row |= {"change": change["mean"], "other": other["mean"], "difference": difference["mean"]}
                row |= {name: difference[name] for name in ("low", "high", "seeds", "n")}
                row["p_value"] = found[2].p_value()
            own.append(row)
        _add_holm(own, frames.priors)
        rows += own
    return pd.DataFrame(rows, columns=PAIR_COLUMNS).astype(dict.fromkeys(_PAIR_NUMBERS, "float64"))


def _add_holm(rows: Sequence[dict[str, Any]], priors: Sequence[str]) -> None:
    """Holm's correction over the prior tasks of one pair."""
    known = [row for row in rows if row["task"] in priors and pd.notna(row.get("p_value"))]
    for row, adjusted in zip(known, holm([row["p_value"] for row in known]), strict=True):
        row["p_holm"] = adjusted
