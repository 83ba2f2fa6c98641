"""How far pure chance moves the weights: random-walk laws for ES, with and without Anchored Weight Decay.

Throughout, ``d`` counts the perturbed parameters, a tied tensor once, and the rewards carry no information about the
noise. ES moves theta by (alpha/N) * sum_i c_i eps_i, so given the applied coefficients c each coordinate of
Delta = theta_t - theta_0 is an independent draw from one and the same law: Gaussian without a penalty and under L2.
The functions named ``*_form`` assume what they say and return a norm; ``predicted_squared_norm`` assumes nothing about
shaping, since it reads the coefficients that were applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from driftlab.drift.soft_walk import soft_walk_moments

Array = NDArray[np.float64]


class Applied(Protocol):
    """What one update applied, as a run's update records hold it; ``decay`` is alpha times lambda."""

    @property
    def seeds(self) -> Sequence[int]: ...
    @property
    def coefficients(self) -> Sequence[float]: ...
    @property
    def population(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def penalty(self) -> str: ...
    @property
    def decay(self) -> float: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinateMoments:
    """Moments of one coordinate of theta_t - theta_0 under the random walk (its odd moments are 0).

    Attributes:
        second: E[x^2], so that E||Delta||^2 = d * second.
        fourth: E[x^4]; 3 * second^2 where the law is Gaussian.
    """

    second: float
    fourth: float


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedConstant:
    """The factor between measured and predicted squared norms; 1 where the law holds exactly.

    Attributes:
        constant: least-squares slope through the origin.
        stderr: its standard error; None for a single point. Checkpoints of one run share their past, so their
            deviations are not independent and this error describes scatter about the line, not a confidence level.
        n: points used.
    """

    constant: float
    stderr: float | None
    n: int


def alpha_form(alpha: float, d: int, steps: int, population: int) -> float:
    """Root-mean-square norm sqrt(alpha^2 d T / N) after ``steps`` reward-free ES updates without decay.

    Exact for theta += (alpha/N) sum_i z_i eps_i with z standardised by the population standard deviation
    (sum z_i^2 = N) and independent of eps. The law of LIT-235 (section 2.3 of its digest), with the scale that is
    really applied. Other shapings change the constant: mirrored pairs by a factor 1 to 2 in the square, centred ranks
    in [-1/2, 1/2] by about 0.089.

    Args:
        alpha: step scale, 1/sigma absorbed.
        d: perturbed parameters.
        steps: updates T; 0 gives 0.
        population: members N, mirrored members counted singly.

    Raises:
        ValueError: for a negative scale, d or steps, or fewer than one member.
    """
    _check(alpha, d, steps, population)
    return alpha * math.sqrt(d * steps / population)


def sigma_form(sigma: float, d: int, steps: int, population: int) -> float:
    """Norm sqrt(sigma^2 d T / N), the law of LIT-235 as printed.

    It assumes that the step scale equals the perturbation scale sigma. With alpha = sigma / 2, the common setting, the
    norm is 2 times (its square 4 times) what is applied. Arguments and errors as ``alpha_form``.
    """
    _check(sigma, d, steps, population)
    return sigma * math.sqrt(d * steps / population)


def anchored_form(alpha: float, decay: float, d: int, steps: int, population: int) -> float:
    """Root-mean-square norm when each z-scored update is followed by the L2 pull of Anchored Weight Decay (LIT-238).

    With q = 1 - decay: E||Delta_T||^2 = (alpha^2 d / N) q^2 (1 - q^(2T)) / (1 - q^2); decay = 0 gives ``alpha_form``.

    Args:
        alpha, d, steps, population: as in ``alpha_form``.
        decay: alpha times lambda, in [0, 1).

    Raises:
        ValueError: as ``alpha_form``, or when decay is outside [0, 1).
    """
    _check(alpha, d, steps, population)
    if not 0.0 <= decay < 1.0:
        raise ValueError(f"decay is {decay}; the L2 pull needs 0 <= alpha * lambda < 1")
    log_q2 = 2.0 * math.log1p(-decay)
    # 1 - q^2 and 1 - q^(2T) lose all their digits as q -> 1; expm1 of the logarithm keeps them.
    weight = float(steps) if log_q2 == 0.0 else math.exp(log_q2) * math.expm1(steps * log_q2) / math.expm1(log_q2)
    return alpha * math.sqrt(d / population * weight)


def step_variance(update: Applied) -> float:
    """Variance (alpha/N)^2 sum_i c_i^2 that one update adds to every coordinate, before decay.

    For mirrored pairs the record holds one coefficient per pair, c = z_plus - z_minus. With z standardised over all N
    members, sum c^2 = N - 2 sum z_plus z_minus: N when the two rewards of a pair are unrelated (factor 1) and 2N when
    they are opposite (factor 2), so the applied coefficients carry that factor by themselves.
    """
    squares = math.fsum(c * c for c in update.coefficients)
    return (update.alpha / update.population) ** 2 * squares


def coordinate_moments(updates: Sequence[Applied]) -> CoordinateMoments | None:
    """Second and fourth moment of a coordinate after ``updates``, from the coefficients and decays that were applied.

    Without a penalty and under L2 (LIT-238; q = 1 - decay) the law is Gaussian. Where every seed is used once, its
    variance follows v_t = q_t^2 (v_{t-1} + s_t^2) with ``step_variance`` s^2. Steps that share a seed add coherently:
    then v is the sum over seeds of a^2, a_t = q_t (a_{t-1} + (alpha/N) c_t) being the factor of that seed's noise.
    Under L1 the walk is soft-thresholded at ``decay`` after every step; its density is followed on a grid.

    Returns:
        None where no law is available: Huber; L1 and L2 mixed in one run; L1 with noise seeds that repeat or with
        step sizes that differ by more than a factor 16.
    """
    penalties = {u.penalty for u in updates}
    if any(u.penalty == "huber" and u.decay > 0 for u in updates):
        return None
    if "l1" not in penalties:
        v = _gaussian_variance(updates)
        return CoordinateMoments(second=v, fourth=3.0 * v * v)
    if "l2" in penalties or repeats_noise(updates):
        return None
    walk = [(math.sqrt(step_variance(u)), u.decay if u.penalty == "l1" else 0.0) for u in updates]
    found = soft_walk_moments(walk)
    return None if found is None else CoordinateMoments(second=found[0], fourth=found[1])


def repeats_noise(updates: Sequence[Applied]) -> bool:
    """Whether a noise seed is used more than once, so that steps are not independent of each other."""
    seeds = [seed for u in updates for seed in u.seeds]
    return len(set(seeds)) < len(seeds)


def predicted_squared_norm(updates: Sequence[Applied], d: int) -> float | None:
    """E||theta_t - theta_0||^2 of the random walk with the coefficients that were applied; 0 for no updates.

    d times the second moment of ``coordinate_moments``; mirrored pairs: see ``step_variance``.

    Returns:
        None where ``coordinate_moments`` has no law.

    Raises:
        ValueError: for negative d.
    """
    if d < 0:
        raise ValueError(f"d is {d}; a number of parameters is needed")
    moments = coordinate_moments(updates)
    return None if moments is None else d * moments.second


def norm_sd(moments: CoordinateMoments, d: int) -> float:
    """Standard deviation of ||Delta|| over the noise, for d independent coordinates with these moments.

    First order in 1/d: sqrt(E[x^4] - E[x^2]^2) / (2 sqrt(E[x^2])); sqrt(E[x^2] / 2) where Gaussian, exact to a
    relative 1/(8d). It does not grow with d.

    Raises:
        ValueError: for d < 1.
    """
    if d < 1:
        raise ValueError(f"d is {d}; at least one parameter is needed")
    if moments.second == 0.0:
        return 0.0
    return 0.5 * math.sqrt(max(moments.fourth - moments.second**2, 0.0) / moments.second)


def fit_constant(measured_squared: Sequence[float], predicted_squared: Sequence[float]) -> FittedConstant | None:
    """Least squares through the origin: measured ||Delta||^2 = constant * predicted.

    Returns:
        None when no point has a prediction above 0; ``stderr`` is None for one point.

    Raises:
        ValueError: for sequences of different lengths or values that are not finite.
    """
    y = np.asarray(measured_squared, dtype=np.float64)
    x = np.asarray(predicted_squared, dtype=np.float64)
    if x.shape != y.shape:
        raise ValueError(f"{y.size} measured and {x.size} predicted squared norms; they must pair up")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("a measured or predicted squared norm is not finite; leave out what was not measured")
    y, x = y[x > 0.0], x[x > 0.0]  # a point at the origin (step 0) tells nothing about a slope
    if x.size == 0:
        return None
    sxx = float(x @ x)
    constant = float(x @ y) / sxx
    if x.size == 1:
        return FittedConstant(constant=constant, stderr=None, n=1)
    residual = y - constant * x
    stderr = math.sqrt(float(residual @ residual) / (x.size - 1) / sxx)
    return FittedConstant(constant=constant, stderr=stderr, n=int(x.size))


def _gaussian_variance(updates: Sequence[Applied]) -> float:
    """Variance of a coordinate without L1: the recursion where no seed repeats, else from the factor of each noise."""
    kept = [1.0 - u.decay if u.penalty == "l2" else 1.0 for u in updates]
    if not repeats_noise(updates):
        v = 0.0
        for u, q in zip(updates, kept, strict=True):
            v = q * q * (v + step_variance(u))
        return v
    place = {seed: index for index, seed in enumerate({seed for u in updates for seed in u.seeds})}
    factors = np.zeros(len(place))
    for u, q in zip(updates, kept, strict=True):
        for seed, c in zip(u.seeds, u.coefficients, strict=True):
            factors[place[seed]] += u.alpha / u.population * c
        factors *= q
    return math.fsum(factors**2)


def _check(scale: float, d: int, steps: int, population: int) -> None:
    if scale < 0.0 or d < 0 or steps < 0 or population < 1:
        raise ValueError(
            "a random-walk law needs scale, d and steps >= 0 and population >= 1, "
            f"got scale={scale}, d={d}, steps={steps}, population={population}"
        )
