"""Two solutions in weight space: the angle between them, lines through them, how their norms grew.

Displacements are theta - theta_0. Sums run in float64, slice by slice. Sources: LIT-235 (cosines, straight path,
directions, growth of the squared norm), LIT-237 (share of coordinates changed by at most tau).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from driftlab.drift.theory import CoordinateMoments

Array = NDArray[np.float64]
Weights = Mapping[str, NDArray[np.float32]]

_SLICE = 1 << 22  # elements widened to float64 at a time


@dataclass(slots=True)
class PairSums:
    """Sums over some parameters of the displacements of A and B.

    Attributes:
        n: parameters, the dimension d of the space that both lie in.
        dot: inner product of the two displacements.
        squared_a, squared_b: their squared norms.
        unchanged_a, unchanged_b: coordinates that are exactly those of the base.
        within_a, within_b: coordinates changed by at most tau.
    """

    n: int = 0
    dot: float = 0.0
    squared_a: float = 0.0
    squared_b: float = 0.0
    unchanged_a: int = 0
    unchanged_b: int = 0
    within_a: int = 0
    within_b: int = 0

    def add(self, other: PairSums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Alignment:
    """The angle between two displacements beside that of independent random directions.

    Attributes:
        cosine: None where a displacement is 0.
        angle: in degrees; None likewise.
        z: cosine times sqrt(d), standard normal for large d where one of the two is a random direction.
        random_sd: 1/sqrt(d), the exact standard deviation of a random direction's cosine, whose mean is 0.
        random_abs: exact mean of its absolute value; see ``expected_abs_cosine``.
    """

    cosine: float | None
    angle: float | None
    z: float | None
    random_sd: float
    random_abs: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Least-squares line with intercept; ``r_squared`` is None where all values are equal. ``n``: points."""

    slope: float
    intercept: float
    r_squared: float | None
    n: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkShare:
    """A measured squared norm beside the one that the random walk with the applied coefficients expects.

    Attributes:
        predicted: d E[x^2].
        predicted_sd: standard deviation of the squared norm under the walk, sqrt(d (E[x^4] - E[x^2]^2)).
        share: predicted over measured; above 1 where less was measured than the walk expects.
        share_stderr: ``predicted_sd`` carried over to the share, to first order.
        excess: measured minus predicted, with the error ``predicted_sd``.
    """

    predicted: float
    predicted_sd: float
    share: float
    share_stderr: float
    excess: float


def pair_sums(base: ArrayLike, a: ArrayLike, b: ArrayLike, tau: float) -> PairSums:
    """Sums over one tensor of A, B and their common base.

    Raises:
        ValueError: shapes differ.
    """
    start, first, second = (np.asarray(values) for values in (base, a, b))
    if not start.shape == first.shape == second.shape:
        raise ValueError(f"shapes differ: base {start.shape}, {first.shape} and {second.shape}")
    total = PairSums()
    flat = [values.reshape(-1) for values in (start, first, second)]
    for begin in range(0, start.size, _SLICE):
        zero, x, y = (values[begin : begin + _SLICE].astype(np.float64) for values in flat)
        x -= zero
        y -= zero
        total.add(
            PairSums(
                n=x.size,
                dot=float(x @ y),
                squared_a=float(x @ x),
                squared_b=float(y @ y),
                unchanged_a=int((x == 0.0).sum()),
                unchanged_b=int((y == 0.0).sum()),
                within_a=int((np.abs(x) <= tau).sum()),
                within_b=int((np.abs(y) <= tau).sum()),
            )
        )
    return total


def squared_distance(base: ArrayLike, weights: ArrayLike) -> float:
    """Squared norm of ``weights - base`` over one tensor."""
    return pair_sums(base, weights, weights, 0.0).squared_a


def expected_abs_cosine(d: int) -> float:
    """E|cos| between a fixed direction and a uniformly random one: Gamma(d/2) / (sqrt(pi) Gamma((d+1)/2)).

    sqrt(2 / (pi d)) to a relative 1/(4d). Raises ValueError for d < 1.
    """
    if d < 1:
        raise ValueError(f"d is {d}; a direction needs at least one dimension")
    # The ratio of the Gamma functions themselves: the difference of their logarithms loses digits as d grows.
    return 1.0 / (math.sqrt(math.pi) * float(special.poch(d / 2, 0.5)))


