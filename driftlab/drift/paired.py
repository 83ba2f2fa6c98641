"""What else is said about a pair of checkpoints, about several seeds, and about repeated answers.

Sources: Fagerland, Lydersen and Laake 2013 (mid-p McNemar test); Holm 1979; Fieller 1954 (interval of a ratio);
Chen et al. 2021, arXiv 2107.03374 (unbiased pass@k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from driftlab.drift.stats import HALF_COUNTS, Array, Interval, influence, merged_strata


@dataclass(frozen=True, kw_only=True, slots=True)
class Retention:
    """Chance-corrected share of the base's ability that is kept: ``(acc_t - chance) / (acc_0 - chance)``.

    Attributes:
        value: 1 is all kept, 0 is chance.
        low, high: ends of Fieller's interval; None with fewer than two clusters.
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedSummary:
    """Mean over training seeds, each seed one observation.

    Attributes:
        mean: over the seeds.
        sd: standard deviation over the seeds (n - 1); None for one seed.
        low, high: t interval with n - 1 degrees of freedom; None for one seed.
        n: seeds.
    """

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    n: int


def mcnemar_midp(gained: int, lost: int) -> float:
    """Two-sided mid-p value of McNemar's test from the items that changed; they are taken as independent.

    Under no effect each changed item is as likely gained as lost: ``2 P(X < k) + P(X = k)`` with ``k`` the smaller
    count and ``X ~ Binomial(gained + lost, 1/2)``. 1 when nothing changed.
    """
    if gained < 0 or lost < 0:
        raise ValueError(f"counts of changed items cannot be negative, got {gained} and {lost}")
    changed, fewer = gained + lost, min(gained, lost)
    if gained == lost:
        return 1.0
    below = 2 * float(stats.binom.cdf(fewer - 1, changed, 0.5))
    return min(1.0, below + float(stats.binom.pmf(fewer, changed, 0.5)))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values, in the order given."""
    order = np.argsort(p_values, kind="stable")
    adjusted = np.empty(len(p_values))
    running = 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return tuple(float(value) for value in adjusted)


def retention(
    base: ArrayLike,
    tuned: ArrayLike,
    chance: float,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    level: float = 0.95,
) -> Retention | None:
    """Chance-corrected retention with Fieller's interval, from the same items at both checkpoints.

    The interval holds every ratio r for which ``mean(tuned - chance - r (base - chance))`` is not distinguishable from
    0. None where the base is not above chance beyond its error: the ratio then has no bounded interval and no meaning.

    Args:
        base, tuned: 0 or 1 for each item, shape ``[n]``.
        chance: accuracy of guessing, a fraction.
        clusters, strata: see ``stats.clustered_mean``.
    """
    scores = np.stack([np.asarray(tuned, dtype=np.float64), np.asarray(base, dtype=np.float64)], axis=1)
    after, before = scores.mean(axis=0) - chance
    parts = influence(scores, clusters, strata)
    if len(parts) < 2:
        return None if before <= 0 else Retention(value=float(after / before), low=None, high=None)
    covariance = parts.T @ parts
    covariance[0, 0] += HALF_COUNTS / len(scores) ** 2
    squared = float(stats.t.ppf((1 + level) / 2, len(parts) - 1)) ** 2
    # r^2 a - 2 r b + c <= 0
    a = before**2 - squared * covariance[1, 1]
    b = before * after - squared * covariance[0, 1]
    c = after**2 - squared * covariance[0, 0]
    if before <= 0 or a <= 0:
        return None
    root = float(np.sqrt(max(b**2 - a * c, 0.0)))
    return Retention(value=float(after / before), low=float((b - root) / a), high=float((b + root) / a))


def over_seeds(values: Sequence[float], items: Interval | None = None, level: float = 0.95) -> SeedSummary:
    """Mean of one number per training seed, with the t interval over seeds.

    How a run ends depends on its seed as much as on its items (LIT-238's two seeds of one arm end four points apart),
    so a statement about an arm takes the seed for its unit. But seeds share their evaluation items, whose error does
    not show in the scatter between seeds: with ``items`` the interval is at least as wide as that one on either side.

    Args:
        values: one per seed.
        items: interval over items of the same mean, seeds taken as they are.

    Raises:
        ValueError: there is no seed.
    """
    if not values:
        raise ValueError("no seed to average")
    numbers, mean = np.asarray(values, dtype=np.float64), float(np.mean(values))
    if len(numbers) == 1:
        return SeedSummary(mean=mean, sd=None, low=None, high=None, n=1)
    sd = float(numbers.std(ddof=1))
    half = float(stats.t.ppf((1 + level) / 2, len(numbers) - 1)) * sd / float(np.sqrt(len(numbers)))
    low, high = mean - half, mean + half
    if items is not None:
        low, high = min(low, items.low), max(high, items.high)
    return SeedSummary(mean=mean, sd=sd, low=low, high=high, n=len(numbers))


def bootstrap_intervals(
    changes: Array,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    *,
    seed: int,
    level: float = 0.95,
    draws: int = 2000,
) -> tuple[Interval, ...]:
    """Percentile bootstrap intervals of the column means of ``changes`` [n, K], clusters drawn anew within strata.

    All columns share the draws. It assumes no shape,
    but needs some changes to resample: a column without any gives an interval of width 0, and the t interval of
    ``stats.paired_difference`` does not.
    """
    labels, first, index = np.unique(np.asarray(clusters, dtype=str), return_index=True, return_inverse=True)
    sums = np.zeros((labels.size, changes.shape[1]))
    np.add.at(sums, index, changes)
    sizes = np.bincount(index).astype(np.float64)
    groups = np.zeros(labels.size, dtype=int)
    if strata is not None:
        groups = merged_strata(np.asarray(strata, dtype=str)[first])
    generator = np.random.default_rng(seed)
    total = np.zeros((draws, changes.shape[1]))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        counts = generator.multinomial(members.size, np.full(members.size, 1 / members.size), size=draws)
        # The stratum keeps its share of the items; within it a draw's own size is the denominator.
        share = sizes[members].sum() / len(changes)
        total += share * (counts @ sums[members]) / (counts @ sizes[members])[:, None]
    tail = (1 - level) / 2
    ends = np.quantile(total, [tail, 1 - tail], axis=0)
    return tuple(Interval(float(low), float(high)) for low, high in ends.T)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased estimate of the chance that at least one of k answers is right: ``1 - C(n - c, k) / C(n, k)``.

    ``1 - (1 - c/n)^k`` is biased upwards for k > 1. Average it over problems, with problems as clusters.

    Args:
        samples: answers n drawn for one problem.
        correct: how many of them are right, c.

    Raises:
        ValueError: not ``0 <= correct <= samples`` and ``1 <= k <= samples``.
    """
    if not (0 <= correct <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@k needs 0 <= correct <= samples and 1 <= k <= samples, got {correct}, {samples}, {k}")
    if samples - correct < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(samples - correct + 1, samples + 1)))
