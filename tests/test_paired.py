"""McNemar, Holm, retention, seeds, bootstrap and pass@k against hand calculation, enumeration and SciPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.drift.paired import bootstrap_intervals, holm, mcnemar_midp, over_seeds, pass_at_k, retention
from driftlab.drift.stats import Interval


def own(n: int) -> list[str]:
    return [str(i) for i in range(n)]


@pytest.mark.parametrize(("gained", "lost"), [(0, 1), (1, 6), (9, 3), (0, 10), (20, 35)])
def test_midp_is_the_exact_p_minus_half_the_observed_probability(gained: int, lost: int) -> None:
    exact = scipy_stats.binomtest(min(gained, lost), gained + lost, 0.5).pvalue
    observed = math.comb(gained + lost, gained) / 2 ** (gained + lost)
    assert mcnemar_midp(gained, lost) == pytest.approx(exact - observed, rel=1e-9)
    assert mcnemar_midp(gained, lost) == mcnemar_midp(lost, gained)


def test_midp_without_a_change_or_with_equal_counts_is_one() -> None:
    assert mcnemar_midp(0, 0) == mcnemar_midp(7, 7) == 1.0
    with pytest.raises(ValueError, match="negative"):
        mcnemar_midp(-1, 2)


@pytest.mark.parametrize(("n", "flips"), [(100, 0.1), (200, 0.05), (200, 0.2), (500, 0.1)])
def test_midp_keeps_its_level_by_enumeration(n: int, flips: float) -> None:
    """Size at 5 % over all outcomes of n items; Fagerland et al. 2013 find at most 5.35 %."""
    size = 0.0
    for changed, weight in enumerate(scipy_stats.binom.pmf(np.arange(n + 1), n, flips)):
        if weight > 1e-12:
            p = [mcnemar_midp(k, changed - k) for k in range(changed + 1)]
            share = scipy_stats.binom.pmf(np.arange(changed + 1), changed, 0.5) @ (np.array(p) <= 0.05)
            size += weight * float(share)
    assert 0.04 < size < 0.0535


def test_holm_by_hand() -> None:
    # Ordered 0.01, 0.02, 0.04, 0.5 times 4, 3, 2, 1 with a running maximum.
    assert holm([0.04, 0.01, 0.5, 0.02]) == pytest.approx((0.08, 0.04, 0.5, 0.06))
    assert holm([0.02, 0.03]) == pytest.approx((0.04, 0.04))
    assert holm([0.9, 0.8]) == (1.0, 1.0)
    assert holm([]) == ()


def test_retention_value_and_the_meaning_of_its_ends() -> None:
    rng = np.random.default_rng(3)
    base = (rng.random(400) < 0.62).astype(float)
    tuned = np.where(rng.random(400) < 0.1, 1 - base, base)
    found = retention(base, tuned, 0.25, own(400))
    assert found is not None
    assert found.value == pytest.approx((tuned.mean() - 0.25) / (base.mean() - 0.25))
    # Fieller: at each end the contrast tuned - chance - r (base - chance) is exactly t standard errors from 0.
    quantile = scipy_stats.t.ppf(0.975, 399)
    for ratio in (found.low, found.high):
        contrast = (tuned - 0.25) - ratio * (base - 0.25)
        error = math.sqrt(contrast.var(ddof=1) / 400 + 1 / 400**2)  # the added half counts, see stats.HALF_COUNTS
        assert abs(contrast.mean()) == pytest.approx(quantile * error, rel=1e-9)
    assert found.low < found.value < found.high


def test_retention_is_not_defined_where_the_base_guesses() -> None:
    base = np.array([1.0, 0.0, 0.0, 0.0] * 25)
    assert retention(base, base, 0.25, own(100)) is None
    assert retention(base, base, 0.3, own(100)) is None
    one = retention(np.ones(4), np.array([1.0, 1, 1, 0]), 0.0, ["same"] * 4)
    assert one is not None
    assert (one.value, one.low, one.high) == (0.75, None, None)


def test_published_chance_correction() -> None:
    """0.58 from 0.62 on four options is 0.892; the raw ratio is 0.935."""
    base, tuned = np.repeat([1.0, 0.0], [62, 38]), np.repeat([1.0, 0.0], [58, 42])
    found = retention(base, tuned, 0.25, own(100))
    assert found is not None
    assert found.value == pytest.approx(0.33 / 0.37)
    assert f"{found.value:.3f}" == "0.892"


def test_over_seeds_is_the_t_interval() -> None:
    values = [-0.007, -0.047, -0.012]
    found = over_seeds(values)
    interval = scipy_stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert (found.mean, found.sd) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    # Never narrower than the items' own interval: three equal seeds know nothing about it.
    tied = over_seeds([-0.004] * 3, Interval(-0.02, 0.012))
    assert (tied.low, tied.high) == (-0.02, 0.012)
    wide = over_seeds(values, Interval(-0.03, -0.01))
    assert (wide.low, wide.high) == (found.low, found.high)
    one = over_seeds([0.3])
    assert (one.mean, one.sd, one.low, one.high, one.n) == (0.3, None, None, None, 1)
    with pytest.raises(ValueError, match="no seed"):
        over_seeds([])


def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_answer() -> None:
    for samples, correct, k in ((10, 3, 4), (6, 1, 2), (5, 5, 1), (8, 0, 8), (7, 4, 5)):
        answers = [index < correct for index in range(samples)]
        subsets = list(itertools.combinations(answers, k))
        share = sum(any(subset) for subset in subsets) / len(subsets)
        assert pass_at_k(samples, correct, k) == pytest.approx(share, abs=1e-12)
    assert pass_at_k(10, 3, 4) == pytest.approx(0.8333, abs=5e-5)  # the naive form gives 0.760
    for bad in ((5, 6, 1), (5, 2, 0), (5, 2, 6)):
        with pytest.raises(ValueError, match="pass@k"):
            pass_at_k(*bad)


def test_bootstrap_of_two_items_by_enumeration() -> None:
    """Two clusters: the four equally likely resamples have means 0, 1/2, 1/2, 1."""
    ends = bootstrap_intervals(np.array([[0.0], [1.0]]), own(2), seed=0, draws=4000, level=0.4)[0]
    # 30th and 70th percentile lie on the two halves.
    assert (ends.low, ends.high) == (0.5, 0.5)
    ends = bootstrap_intervals(np.array([[0.0], [1.0]]), own(2), seed=0, draws=4000, level=0.9)[0]
    assert (ends.low, ends.high) == (0.0, 1.0)


def test_bootstrap_has_the_spread_of_the_clustered_error() -> None:
    """Its interval is the mean ± 1.96 standard errors for many clusters, to Monte-Carlo error and order 1/G.

    4000 draws put the 2.5 % quantile within 0.04 standard deviations; (G - 1)/G is 0.995.
    """
    rng = np.random.default_rng(8)
    clusters = [str(i // 3) for i in range(600)]
    values = np.repeat(rng.normal(size=200), 3) + rng.normal(size=600)
    sums = (values - values.mean()).reshape(200, 3).sum(axis=1)
    error = math.sqrt(np.sum(sums**2)) / 600
    ends = bootstrap_intervals(values[:, None], clusters, seed=1, draws=4000)[0]
    assert (ends.high - ends.low) / 2 == pytest.approx(1.96 * error, rel=0.05)


def test_bootstrap_within_strata_does_not_resample_their_mix() -> None:
    """Values constant within each stratum have no error at all when the mix is fixed."""
    values = np.repeat([[0.0], [1.0], [5.0]], 20, axis=0)
    strata = [str(i // 20) for i in range(60)]
    ends = bootstrap_intervals(values, own(60), strata, seed=2)[0]
    assert (ends.low, ends.high) == pytest.approx((2.0, 2.0))
