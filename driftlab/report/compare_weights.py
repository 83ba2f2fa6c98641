"""Weights and output distribution at a match: norms and KL of every arm, and their ratios between arms."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.paired import over_seeds
from driftlab.drift.ratios import geometric_ratio
from driftlab.drift.stats import Interval, t_quantile
from driftlab.report.arms import Place
from driftlab.report.compare_changes import Pairs
from driftlab.report.formats import NOT_MEASURED
from driftlab.report.frames import Frames
from driftlab.report.matching import Match
from driftlab.report.pairing import each
from driftlab.report.verdicts import AVERAGE

_NUMBERS = ["value", "low", "high", "least", "most", "seeds", "n"]
NORM_COLUMNS = ["arm", *_NUMBERS, "note"]
KL_COLUMNS = ["arm", "group", *_NUMBERS, "note"]
RATIO_COLUMNS = ["arm", "against", "quantity", "value", "low", "high", "pairs", "note"]
NORM, KL_TARGET, KL_PRIORS = "update norm", "KL on the target's texts", "KL on the prior tasks' texts"
"""Quantities of the ratios; the last is the geometric mean over the prior tasks."""


@dataclass(frozen=True, slots=True)
class _Kl:
    """KL of one run at one step on one text set, or its mean over several: nats per token, over n texts each."""

    value: float
    stderr: float
    n: int


def norm_table_of(match: Match, frames: Frames, arms: Sequence[str]) -> pd.DataFrame:
    """Per arm: mean update norm at the match with its t interval over seeds, and the range."""
    norms = _norms(frames)
    rows = []
    for arm in arms:
        places = list(match.places(arm).values())
        found = [norms[place] for place in places if place in norms]
        row: dict[str, Any] = {"arm": arm, "note": "" if found else NOT_MEASURED if places else "no matched step"}
        if found and len(found) == len(places):
            row |= _over_seeds(found, None)
        elif found:
            row["note"] = f"measured in {len(found)} of {len(places)} runs only"
        rows.append(row)
    return pd.DataFrame(rows, columns=NORM_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64"))


def kl_table_of(match: Match, frames: Frames, arms: Sequence[str]) -> pd.DataFrame:
    """Per arm and text set: mean KL at the match, and the unweighted mean over the prior tasks' texts (``AVERAGE``).

    The interval is over seeds and no narrower than that over texts. Seeds share their texts, and how their errors go
    together is not stored, so the error over texts of a mean over seeds is taken as the mean of the runs' errors, the
    most it can be. An interval that would reach below 0 is cut there.
    """
    stored = _kl(frames)
    groups = text_sets(frames)
    priors = [group for group in groups if group != frames.target]
    rows = []
    for arm in arms:
        places = list(match.places(arm).values())
        for group in (*groups, *([AVERAGE] if len(priors) > 1 else [])):
            members = priors if group == AVERAGE else [group]
            found = [_mean([stored.get((*place, one)) for one in members]) for place in places]
            known = [one for one in found if one is not None]
            row: dict[str, Any] = {"arm": arm, "group": group, "note": ""}
            if not places:
                row["note"] = "no matched step"
            elif len(known) < len(places):
                row["note"] = NOT_MEASURED
            else:
                row |= _over_seeds([one.value for one in known], _half(known)) | {"n": known[0].n}
                # No divergence is below 0, whatever a t interval says.
                row |= {"low": max(row["low"], 0.0)} if "low" in row else {}
            rows.append(row)
    return pd.DataFrame(rows, columns=KL_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64"))


def text_sets(frames: Frames) -> list[str]:
    """The KL probe's text sets, the target's first, then as the prior tasks are listed."""
    measured = dict.fromkeys(frames.rows("kl_base_to_step", probe="kl", ok=False)["group"])
    listed = [task for task in (frames.target, *frames.priors) if task in measured]
    return [*listed, *(group for group in measured if group not in listed)]


def ratio_table(frames: Frames, pairs: Pairs) -> pd.DataFrame:
    """Per pair of arms: ratio of norms, of KL on the target's texts, and its geometric mean over the prior tasks'.

    Over several pairs of runs the pair is the unit. The errors of two KL over texts are taken as independent; they are
    measured on the same texts, which mostly makes the error of their ratio smaller. That error is of first order in
    the errors of the two.
    """
    norms, kl = _norms(frames), _kl(frames)
    groups = text_sets(frames)
    members = {
        KL_TARGET: [group for group in groups if group == frames.target],
        KL_PRIORS: [group for group in groups if group != frames.target],
    }
    rows = []
    for (arm, against), places in pairs.items():
        found = {NORM: _norm_ratio(norms, places)}
        found |= {name: _kl_ratio(kl, places, own) for name, own in members.items()}
        rows += [{"arm": arm, "against": against, "quantity": name} | row for name, row in found.items()]
    numbers = dict.fromkeys(["value", "low", "high", "pairs"], "float64")
    return pd.DataFrame(rows, columns=RATIO_COLUMNS).astype(numbers)


def _norm_ratio(norms: Mapping[Place, float], places: Sequence[tuple[Place, Place]]) -> dict[str, Any]:
    known = [(norms.get(own, math.nan), norms.get(other, math.nan)) for own, other in places]
    if not known or not all(own > 0 and other > 0 for own, other in known):
        return {"note": "not measured in both, or 0" if known else "no pair of runs at the match"}
    found = geometric_ratio([math.log(own / other) for own, other in known], 0.0)
    return {"value": found.value, "low": found.low, "high": found.high, "pairs": found.n, "note": ""}


def _kl_ratio(
    kl: Mapping[tuple[str, int, str], _Kl], places: Sequence[tuple[Place, Place]], groups: Sequence[str]
) -> dict[str, Any]:
    logs, halves = [], []
    for own, other in places:
        cells = [(kl.get((*own, group)), kl.get((*other, group))) for group in groups]
        known = [(a, b) for a, b in cells if a is not None and b is not None and a.value > 0 and b.value > 0]
        if not known or len(known) < len(groups):
            return {"note": "not measured in both, or 0"}
        logs.append(float(np.mean([math.log(a.value / b.value) for a, b in known])))
        variance = sum((one.stderr / one.value) ** 2 for pair in known for one in pair) / len(known) ** 2
        halves.append(t_quantile(min(one.n for pair in known for one in pair)) * math.sqrt(variance))
    if not logs:
        return {"note": "no pair of runs at the match"}
    half = float(np.mean(halves))
    found = geometric_ratio(logs, half if math.isfinite(half) else None)
    return {"value": found.value, "low": found.low, "high": found.high, "pairs": found.n, "note": ""}


def _norms(frames: Frames) -> dict[Place, float]:
    rows = frames.rows("update_norm", probe="weights")
    return {(row.run, row.step): row.value for row in each(rows[rows["group"] == "all"])}


def _kl(frames: Frames) -> dict[tuple[str, int, str], _Kl]:
    rows = frames.rows("kl_base_to_step", probe="kl")
    return {(row.run, row.step, row.group): _Kl(row.value, row.stderr, row.n) for row in each(rows)}


def _mean(parts: Sequence[_Kl | None]) -> _Kl | None:
    """Unweighted mean over text sets, which are independent of each other; None where one is missing."""
    known = [one for one in parts if one is not None]
    if not known or len(known) < len(parts):
        return None
    stderr = math.sqrt(sum(one.stderr**2 for one in known)) / len(known)
    return _Kl(float(np.mean([one.value for one in known])), stderr, min(one.n for one in known))


def _half(runs: Sequence[_Kl]) -> float:
    """Half width of the interval over texts of the mean over runs; NaN where an error is unknown."""
    return float(np.mean([t_quantile(one.n) * one.stderr for one in runs]))


def _over_seeds(values: Sequence[float], half: float | None) -> dict[str, Any]:
    """Mean, interval, range and count; ``half`` None for a number without an error of its own."""
    mean = float(np.mean(values))
    row: dict[str, Any] = {"value": mean, "least": min(values), "most": max(values), "seeds": len(values)}
    if half is not None and not math.isfinite(half):
        return row
    if len(values) == 1:
        return row if half is None else row | {"low": mean - half, "high": mean + half}
    found = over_seeds(values, None if half is None else Interval(mean - half, mean + half))
    return row | {"low": found.low, "high": found.high}
