"""Intervals against closed forms, exact enumeration, SciPy and one seeded simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.drift.stats import (
    PairedDifference,
    average_difference,
    clustered_mean,
    influence,
    paired_difference,
    proportion_interval,
)


def own_clusters(n: int) -> list[str]:
    return [f"item-{i}" for i in range(n)]


@pytest.mark.parametrize(("k", "n"), [(0, 10), (10, 10), (3, 10), (250, 500), (1, 1)])
def test_wilson_equals_scipy(k: int, n: int) -> None:
    ours = proportion_interval(k, n)
    theirs = scipy_stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    assert ours.low == pytest.approx(theirs.low, abs=1e-12)
    assert ours.high == pytest.approx(theirs.high, abs=1e-12)
    assert 0 <= ours.low <= k / n <= ours.high <= 1


def test_wilson_ends_solve_the_score_equation() -> None:
    ends = proportion_interval(37, 120)
    for p in (ends.low, ends.high):
        assert abs(37 / 120 - p) == pytest.approx(1.959963984540054 * math.sqrt(p * (1 - p) / 120), rel=1e-12)


@pytest.mark.parametrize(("k", "n"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        proportion_interval(k, n)


def test_clustered_mean_equals_the_t_test_when_items_are_independent() -> None:
    rng = np.random.default_rng(5)
    change = rng.integers(0, 2, 80) - rng.integers(0, 2, 80)
    ours = clustered_mean(change, own_clusters(80))
    theirs = scipy_stats.ttest_1samp(change, 0)
    interval = theirs.confidence_interval(0.95)
    assert ours.stderr is not None
    assert ours.mean / ours.stderr == pytest.approx(theirs.statistic, rel=1e-12)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert ours.n == ours.n_clusters == 80


def test_paired_difference_adds_half_a_gained_and_half_a_lost_item_to_the_variance() -> None:
    rng = np.random.default_rng(5)
    base, tuned = rng.integers(0, 2, 80), rng.integers(0, 2, 80)
    ours = paired_difference(base, tuned, own_clusters(80))
    changed, net = np.abs(tuned - base).sum(), (tuned - base).sum()
    # Sample variance of d with sum of squares ``changed``, over n, plus 1 / n^2.
    variance = (changed / 80 - (net / 80) ** 2) * 80 / 79 / 80 + 1 / 80**2
    assert ours.stderr == pytest.approx(math.sqrt(variance), rel=1e-12)
    assert ours.high == pytest.approx(net / 80 + scipy_stats.t.ppf(0.975, 79) * math.sqrt(variance), rel=1e-12)
    assert (ours.gained - ours.lost, ours.gained + ours.lost) == (net, changed)
    still = paired_difference(base, base, own_clusters(80))
    assert (still.difference, still.stderr) == (0.0, pytest.approx(1 / 80))


@pytest.mark.parametrize(
    ("n", "gain", "loss"),
    [(n, g / 2 - d / 2, g / 2 + d / 2) for n in (200, 500) for g in (0.05, 0.1, 0.2) for d in (0.0, 0.02, 0.04)],
)
def test_coverage_by_exact_enumeration(n: int, gain: float, loss: float) -> None:
    """All (gained, lost) pairs of n independent items, weighted by their probability.

    The bound is the instrument's own promise for every interval, 95 ± 1 %. At n = 200 with 5 % flips about ten items
    change, and coverage jumps with the count, which uses up most of it.
    """
    changed = np.arange(0, int(n * (gain + loss) + 9 * math.sqrt(n * (gain + loss))) + 10)
    covered = 0.0
    for total, weight in zip(changed, scipy_stats.binom.pmf(changed, n, gain + loss), strict=True):
        lost = np.arange(total + 1)
        net = (total - 2 * lost) / n
        variance = (total / n - net**2) / (n - 1) + 1 / n**2
        half = scipy_stats.t.ppf(0.975, n - 1) * np.sqrt(variance)
        hit = np.abs(net - (gain - loss)) <= half
        covered += weight * scipy_stats.binom.pmf(lost, total, loss / (gain + loss)) @ hit
    assert 0.94 <= covered <= 0.9605
    # The formula above is the function's: one outcome of each n is compared.
    base, tuned = np.zeros(n), np.zeros(n)
    base[:7], tuned[7:12] = 1, 1
    ours = paired_difference(base, tuned, own_clusters(n))
    assert ours.stderr == pytest.approx(math.sqrt((12 / n - (2 / n) ** 2) / (n - 1) + 1 / n**2))


def test_equal_clusters_equal_the_t_test_of_cluster_means() -> None:
    rng = np.random.default_rng(6)
    change = rng.normal(size=(12, 5)) + rng.normal(size=(12, 1))
    clusters = [f"c{i}" for i in range(12) for _ in range(5)]
    ours = clustered_mean(change.ravel(), clusters)
    interval = scipy_stats.ttest_1samp(change.mean(1), 0).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-12)


def test_unequal_clusters_by_hand() -> None:
    # d = 1, 0, -1, 1 with mean 1/4; cluster sums of residuals: a: 3/4 - 1/4 = 1/2, b: -5/4 + 3/4 = -1/2.
    ours = clustered_mean([1, 0, -1, 1], ["a", "a", "b", "b"])
    assert ours.mean == 0.25
    assert ours.stderr == pytest.approx(math.sqrt(2 / 1 * (1 / 4 + 1 / 4)) / 4)
    assert ours.n_clusters == 2
    # a: 3/4 - 1/4 - 5/4 = -3/4, b: 3/4.
    ours = clustered_mean([1, 0, -1, 1], ["a", "a", "a", "b"])
    assert ours.stderr == pytest.approx(math.sqrt(2 * 2 * 9 / 16) / 4)


def test_strata_keep_only_the_variance_within_them() -> None:
    """The textbook stratified variance, sum_h (n_h / n)^2 s_h^2 / n_h; here with unlike means and sizes."""
    rng = np.random.default_rng(7)
    sizes, means = (12, 30, 8), (0.0, 5.0, -3.0)
    parts = [rng.normal(mean, 1, size) for mean, size in zip(means, sizes, strict=True)]
    values, strata = np.concatenate(parts), [f"s{h}" for h, size in enumerate(sizes) for _ in range(size)]
    ours = clustered_mean(values, own_clusters(50), strata)
    expected = sum((len(part) / 50) ** 2 * part.var(ddof=1) / len(part) for part in parts)
    assert ours.stderr == pytest.approx(math.sqrt(expected), rel=1e-12)
    plain = clustered_mean(values, own_clusters(50))
    assert plain.stderr is not None
    assert ours.stderr is not None
    assert ours.stderr < plain.stderr / 3


def test_a_stratum_of_one_cluster_joins_the_smallest_other_one() -> None:
    values = np.array([[1.0], [2.0], [4.0], [9.0], [9.5], [10.0], [10.5]])
    strata = ["a", "b", "b", "c", "c", "c", "c"]
    merged = influence(values, own_clusters(7), ["ab", "ab", "ab", "c", "c", "c", "c"])
    assert influence(values, own_clusters(7), strata) == pytest.approx(merged)


@pytest.mark.parametrize("copies", [1, 2])
def test_squared_error_is_unbiased_by_exact_enumeration(copies: int) -> None:
    """All 3^4 outcomes of four independent clusters, each holding ``copies`` identical items."""
    values, probability = (-1.0, 0.0, 1.0), {-1.0: 0.2, 0.0: 0.5, 1.0: 0.3}
    mean, square = 0.1, 0.5
    expected_mean = expected_square = 0.0
    for outcome in itertools.product(values, repeat=4):
        weight = math.prod(probability[value] for value in outcome)
        change = np.repeat(outcome, copies)
        result = clustered_mean(change, [f"c{i // copies}" for i in range(change.size)])
        assert result.stderr is not None
        expected_mean += weight * result.mean
        expected_square += weight * result.stderr**2
    assert expected_mean == pytest.approx(mean, rel=1e-12)
    assert expected_square == pytest.approx((square - mean**2) / 4, rel=1e-12)


def test_one_cluster_has_no_error_and_no_interval() -> None:
    ours = paired_difference([0, 1], [1, 1], ["same", "same"])
    assert (ours.stderr, ours.low, ours.high) == (None, None, None)
    assert ours.difference == 0.5


def test_bad_pairs_are_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        paired_difference([0, 1], [1], ["a", "b"])
    with pytest.raises(ValueError, match="no paired"):
        paired_difference([], [], [])
    with pytest.raises(ValueError, match="finite"):
        paired_difference([0.0], [float("nan")], ["a"])


def test_coverage_of_the_clustered_interval() -> None:
    """Balanced Gaussian clusters make the interval exact, so coverage is binomial(4000, 0.95).

    The tolerance is three Monte-Carlo standard errors, 3 sqrt(0.95 * 0.05 / 4000) = 0.0103. Treating the same items as
    independent covers far less: the intra-cluster correlation is 1/2, the design effect 1 + 4/2 = 3.
    """
    rng = np.random.default_rng(20240611)
    clusters = [f"c{i}" for i in range(8) for _ in range(5)]
    covered = naive = 0
    for _ in range(4000):
        change = (0.3 + rng.normal(size=(8, 1)) + rng.normal(size=(8, 5))).ravel()
        robust = clustered_mean(change, clusters)
        plain = clustered_mean(change, own_clusters(40))
        assert robust.low is not None
        assert robust.high is not None
        assert plain.low is not None
        assert plain.high is not None
        covered += robust.low <= 0.3 <= robust.high
        naive += plain.low <= 0.3 <= plain.high
    assert abs(covered / 4000 - 0.95) < 0.0103
    assert naive / 4000 < 0.85


def difference(value: float, stderr: float | None, n_clusters: int = 100) -> PairedDifference:
    return PairedDifference(
        difference=value, stderr=stderr, low=None, high=None, n=100, n_clusters=n_clusters, gained=0, lost=0
    )


def test_average_is_unweighted_with_independent_errors() -> None:
    average = average_difference([difference(0.1, 0.03), difference(-0.3, 0.04)])
    assert average.difference == pytest.approx(-0.1)
    assert average.stderr == pytest.approx(0.025)
    # Satterthwaite: (9 + 16)^2 / ((81 + 256) / 99).
    half = scipy_stats.t.ppf(0.975, 625 / (337 / 99)) * 0.025
    assert (average.low, average.high) == pytest.approx((-0.1 - half, -0.1 + half))
    assert (average.n, average.n_tasks) == (200, 2)


def test_average_of_equal_errors_has_the_summed_degrees_of_freedom() -> None:
    average = average_difference([difference(0.0, 0.02, 11)] * 3)
    assert average.stderr == pytest.approx(0.02 / math.sqrt(3))
    assert average.high == pytest.approx(scipy_stats.t.ppf(0.975, 30) * 0.02 / math.sqrt(3))


def test_average_without_an_error_says_none() -> None:
    average = average_difference([difference(0.1, 0.03), difference(-0.3, None)])
    assert (average.stderr, average.low, average.high) == (None, None, None)
    assert average.difference == pytest.approx(-0.1)
    still = average_difference([difference(0.0, 0.0)])
    assert (still.low, still.high) == (0.0, 0.0)
    with pytest.raises(ValueError, match="no task"):
        average_difference([])
