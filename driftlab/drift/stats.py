"""Intervals for accuracies and for paired changes of accuracy.

Sources: Wilson 1927 (score interval); Miller 2024, arXiv 2411.00640, appendix A (cluster-robust standard error) with
the small-sample factor G/(G-1); Haldane 1956 and Anscombe 1956 (half a count added to each of two counts);
Satterthwaite 1946 (degrees of freedom of a sum). Accuracies and differences are fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]

HALF_COUNTS = 1.0
"""Squared changes added to those observed: half a gained and half a lost item."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Lower and upper end of a two-sided confidence interval, in the unit of the estimate."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanEstimate:
    """A mean over items that may come in clusters and strata.

    Attributes:
        mean: the plain mean over items.
        stderr: cluster-robust standard error; None with fewer than two clusters.
        low, high: ends of the t interval; None where ``stderr`` is None.
        n, n_clusters: items, and independent groups of them.
    """

    mean: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    n_clusters: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """Mean change of the same items between two checkpoints.

    Attributes:
        difference: mean over items of tuned minus base (fraction when items are 0 or 1).
        stderr: cluster-robust standard error; None with fewer than two clusters.
        low, high: ends of the t interval with ``n_clusters - 1`` degrees of freedom; None where ``stderr`` is None.
        n: items paired.
        n_clusters: independent groups of items.
        gained, lost: items that went up, and down.
    """

    difference: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    n_clusters: int
    gained: int
    lost: int


@dataclass(frozen=True, kw_only=True, slots=True)
class AverageDifference:
    """Unweighted mean of several tasks' paired differences; fields as there, ``n`` summed over the tasks."""

    difference: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int
    n_tasks: int


