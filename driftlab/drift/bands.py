"""Simultaneous bands: intervals for many checkpoints and tasks that all hold together.

The deepest of twenty noisy checkpoints is not a dip. A band answers for the looking: its critical value is the quantile
of the largest of all studentised errors (max-T; Westfall and Young 1993), from a Gaussian multiplier bootstrap over
clusters (Chernozhukov, Chetverikov and Kato 2013). With multipliers w the bootstrapped means are ``sum_c w_c P_c``,
which for standard normal w are exactly normal with the cluster-robust covariance, so they are drawn from it directly;
a chi-squared draw per task carries the error of the estimated variances, and one contrast alone gets the t interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.drift.stats import HALF_COUNTS, Array, influence

DRAWS = 40_000
"""Monte-Carlo error of the level of a 97.5 % quantile with that many draws: 0.0008."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Curve:
    """Paired change of one quantity since the base at K later checkpoints.

    Attributes:
        change: mean change, shape [K].
        covariance: covariance of the K means, shape [K, K]; half a gained and half a lost item
            (``stats.HALF_COUNTS``) at each checkpoint included.
        n: items.
        freedom: degrees of freedom of the errors, clusters of items minus one.
        gained, lost: items that went up and down since the base, shape [K].
    """

    change: Array
    covariance: Array
    n: int
    freedom: float
    gained: Array
    lost: Array


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Band:
    """Estimates of several contrasts with intervals that hold together; each array has one entry per contrast."""

    estimate: Array
    stderr: Array
    low: Array
    high: Array


def paired_curve(scores: Array, clusters: Sequence[str], strata: Sequence[str] | None = None) -> Curve:
    """Change of right-or-wrong items at K checkpoints.

    Args:
        scores: shape [K + 1, n], scores 0 to 1 of the same items at the base (first row) and after it.
        clusters, strata: see ``stats.clustered_mean``.

    Raises:
        ValueError: fewer than two rows or clusters, or a score that is not finite.
    """
    if scores.ndim != 2 or scores.shape[0] < 2 or scores.shape[1] != len(clusters):
        raise ValueError(f"scores of shape {scores.shape} do not fit a base, a checkpoint and {len(clusters)} clusters")
    if not np.isfinite(scores).all():
        raise ValueError("a paired score is not finite")
    changes = (scores[1:] - scores[0]).T
    parts = influence(changes, clusters, strata)
    if len(parts) < 2:
        raise ValueError("one cluster: nothing is known about the error of its mean")
    return Curve(
        change=changes.mean(axis=0),
        covariance=parts.T @ parts + np.eye(changes.shape[1]) * HALF_COUNTS / len(changes) ** 2,
        n=len(changes),
        freedom=len(parts) - 1,
        gained=(changes > 0).sum(axis=0),
        lost=(changes < 0).sum(axis=0),
    )


def against_base(checkpoints: int) -> Array:
    """Contrasts checkpoint minus base, one per row, shape [K, K]."""
    return np.eye(checkpoints)


def against_final(checkpoints: int) -> Array:
    """Contrasts final minus every earlier checkpoint after the base, shape [K - 1, K]."""
    rows = -np.eye(checkpoints)[:-1]
    rows[:, -1] = 1.0
    return rows


def contrast_errors(curve: Curve, contrasts: Array) -> Array:
    """Standard error of each contrast, shape [C] for contrasts [C, K]."""
    return np.sqrt(np.einsum("ck,kl,cl->c", contrasts, curve.covariance, contrasts))


def band(curve: Curve, contrasts: Array, critical: float | Array) -> Band:
    """Each contrast with ``estimate ± critical * stderr``; one critical value for all, or one for each."""
    estimate, stderr = contrasts @ curve.change, contrast_errors(curve, contrasts)
    return Band(estimate=estimate, stderr=stderr, low=estimate - critical * stderr, high=estimate + critical * stderr)


def average_curve(curves: Sequence[Curve]) -> Curve:
    """Unweighted mean of several tasks' curves over the same checkpoints; the tasks' items are independent.

    Satterthwaite's degrees of freedom, at the final checkpoint.
    """
    count = len(curves)
    variances = np.array([curve.covariance[-1, -1] for curve in curves])
    freedom = variances.sum() ** 2 / np.sum(variances**2 / [curve.freedom for curve in curves])
    return Curve(
        change=np.mean([curve.change for curve in curves], axis=0),
        covariance=np.sum([curve.covariance for curve in curves], axis=0) / count**2,
        n=sum(curve.n for curve in curves),
        freedom=float(freedom),
        gained=np.sum([curve.gained for curve in curves], axis=0),
        lost=np.sum([curve.lost for curve in curves], axis=0),
    )


def critical_values(
    curves: Sequence[Curve],
    families: Sequence[tuple[Array, float]],
    *,
    averaged: Sequence[int],
    seed: int,
    draws: int = DRAWS,
) -> list[float]:
    """For each family of contrasts the quantile of the largest absolute studentised error over all curves.

    Args:
        curves: one per task, independent of each other, over the same checkpoints.
        families: contrasts, each of shape [C, K], and the level of the quantile.
        averaged: indices of the curves whose unweighted mean is judged too; with fewer than two there is none.
        seed: of the private generator; the same input gives the same values.
    """
    generator = np.random.default_rng(seed)
    largest = np.zeros((len(families), draws))
    total = np.zeros((draws, len(curves[0].change)))

    def take(drawn: Array, curve: Curve) -> None:
        for (family, _), found in zip(families, largest, strict=True):
            if not len(family):
                continue
            errors = contrast_errors(curve, family)
            np.maximum(found, np.abs(drawn @ (family / errors[:, None]).T).max(axis=1), out=found)

    for index, curve in enumerate(curves):
        scale = np.sqrt(curve.freedom / generator.chisquare(curve.freedom, draws))
        drawn = normal_errors(generator, draws, curve.covariance) * scale[:, None]
        take(drawn, curve)
        if index in averaged:
            total += drawn
    if len(averaged) > 1:
        take(total / len(averaged), average_curve([curves[index] for index in averaged]))
    return [float(np.quantile(found, level)) for (_, level), found in zip(families, largest, strict=True)]


def normal_errors(generator: np.random.Generator, draws: int, covariance: Array) -> Array:
    """Normal draws with that covariance, which may be singular, shape [draws, K].

    By its symmetric root: eigenvectors of equal eigenvalues are arbitrary, the root is not.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return generator.standard_normal((draws, len(values))) @ root
