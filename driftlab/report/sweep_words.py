"""What a search for lambda says: its rule, set beforehand, and the band that it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from driftlab.report.formats import interval, points
from driftlab.report.sweeps import SweepFrames, shown_value

LAMBDA = "anchor.lambda"
ACCEPTED, REJECTED, UNKNOWN = "accepted", "rejected", "cannot be judged"
RULE = (
    "Rule, set before the search: a lambda is rejected when the 95 % interval of the target's final accuracy with the "
    "anchor minus without it lies wholly below 0, and accepted when it does not; lambdas are tried from above, and the "
    "first one accepted ends the search. The difference is paired by item within each seed; over several seeds the "
    "seed is the unit and the interval is no narrower than the one over items. Accepted does not mean equal: the "
    "interval's lower end is the loss that these seeds and items leave possible, and more of them make the rule "
    "stricter. Nothing is corrected for the number of lambdas tried."
)


def verdict(row: Any) -> str:
    """What ``RULE`` says of a row of ``SweepFrames.cells``; without an interval nothing can be said."""
    if pd.isna(row["target_against_high"]):
        return UNKNOWN
    return REJECTED if row["target_against_high"] < 0 else ACCEPTED


def verdicts(frames: SweepFrames) -> dict[str, str]:
    """By anchored cell its ``verdict``."""
    return {row["cell"]: verdict(row) for row in frames.cells.to_dict("records") if row["anchored"]}


def search_sentences(frames: SweepFrames) -> list[str]:
    """The rule, and the band that it leaves: largest lambda accepted, smallest rejected."""
    tried = [row for row in frames.cells.to_dict("records") if row["anchored"]]
    accepted = [row for row in tried if verdict(row) == ACCEPTED]
    rejected = [row for row in tried if verdict(row) == REJECTED]
    unknown = [row for row in tried if verdict(row) == UNKNOWN]
    said = [RULE]
    if accepted:
        best = accepted[0]
        loss = (
            f"a loss of up to {points(-best['target_against_low'], sign=False)} points is not excluded"
            if best["target_against_low"] < 0
            else "the interval excludes a loss"
        )
        said.append(f"Largest lambda accepted: {_told(best)}: {loss}.")
    else:
        said.append(
            f"None of the {len(tried)} lambdas tried was accepted: go on below {shown_value(tried[-1][LAMBDA])}."
        )
    if rejected:
        said.append(f"Smallest lambda rejected: {_told(rejected[-1])}.")
    elif accepted:
        said.append("No lambda was rejected, so the band is open above: start from a larger one to close it.")
    if unknown:
        named = ", ".join(shown_value(row[LAMBDA]) for row in unknown)
        said.append(f"Not judged, because the target's difference or its interval is missing: lambda {named}.")
    if frames.cells["seeds"].eq(1).all():
        said.append("One seed: the intervals are over items only, and another seed can move the numbers further.")
    return said


def _told(row: Mapping[Any, Any]) -> str:
    ends = interval(row["target_against"], row["target_against_low"], row["target_against_high"])
    return f"{shown_value(row[LAMBDA])}, target against no anchor {ends} points"
