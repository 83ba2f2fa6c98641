"""Means and totals from a few observations, with Student's interval.

A total still to be drawn has the variance of the mean, scaled, and that of its own values: a prediction interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from driftlab.drift.stats import Array, t_quantile


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number from ``n`` observations; ``low`` and ``high``, its interval, are None where one value has no spread."""

    value: float
    low: float | None
    high: float | None
    n: int


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean of independent values with Student's interval. Raises ValueError without values or for one not finite."""
    found = checked(values)
    mean, n = float(found.mean()), found.size
    if n < 2:
        return Estimate(value=mean, low=None, high=None, n=n)
    half = t_quantile(n, level) * float(found.std(ddof=1)) / math.sqrt(n)
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n)


def total_interval(values: ArrayLike, count: int, level: float = 0.95) -> Estimate:
    """Sum of ``count`` values still to be drawn from the law of ``values``, with its prediction interval.

    The sum's error is that of ``count`` times the mean and that of the new values: with their standard deviation s over
    n values, ``count * mean ± t * s * sqrt(count^2 / n + count)``. Exact for independent normal values.

    Raises:
        ValueError: no values, one not finite, or a negative count.
    """
    found = checked(values)
    if count < 0:
        raise ValueError(f"a total needs a count of 0 or more, got {count}")
    total, n = count * float(found.mean()), found.size
    if n < 2:
        return Estimate(value=total, low=None, high=None, n=n)
    half = t_quantile(n, level) * float(found.std(ddof=1)) * math.sqrt(count**2 / n + count)
    return Estimate(value=total, low=total - half, high=total + half, n=n)


def ratio_interval(ratios: ArrayLike, level: float = 0.95) -> Estimate:
    """Geometric mean of positive ratios with Student's interval of their logarithms.

    The interval of the inverse ratios is the inverse of the interval. Raises ValueError for a ratio that is not above
    0, and as ``mean_interval``.
    """
    found = checked(ratios)
    if not (found > 0).all():
        raise ValueError(f"a ratio must be above 0, got {found.min():g}")
    logs = mean_interval(np.log(found), level)
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Estimate(value=math.exp(logs.value), low=ends[0], high=ends[1], n=logs.n)


def checked(values: ArrayLike) -> Array:
    """As an array of one dimension. Raises ValueError for none, or for one that is not finite."""
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0:
        raise ValueError(f"a list of at least one value is needed, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("a value is not finite")
    return found