def proportion_interval(successes: float, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion over ``n`` independent items (Wilson 1927).

    Unlike estimate plus or minus two standard errors it keeps a positive width at 0 and at 1.
    Raises ValueError for counts outside ``0 <= successes <= n``, ``n >= 1``, or a level outside (0, 1).
    """
    p = _proportion(successes, n)
    z = float(stats.norm.ppf(_upper_tail(level)))
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    # At p = 0 and p = 1 the end is exact; rounding must not leave it 1e-17 outside the estimate.
    return Interval(float(min(p, max(0.0, centre - half))), float(max(p, min(1.0, centre + half))))


def paired_difference(
    base: ArrayLike,
    tuned: ArrayLike,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    level: float = 0.95,
) -> PairedDifference:
    """Mean of ``d_i = tuned_i - base_i``, each score 0 to 1, with a cluster-robust standard error.

    To the variance half a gained and half a lost item is added, ``1 / n^2`` (``HALF_COUNTS``). Without it two lost
    items and no gained one would claim an error of nearly 0, and none changed an error of exactly 0; where more than a
    handful changed it is lost in the rounding.

    Args:
        base, tuned: score of each item, shape ``[n]``, in the same order.
        clusters, strata: see ``clustered_mean``.
        level: confidence level in (0, 1).

    Raises:
        ValueError: different lengths, no items, or a score that is not finite.
    """
    before, after = np.asarray(base, dtype=np.float64), np.asarray(tuned, dtype=np.float64)
    if before.ndim != 1 or before.shape != after.shape or len(clusters) != before.size:
        raise ValueError(
            f"paired scores differ in shape: {before.shape}, {after.shape}, {len(clusters)} cluster labels"
        )
    if before.size == 0:
        raise ValueError("no paired items")
    change = after - before
    if not np.isfinite(change).all():
        raise ValueError("a paired score is not finite")
    found = clustered_mean(change, clusters, strata, level, extra_variance=HALF_COUNTS / change.size**2)
    return PairedDifference(
        difference=found.mean,
        stderr=found.stderr,
        low=found.low,
        high=found.high,
        n=found.n,
        n_clusters=found.n_clusters,
        gained=int((change > 0).sum()),
        lost=int((change < 0).sum()),
    )


def clustered_mean(
    values: ArrayLike,
    clusters: Sequence[str],
    strata: Sequence[str] | None = None,
    level: float = 0.95,
    *,
    extra_variance: float = 0.0,
) -> MeanEstimate:
    """Mean with a cluster-robust standard error and its t interval with ``n_clusters - 1`` degrees of freedom.

    ``SE^2 = G/(G-1) * sum_c (sum_{i in c} (x_i - mean))^2 / n^2`` over the G clusters (Miller 2024, appendix A). With
    every item its own cluster this is the t interval of a mean. See ``influence`` for strata.

    Args:
        values: one per item, shape ``[n]``.
        clusters: label of each item; items that are not independent of each other share it.
        strata: label of each item, where the sample was drawn from fixed groups whose mix is not up to chance.
        extra_variance: added to SE^2.
    """
    scores = np.asarray(values, dtype=np.float64)
    parts = influence(scores[:, None], clusters, strata)
    n_clusters, mean = parts.shape[0], float(scores.mean())
    if n_clusters < 2:
        return MeanEstimate(mean=mean, stderr=None, low=None, high=None, n=scores.size, n_clusters=n_clusters)
    stderr = float(np.sqrt(np.sum(parts**2) + extra_variance))
    half = float(stats.t.ppf(_upper_tail(level), n_clusters - 1)) * stderr
    return MeanEstimate(
        mean=mean, stderr=stderr, low=mean - half, high=mean + half, n=scores.size, n_clusters=n_clusters
    )


def influence(values: Array, clusters: Sequence[str], strata: Sequence[str] | None = None) -> Array:
    """What each cluster contributes to the error of the column means, shape ``[G, K]`` for values ``[n, K]``.

    ``P^T P`` is the cluster-robust covariance matrix of the K means. Values are centred within their stratum and each
    stratum has its own factor ``G_h/(G_h-1)``: differences between strata are no sampling error when the mix is fixed.
    A cluster belongs to the stratum of its first item. Strata of one cluster, whose variance cannot be estimated, are
    taken together; a single one with the smallest other.
    """
    labels, first, index = np.unique(np.asarray(clusters, dtype=str), return_index=True, return_inverse=True)
    groups = np.zeros(labels.size, dtype=int) if strata is None else merged_strata(np.asarray(strata, dtype=str)[first])
    parts = np.zeros((labels.size, values.shape[1]))
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        inside = np.isin(index, members)
        np.add.at(parts, index[inside], values[inside] - values[inside].mean(axis=0))
        if members.size > 1:
            parts[members] *= np.sqrt(members.size / (members.size - 1))
    return parts / len(values)


def merged_strata(labels: NDArray[np.str_]) -> NDArray[np.int_]:
    """Stratum number of each cluster, strata of one cluster merged."""
    names, groups, counts = np.unique(labels, return_inverse=True, return_counts=True)
    single = np.flatnonzero(counts == 1)
    if single.size and names.size > 1:
        others = np.flatnonzero(counts > 1)
        merged = np.isin(groups, single)
        if single.size == 1:
            merged |= groups == others[np.argmin(counts[others])]
        groups = np.where(merged, single[0], groups)
    return groups


def average_difference(tasks: Sequence[PairedDifference], level: float = 0.95) -> AverageDifference:
    """Unweighted mean over tasks, taken as independent; the caller leaves the target out.

    ``SE^2 = sum_k SE_k^2 / K^2``, t interval with Satterthwaite's degrees of freedom. The standard error is None when
    any task has none. Raises ValueError when there is no task.
    """
    if not tasks:
        raise ValueError("no task to average")
    mean = float(np.mean([task.difference for task in tasks]))
    known = [(task.stderr, task.n_clusters - 1) for task in tasks if task.stderr is not None]
    stderr = low = high = None
    if len(known) == len(tasks):
        variances = np.array([error**2 for error, _ in known])
        freedom = np.array([df for _, df in known])
        stderr = float(np.sqrt(variances.sum()) / len(tasks))
        low = high = mean
        if stderr > 0:
            df = variances.sum() ** 2 / np.sum(variances**2 / freedom)
            half = float(stats.t.ppf(_upper_tail(level), df)) * stderr
            low, high = mean - half, mean + half
    return AverageDifference(
        difference=mean, stderr=stderr, low=low, high=high, n=sum(task.n for task in tasks), n_tasks=len(tasks)
    )


def t_quantile(n: int, level: float = 0.95) -> float:
    """Student's t quantile for a two-sided interval of a mean of ``n`` values (n - 1 degrees of freedom).

    NaN for n < 2: one value has no interval.
    """
    return float(stats.t.ppf(_upper_tail(level), n - 1)) if n > 1 else float("nan")


def norm_band(predicted: float, sd: float, level: float = 0.95) -> tuple[float, float]:
    """Range of an update norm under the random walk, from its prediction and standard deviation.

    The norm of 10,000 and more coordinates is normal to a fraction of its standard deviation, whatever the law of one
    coordinate: Gaussian without an anchor or with L2, heavy-tailed under L1, where chi-squared would be too narrow.
    """
    half = float(stats.norm.ppf(_upper_tail(level))) * sd
    return predicted - half, predicted + half


def _proportion(successes: float, n: int) -> float:
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"a proportion needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    return successes / n


def _upper_tail(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"confidence level must lie in (0, 1), got {level}")
    return (1 + level) / 2
