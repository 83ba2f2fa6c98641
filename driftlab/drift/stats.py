"""Intervals for accuracies and for paired changes of accuracy.

Sources: Wilson 1927 (score interval); Miller 2024, arXiv 2411.00640, appendix A (cluster-robust standard error) with
the small-sample factor G/(G-1); Satterthwaite 1946 (degrees of freedom of a sum). Accuracies and differences are
fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


@dataclass(frozen=True, slots=True)
class Interval:
    """Lower and upper end of a two-sided confidence interval, in the unit of the estimate."""

    low: float
    high: float


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


def proportion_stderr(successes: float, n: int) -> float | None:
    """Standard error of an accuracy over ``n`` independent items, ``sqrt(p (1 - p) / (n - 1))``.

    None with fewer than two items. Raises ValueError for counts outside ``0 <= successes <= n``, ``n >= 1``.
    """
    p = _proportion(successes, n)
    return None if n < 2 else float(np.sqrt(p * (1 - p) / (n - 1)))


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
    base: ArrayLike, tuned: ArrayLike, clusters: Sequence[str], level: float = 0.95
) -> PairedDifference:
    """Mean of ``d_i = tuned_i - base_i`` with a cluster-robust standard error.

    ``SE^2 = G/(G-1) * sum_c (sum_{i in c} (d_i - mean))^2 / n^2`` over the G clusters (Miller 2024, appendix A). With
    every item its own cluster this is the paired t test; with equal cluster sizes, the t test of the cluster means.

    Args:
        base, tuned: score of each item, shape ``[n]``, in the same order.
        clusters: label of each item; items that are not independent of each other share it.
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
    n, mean = change.size, float(change.mean())
    labels, index = np.unique(np.asarray(clusters, dtype=str), return_inverse=True)
    n_clusters = labels.size
    stderr = low = high = None
    if n_clusters >= 2:
        sums = np.bincount(index, weights=change - mean, minlength=n_clusters)
        stderr = float(np.sqrt(n_clusters / (n_clusters - 1) * np.sum(sums**2)) / n)
        half = float(stats.t.ppf(_upper_tail(level), n_clusters - 1)) * stderr
        low, high = mean - half, mean + half
    return PairedDifference(
        difference=mean,
        stderr=stderr,
        low=low,
        high=high,
        n=n,
        n_clusters=n_clusters,
        gained=int((change > 0).sum()),
        lost=int((change < 0).sum()),
    )


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
