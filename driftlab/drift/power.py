"""What a run will be able to see, before it is run.

Source of the formula: the variance of a paired difference with flip rate f and true change D is ``(f - D^2) / n``
(Connor 1987); the smallest D seen with a given power solves ``D = (z_crit + z_power) * sqrt(deff * (f - D^2) / n)``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from driftlab.drift.bands import Curve
from driftlab.drift.curves import Critical, run_critical_values
from driftlab.drift.stats import HALF_COUNTS

SHARED = 0.9
"""Correlation of the changes at neighbouring late checkpoints, as observed on the embedded suite (0.8 to 0.9)."""


def minimal_detectable_difference(
    n: int, flips: float, *, critical: float | None = None, power: float = 0.8, design_effect: float = 1.0
) -> float:
    """Smallest true change of accuracy (fraction) that is found with probability ``power``.

    Args:
        n: paired items.
        flips: share of items whose verdict differs between the two checkpoints.
        critical: critical value of the test; None for one two-sided comparison at 5 %.
        design_effect: variance inflation by clusters of items.

    Raises:
        ValueError: n below 1, flips outside [0, 1], or power outside (0, 1).
    """
    _check(flips, power)
    if n < 1:
        raise ValueError(f"at least one item is needed, got {n}")
    k = _quantiles(critical, power) ** 2 * design_effect / n
    # With no flip expected, half a gained and half a lost item stand for what cannot be excluded.
    spread = max(flips, HALF_COUNTS / n)
    return math.sqrt(k * spread / (1 + k))


def items_needed(
    difference: float,
    flips: float,
    *,
    critical: float | None = None,
    power: float = 0.8,
    design_effect: float = 1.0,
) -> int:
    """Paired items at which a true change of ``difference`` (fraction) is found with probability ``power``.

    Raises:
        ValueError: a difference that the flip rate cannot make (``0 < |difference| <= flips`` is needed).
    """
    _check(flips, power)
    if not 0 < abs(difference) <= flips:
        raise ValueError(
            f"a change of {100 * difference:g} points needs at least that share of items to flip, got {100 * flips:g} %"
        )
    variance = max(flips - difference**2, 0.0)
    return max(2, math.ceil(_quantiles(critical, power) ** 2 * design_effect * variance / difference**2))


def walk_correlation(checkpoints: int) -> np.ndarray:
    """Correlation of the changes at K equally spaced checkpoints that drift as a random walk does, shape [K, K].

    Two points of a Brownian path correlate as ``sqrt(s / t)``; part of each checkpoint's change is its own.
    """
    steps = np.arange(1, checkpoints + 1)
    shared = np.sqrt(np.minimum.outer(steps, steps) / np.maximum.outer(steps, steps))
    return np.where(np.eye(checkpoints, dtype=bool), 1.0, SHARED * shared)


def planned_critical_values(n: int, flips: float, checkpoints: int, tasks: int, *, seed: int = 0) -> Critical:
    """Critical values of a run's verdicts, if flips grow to ``flips`` as on the embedded suite, by the root of t."""
    share = np.sqrt(np.arange(1, checkpoints + 1) / checkpoints)
    sd = np.sqrt(flips * share / n)
    curve = Curve(
        change=np.zeros(checkpoints),
        covariance=walk_correlation(checkpoints) * np.outer(sd, sd) + np.eye(checkpoints) * HALF_COUNTS / n**2,
        n=n,
        freedom=n - 1,
        gained=np.zeros(checkpoints),
        lost=np.zeros(checkpoints),
    )
    return run_critical_values([curve] * tasks, averaged=range(tasks), seed=seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outlook:
    """What a planned run would see; changes are fractions.

    Attributes:
        critical: critical values of the run's verdicts.
        visible_once: true final change found with the asked power by one uncorrected comparison on one task.
        visible_final: the same by the verdicts, over all tasks and their average.
        visible_dip: true change of one earlier checkpoint found by the verdicts, at the same flip rate. All three are
            None where they exceed the flip rate, so that no such change can be made.
        half_width: half width of the corrected interval of the final change.
        needed: items at which the verdicts would find each final change in ``SIZES``; None where the flips cannot make
            it.
        items_for_stable: items at which the final interval of an unchanged task lies within the margin with the asked
            power, as *stable* takes (two one-sided tests; Schuirmann 1987).
    """

    critical: Critical
    visible_once: float | None
    visible_final: float | None
    visible_dip: float | None
    half_width: float
    needed: dict[float, int | None]
    items_for_stable: int


SIZES = (0.01, 0.02, 0.05, 0.10)


def outlook(
    n: int, flips: float, checkpoints: int, tasks: int, *, margin: float, power: float = 0.8, design_effect: float = 1.0
) -> Outlook:
    """See ``Outlook``; arguments as in ``minimal_detectable_difference`` and ``planned_critical_values``."""
    _check(flips, power)
    if n < 2 or checkpoints < 2 or tasks < 1:
        raise ValueError(
            f"a verdict needs at least 2 items, 2 checkpoints after the base and 1 task, got {n}, {checkpoints} and "
            f"{tasks}"
        )
    if not 0 < margin < 1:
        raise ValueError(f"the stability margin lies between 0 and 100 points, got {100 * margin:g}")
    if not design_effect >= 1:
        raise ValueError(f"clusters cannot lower the variance: the design effect is 1 or more, got {design_effect:g}")
    critical = planned_critical_values(n, flips, checkpoints, tasks)

    def visible(value: float | None) -> float | None:
        found = minimal_detectable_difference(n, flips, critical=value, power=power, design_effect=design_effect)
        return found if found <= flips else None

    def needed(size: float) -> int | None:
        if size > flips:
            return None
        return items_needed(size, flips, critical=critical.final, power=power, design_effect=design_effect)

    variance = design_effect * (flips + HALF_COUNTS / n)
    equivalence = critical.final + float(stats.norm.ppf((1 + power) / 2))
    return Outlook(
        critical=critical,
        visible_once=visible(None),
        visible_final=visible(critical.final),
        visible_dip=visible(critical.path),
        half_width=critical.final * math.sqrt(variance / n),
        needed={size: needed(size) for size in SIZES},
        items_for_stable=math.ceil(equivalence**2 * variance / margin**2),
    )


def _quantiles(critical: float | None, power: float) -> float:
    return (float(stats.norm.ppf(0.975)) if critical is None else critical) + float(stats.norm.ppf(power))


def _check(flips: float, power: float) -> None:
    if not 0 <= flips <= 1:
        raise ValueError(f"the flip rate is a share between 0 and 1, got {flips}")
    if not 0 < power < 1:
        raise ValueError(f"power lies between 0 and 1, got {power}")
