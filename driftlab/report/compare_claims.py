"""What was published about ES beside GRPO, held against the intervals of a comparison.

A claim says that a number lies in a region. It holds where the whole interval lies in the region, does not hold where
no part of it does, and cannot be said otherwise, or where there is no interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from driftlab.report.compare import AtMatch, Comparison
from driftlab.report.compare_changes import missing_note
from driftlab.report.compare_tables import ends, matched_at, name_of, prior_keys, profile_of, ratio_text
from driftlab.report.compare_weights import KL_PRIORS, KL_TARGET, NORM
from driftlab.report.formats import Table
from driftlab.report.pairing import each

HOLDS, FAILS, UNKNOWN = "holds", "does not hold", "cannot be said"
NORM_RATIOS = (87.0, 107.0)
"""Smallest and largest of LIT-235's Table 3; LIT-238's Fig. 6 gives 90."""
_UNMEASURED = "not measured in both"


@dataclass(frozen=True, kw_only=True, slots=True)
class Number:
    """A number of ES beside GRPO with its interval and how it reads; ``value`` None where there is none."""

    value: float | None
    low: float | None
    high: float | None
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One claim, judged for one ES and one GRPO arm."""

    claim: str
    source: str
    es: str
    grpo: str
    number: Number
    region: tuple[float, float]
    word: str
    reason: str = ""


def judge(number: Number, region: tuple[float, float]) -> str:
    """The word for an interval and the region that a claim names."""
    if number.value is None or number.low is None or number.high is None:
        return UNKNOWN
    low, high = region
    if low <= number.low and number.high <= high:
        return HOLDS
    return FAILS if number.high < low or number.low > high else UNKNOWN


def claims(c: Comparison) -> list[Claim]:
    """Every claim for every unanchored ES arm (where there is none, every ES arm) beside every GRPO arm."""
    trained = set(c.frames.runs.loc[c.frames.runs["control"] == "none", "arm"])
    es = [arm for arm in c.arms if c.trainers[arm] == "es" and arm in trained]
    plain = [arm for arm in es if arm in c.plain] or es
    grpo = [arm for arm in c.arms if c.trainers[arm] == "grpo"]
    return [claim for one in plain for other in grpo for claim in _of_pair(c, one, other)]


def _of_pair(c: Comparison, es: str, grpo: str) -> list[Claim]:
    at, margin = c.chosen, (-c.frames.margin, c.frames.margin)
    within = f"within ±{100 * c.frames.margin:g} points"
    low, high = NORM_RATIOS
    above, below = (math.nextafter(1.0, 2.0), math.inf), (0.0, math.nextafter(1.0, 0.0))
    norm, target, priors = (_ratio(at, es, grpo, name) for name in (NORM, KL_TARGET, KL_PRIORS))
    accuracy = _difference(at, es, grpo, c.frames.target, None)
    known = [
        ("ES moves the weights further", "LIT-235 Table 3, LIT-238 Fig. 6", norm, above),
        (
            f"ES moves them about 90 times as far ({low:g} to {high:g})",
            "LIT-235 Table 3, LIT-238 Fig. 6",
            norm,
            NORM_RATIOS,
        ),
        ("off the target ES moves the output further (KL)", "LIT-235 Fig. 2, LIT-238 Fig. 7", priors, above),
        ("on the target GRPO moves the output further (KL)", "LIT-238 Fig. 7", target, below),
    ]
    found = [_claim(c, es, grpo, *one) for one in known]
    found.insert(0, _claim(c, es, grpo, f"both reach the same target accuracy, {within}", "LIT-235", accuracy, margin))
    for task, profile in prior_keys(c.frames):
        kept = _difference(at, es, grpo, task, profile)
        said = f"no difference in what is lost ({name_of(c.frames, task, profile)}), {within}"
        found.append(_claim(c, es, grpo, said, "LIT-238 Fig. 4", kept, margin))
    return found


