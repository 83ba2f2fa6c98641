"""From a few iterations to many: means, totals, and the iteration at which a line reaches a level.

Sources: Fieller 1954 (the set of points at which a fitted line may cross a level); the variance of a mean plus that of
what is still to be drawn (prediction interval of a sum). A fit that does not carry an answer gives a ``Refusal``, which
is a result, not an error.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from driftlab.drift.stats import Array, t_quantile

FEWEST = 4
"""Iterations of a fit: a bend and its error need four."""
POWER = 0.8
"""Chance at which a longer pilot is said to help."""
LONGEST = 10_000
"""Iterations beyond which no pilot is advised."""
# A straight line in floating point leaves residuals of this share of its range.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A number from ``n`` observations; ``low`` and ``high``, its interval, are None where one value has no spread."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Projection:
    """Where a straight line through rewards reaches a score.

    Attributes:
        step: iteration, counted from 1 and not rounded, at which the line crosses.
        low, high: ends of Fieller's interval.
        slope, slope_low, slope_high: reward per iteration, with its interval.
        scatter: standard deviation of the rewards around the line.
        n: iterations fitted.
    """

    step: float
    low: float
    high: float
    slope: float
    slope_low: float
    slope_high: float
    scatter: float
    n: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the fit does not carry the answer, and what would help."""

    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Line:
    """Least squares over iterations 1 to n: ``middle + slope * (t - (n + 1) / 2)``; the errors have n - 2 freedom."""

    n: int
    middle: float
    slope: float
    scatter: float
    rewards: Array
    residuals: Array

    @property
    def squares(self) -> float:
        """Sum of the squared distances of 1 to n from their mean, n(n^2 - 1)/12."""
        return self.n * (self.n**2 - 1) / 12

    def at(self, t: float) -> float:
        return self.middle + self.slope * (t - (self.n + 1) / 2)


