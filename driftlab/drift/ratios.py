"""Ratios of positive numbers, such as two update norms: geometric means with intervals.

Intervals are made on the logarithm and turned back, so they lie above 0 and the ratio b/a has that of a/b inverted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import Interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval.

    Attributes:
        value: geometric mean over the pairs.
        low, high: None where no interval is known.
        n: pairs of runs behind it.
    """

    value: float
    low: float | None
    high: float | None
    n: int


def geometric_ratio(logs: Sequence[float], half: float | None) -> Ratio:
    """The ratio from one logarithm per pair of runs.

    Over several pairs the pair is the unit and the interval is the t interval of the mean logarithm, no narrower than
    ``half`` on either side; with one pair it is that.

    Args:
        logs: natural logarithms, one per pair.
        half: half width, on the logarithm, of the interval over what the pairs share (the texts of a KL); 0 where each
            value is exact (a norm) and only pairs can differ; None where it is unknown, and then so is the interval.

    Raises:
        ValueError: there is no pair.
    """
    found = over_seeds(logs) if not half else over_seeds(logs, _around(logs, half))
    low, high = found.low, found.high
    if half is None:
        low = high = None
    elif len(logs) == 1 and half > 0:
        low, high = logs[0] - half, logs[0] + half
    ends = [None if end is None else math.exp(end) for end in (low, high)]
    return Ratio(value=math.exp(found.mean), low=ends[0], high=ends[1], n=found.n)


def _around(logs: Sequence[float], half: float) -> Interval:
    mean = sum(logs) / len(logs) if len(logs) else 0.0
    return Interval(mean - half, mean + half)