def _claim(
    c: Comparison, es: str, grpo: str, claim: str, source: str, number: Number, region: tuple[float, float]
) -> Claim:
    word, reason = judge(number, region), ""
    if c.chosen.match.kind == "target" and claim.startswith("both reach"):
        word, reason = UNKNOWN, "the runs were matched on it"
    elif "(KL)" in claim and not c.same_texts:
        word, reason = UNKNOWN, "KL was measured on texts drawn differently"
    elif number.low is None:
        reason = "no interval"
    elif word == UNKNOWN:
        reason = "the interval reaches over both"
    lacking = [
        f"{arm}, {missing_note(c.chosen.match.missing(arm))}" for arm in (es, grpo) if c.chosen.match.missing(arm)
    ]
    reason = "; ".join(filter(None, [reason, *lacking]))
    return Claim(claim=claim, source=source, es=es, grpo=grpo, number=number, region=region, word=word, reason=reason)


def _ratio(at: AtMatch, es: str, grpo: str, quantity: str) -> Number:
    """ES over GRPO, whichever way round the pair is stored."""
    own = at.ratios[at.ratios["quantity"] == quantity]
    for row in each(own):
        if {row.arm, row.against} == {es, grpo} and pd.notna(row.value):
            found: Mapping[str, Any] = row._asdict() if row.arm == es else _inverted(row)
            text = f"{quantity}, ES / GRPO: {ratio_text(found)}"
            return Number(value=found["value"], low=_known(found["low"]), high=_known(found["high"]), text=text)
    return Number(value=None, low=None, high=None, text=f"{quantity}: {_UNMEASURED}")


def _inverted(row: Any) -> dict[str, Any]:
    return {**row._asdict(), "value": 1 / row.value, "low": 1 / row.high, "high": 1 / row.low}


def _difference(at: AtMatch, es: str, grpo: str, task: str, profile: str | None) -> Number:
    """ES minus GRPO, a fraction."""
    for row in each(at.pairs[at.pairs["task"] == task]):
        if {row.arm, row.against} == {es, grpo} and profile_of(row) == profile and pd.notna(row.difference):
            value, low, high = row.difference, _known(row.low), _known(row.high)
            if row.arm == grpo:
                value, low, high = -value, None if high is None else -high, None if low is None else -low
            text = (
                f"ES − GRPO: {ends(value, math.nan if low is None else low, math.nan if high is None else high)} points"
            )
            return Number(value=value, low=low, high=high, text=text)
    return Number(value=None, low=None, high=None, text=_UNMEASURED)


def _known(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def claim_table(c: Comparison) -> Table:
    """One row per claim and pair of an ES and a GRPO arm; none where one of the two is absent."""
    found = claims(c)
    columns = ("claim", "published in", "ES arm", "GRPO arm", "here", "says")
    rows = [
        (one.claim, one.source, one.es, one.grpo, one.number.text, one.word + (f": {one.reason}" if one.reason else ""))
        for one in found
    ]
    data = pd.DataFrame(
        [
            {"claim": one.claim, "source": one.source, "es": one.es, "grpo": one.grpo, "value": one.number.value}
            | {"low": one.number.low, "high": one.number.high, "region_low": one.region[0]}
            | {"region_high": one.region[1], "word": one.word, "reason": one.reason}
            for one in found
        ],
        columns=[
            "claim",
            "source",
            "es",
            "grpo",
            "value",
            "low",
            "high",
            "region_low",
            "region_high",
            "word",
            "reason",
        ],
    )
    return Table(
        name="claims",
        title=f"Published about ES beside GRPO, and what the runs say at {matched_at(c.chosen.match)}",
        columns=columns,
        rows=tuple(rows),
        data=data,
        source="A claim holds where the whole 95 % interval lies in what it says, does not hold where none of it does, "
        "and otherwise cannot be said. Ratios and differences are those of the tables of ratios and pairs, ES over or "
        "minus GRPO; each is one comparison, not corrected. ES arms are those without anchor, where there is one. "
        "Judged is whether a claim describes these runs, of this model, length and match; nothing is said here of the "
        "models that it was made about.",
    )