def alignment(sums: PairSums) -> Alignment:
    """Cosine and angle of the displacements behind ``sums``, which hold at least one parameter."""
    sd, expected = 1.0 / math.sqrt(sums.n), expected_abs_cosine(sums.n)
    scale = math.sqrt(sums.squared_a) * math.sqrt(sums.squared_b)
    if scale == 0.0:
        return Alignment(cosine=None, angle=None, z=None, random_sd=sd, random_abs=expected)
    cosine = sums.dot / scale
    # Rounding can leave a cosine 1e-16 outside what an angle has.
    angle = math.degrees(math.acos(max(-1.0, min(1.0, cosine))))
    return Alignment(cosine=cosine, angle=angle, z=cosine / sd, random_sd=sd, random_abs=expected)


def straight(a: Weights, b: Weights, s: float) -> dict[str, NDArray[np.float32]]:
    """(1 - s) A + s B, summed in float64 and rounded once; A itself at 0 and B itself at 1, beyond them a longer line.

    With A the base and s = r / ||B - A|| it is the point at distance r from the base towards B.
    """
    return {
        name: ((1.0 - s) * start.astype(np.float64) + s * b[name].astype(np.float64)).astype(np.float32)
        for name, start in a.items()
    }


def shifted(base: Weights, direction: Weights, factor: float) -> dict[str, NDArray[np.float32]]:
    """base + factor * direction, summed in float64 and rounded once."""
    return {
        name: (start.astype(np.float64) + factor * direction[name].astype(np.float64)).astype(np.float32)
        for name, start in base.items()
    }


def fit_line(steps: Sequence[int], values: Sequence[float]) -> Line | None:
    """Least squares with intercept; None for fewer than three points, which every line fits, or a single step."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64)
    if x.size < 3 or np.ptp(x) == 0.0:
        return None
    away = x - x.mean()
    slope = float(away @ y) / float(away @ away)
    intercept = float(y.mean()) - slope * float(x.mean())
    residual = y - intercept - slope * x
    spread = float(((y - y.mean()) ** 2).sum())
    r_squared = None if spread == 0.0 else 1.0 - float(residual @ residual) / spread
    return Line(slope=slope, intercept=intercept, r_squared=r_squared, n=int(x.size))


def walk_slope_sd(steps: Sequence[int], variances: Sequence[float], d: int) -> float:
    """Exact standard deviation of the slope of ``fit_line`` over squared norms of a Gaussian random walk.

    ``variances`` v_t is that of one coordinate at each step, not falling. Norms of one walk share their past:
    Cov(||x_s||^2, ||x_t||^2) = 2 d v_s^2 for s < t.
    """
    x, v = np.asarray(steps, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    away = x - x.mean()
    weights = away / (away @ away)
    covariance = 2.0 * d * np.minimum.outer(v, v) ** 2
    return math.sqrt(float(weights @ covariance @ weights))


def walk_share(measured: float, moments: CoordinateMoments, d: int) -> WalkShare:
    """How much of the squared norm ``measured`` a random walk with these moments of a coordinate explains.

    Nothing is clipped. Raises ValueError where nothing moved or d < 1.
    """
    if measured <= 0.0 or d < 1:
        raise ValueError(f"a share needs a squared norm above 0 and d >= 1, got {measured} and {d}")
    predicted = d * moments.second
    sd = math.sqrt(d * max(moments.fourth - moments.second**2, 0.0))
    share = predicted / measured
    return WalkShare(
        predicted=predicted,
        predicted_sd=sd,
        share=share,
        share_stderr=share * sd / measured,
        excess=measured - predicted,
    )


def cross_terms(measured: float, step_norms: Sequence[float]) -> float:
    """||Delta||^2 - sum_t ||step_t||^2 = 2 sum_{t<u} step_t . step_u: what steps that agree with each other add.

    0 on average for independent steps, above 0 where steps keep a direction, below 0 where they undo each other.
    """
    return measured - math.fsum(norm * norm for norm in step_norms)


def walk_cross_sd(variances: Sequence[float], d: int) -> float:
    """Standard deviation of ``cross_terms`` for independent Gaussian steps of these variances of a coordinate.

    2 sqrt(d sum_{t<u} v_t v_u).
    """
    total, squares = math.fsum(variances), math.fsum(v * v for v in variances)
    return math.sqrt(2.0 * d * max(total * total - squares, 0.0))