def mean_interval(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean of independent values with Student's interval. Raises ValueError without values or for one not finite."""
    found = _checked(values)
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
    found = _checked(values)
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
    found = _checked(ratios)
    if not (found > 0).all():
        raise ValueError(f"a ratio must be above 0, got {found.min():g}")
    logs = mean_interval(np.log(found), level)
    ends = [None if end is None else math.exp(end) for end in (logs.low, logs.high)]
    return Estimate(value=math.exp(logs.value), low=ends[0], high=ends[1], n=logs.n)


def step_to_reach(rewards: Sequence[float], score: float, level: float = 0.95) -> Projection | Refusal:
    """The iteration at which the mean reward reaches ``score``, by a straight line through iterations 1 to n.

    The line is ``m + b u`` at ``u = t - (n+1)/2``, with ``S = sum u^2`` and n - 2 degrees of freedom. If t is where the
    true line crosses, ``m + b u - score`` is normal around 0 with variance ``s^2 (1/n + u^2/S)``; the t not rejected
    are ``(m + b u - score)^2 <= q^2 s^2 (1/n + u^2/S)``, a quadratic inequality in u. With ``d = score - m`` and ``g =
    q^2 s^2 / (b^2 S)`` below 1, which says that the slope's interval excludes 0, its solution is the interval

        u = (d/b ± (q s/|b|) sqrt((1 - g)/n + (d/b)^2 / S)) / (1 - g)

    and covers t with exactly ``level`` for independent normal errors of one size around a straight line. Since a slope
    that is not told from 0 gives no answer, what holds in general is that an interval is given and misses in at most
    ``1 - level`` of all pilots; among the answers of pilots too short for their slope the share is larger.
    Rewards of one run follow one path on one batch, so their errors are correlated; where positively, the interval is
    too narrow: at a correlation of 0.5 between neighbours, simulated, 95 % become 85 % of 5 iterations and 74 % of 20.

    Refused: fewer than ``FEWEST`` iterations; a score that the line starts above; a bend (quadratic term whose interval
    at ``level`` excludes 0); a slope whose interval holds 0, or that falls; a score further above the line's end than
    the line rose in the pilot. The last because a bend too small to be seen grows with the square of the distance: one
    pilot length beyond the end it counts 13 times what it does at the pilot's own ends, two lengths beyond 37 times.

    Raises:
        ValueError: a reward or the score is not finite.
    """
    if not math.isfinite(score):
        raise ValueError(f"the score must be a number, got {score}")
    if len(rewards) < FEWEST:
        return Refusal(f"{len(rewards)} iterations are too few for a fit: at least {FEWEST} are needed")
    line = _fit(_checked(rewards))
    half = t_quantile(line.n - 1, level) * line.scatter / math.sqrt(line.squares)
    unfit = _unfit(line, score, half, level)
    if unfit is not None:
        return unfit
    gap = (score - line.middle) / line.slope
    g = (half / line.slope) ** 2
    root = half / line.slope * math.sqrt(line.squares) * math.sqrt((1 - g) / line.n + gap**2 / line.squares)
    centre = (line.n + 1) / 2
    return Projection(
        step=centre + gap,
        low=centre + (gap - root) / (1 - g),
        high=centre + (gap + root) / (1 - g),
        slope=line.slope,
        slope_low=line.slope - half,
        slope_high=line.slope + half,
        scatter=line.scatter,
        n=line.n,
    )


def _unfit(line: _Line, score: float, half: float, level: float) -> Refusal | None:
    """The first of the rules of ``step_to_reach`` that the fit breaks; ``half`` is the slope's half width."""
    start, end, n = line.at(1), line.at(line.n), line.n
    if score <= start:
        return Refusal(f"the line begins at {start:.4g}, at or above {score:g}: there is nothing to wait for")
    bend = _bend(line, level)
    if bend is not None:
        seen = np.flatnonzero(line.rewards >= score)
        helps = (
            f"iteration {seen[0] + 1} of the pilot itself was the first to earn it"
            if seen.size
            else "a pilot long enough to see the score itself would do"
        )
        return Refusal(
            f"the rewards bend {'up' if bend > 0 else 'down'} beyond error within the {n} iterations, so no straight "
            f"line leads on; {helps}"
        )
    interval = f"{line.slope:.3g} per iteration [{line.slope - half:.3g}, {line.slope + half:.3g}]"
    if line.slope <= 0:
        later = "; whether it does later only a longer pilot shows" if line.slope + half >= 0 else ""
        return Refusal(f"the reward does not rise over {n} iterations: slope {interval}{later}")
    if line.slope <= half:
        return Refusal(f"the slope's {100 * level:g} % interval holds 0: {interval}; {_longer(line, level)}")
    if score > end + (end - start):
        step = (n + 1) / 2 + (score - line.middle) / line.slope
        return Refusal(
            f"{score:g} lies further above the line's end ({end:.4g}) than the line rose in the pilot "
            f"({end - start:.3g}), where a bend too small to be seen would count 13 times as much and more; "
            f"{_advised(math.ceil((step + 1) / 2), 'if the line goes on')}"
        )
    return None


def _fit(rewards: Array) -> _Line:
    n = rewards.size
    u = np.arange(n) - (n - 1) / 2
    middle, slope = float(rewards.mean()), float(u @ rewards / (u @ u))
    residuals = rewards - middle - slope * u
    return _Line(
        n=n,
        middle=middle,
        slope=slope,
        scatter=math.sqrt(float(residuals @ residuals) / (n - 2)),
        rewards=rewards,
        residuals=residuals,
    )


def _bend(line: _Line, level: float) -> float | None:
    """Coefficient of the square of the centred iteration; None where its interval holds 0."""
    u = np.arange(line.n) - (line.n - 1) / 2
    # Orthogonal to the line, so that it is fitted to what the line leaves.
    square = u**2 - (u @ u) / line.n
    bend = float(square @ line.residuals / (square @ square))
    left = line.residuals - bend * square
    error = math.sqrt(float(left @ left) / (line.n - 3) / float(square @ square))
    size = abs(line.middle) + abs(line.slope) * line.n
    if abs(bend) * np.ptp(square) <= _ROUNDING * size:
        return None
    return bend if abs(bend) > t_quantile(line.n - 2, level) * error else None


def _longer(line: _Line, level: float) -> str:
    """Iterations at which a slope of this size, in this scatter, is told from 0 with a chance of ``POWER``."""

    def told(n: int) -> bool:
        quantile = t_quantile(n - 1, level) + float(stats.norm.ppf(POWER))
        return quantile * line.scatter / math.sqrt(n * (n**2 - 1) / 12) < line.slope

    lengths = range(line.n + 1, LONGEST + 1)
    found = line.n + 1 + bisect.bisect_left(lengths, True, key=told)
    return _advised(found, "if slope and scatter stay what they are")


def _advised(iterations: int, condition: str) -> str:
    if iterations > LONGEST:
        return f"{condition}, no pilot of up to {LONGEST:,} iterations would do"
    return f"{condition}, a pilot of about {iterations} iterations would do"


def _checked(values: ArrayLike) -> Array:
    found = np.asarray(values, dtype=np.float64)
    if found.ndim != 1 or found.size == 0:
        raise ValueError(f"a list of at least one value is needed, got shape {found.shape}")
    if not np.isfinite(found).all():
        raise ValueError("a value is not finite")
    return found
