"""Simultaneous bands against exact laws: one contrast, independent ones, perfectly tied ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.drift.bands import (
    Curve,
    against_base,
    against_final,
    average_curve,
    band,
    critical_values,
    paired_curve,
)  # fmt: skip
from driftlab.drift.stats import clustered_mean, paired_difference


def own(n: int) -> list[str]:
    return [str(i) for i in range(n)]


def curve(covariance: np.ndarray, clusters: int = 100_000) -> Curve:
    k = len(covariance)
    zeros = np.zeros(k)
    return Curve(change=zeros, covariance=covariance, n=clusters, freedom=clusters - 1, gained=zeros, lost=zeros)


def random_scores(n: int = 300, rows: int = 5, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scores = [(rng.random(n) < 0.6).astype(float)]
    for _ in range(rows - 1):
        scores.append(np.where(rng.random(n) < 0.1, 1 - scores[-1], scores[-1]))
    return np.stack(scores)


def test_each_checkpoint_has_the_paired_difference_and_its_error() -> None:
    scores, clusters = random_scores(), [str(i // 2) for i in range(300)]
    found = paired_curve(scores, clusters)
    for step in range(1, 5):
        pair = paired_difference(scores[0], scores[step], clusters)
        assert found.change[step - 1] == pair.difference
        assert math.sqrt(found.covariance[step - 1, step - 1]) == pytest.approx(pair.stderr)
        assert (found.gained[step - 1], found.lost[step - 1]) == (pair.gained, pair.lost)
    assert (found.n, found.freedom) == (300, 149)


def test_a_difference_of_two_checkpoints_has_its_own_paired_error() -> None:
    scores = random_scores()
    found = paired_curve(scores, own(300))
    ends = band(found, against_final(4), 2.0)
    for early in range(3):
        mean = clustered_mean(scores[4] - scores[early + 1], own(300))
        assert ends.estimate[early] == pytest.approx(mean.mean)
        # Half counts at both checkpoints: 2 / n^2.
        assert ends.stderr[early] == pytest.approx(math.sqrt(mean.stderr**2 + 2 / 300**2))
        assert ends.high[early] - ends.estimate[early] == pytest.approx(2 * ends.stderr[early])


def test_one_contrast_gives_the_t_quantile() -> None:
    """20,000 draws put the 95 % quantile's level within 3 * 0.00154 of 95 %."""
    for clusters in (6, 40):
        (found,) = critical_values([curve(np.eye(1), clusters)], [(np.eye(1), 0.95)], averaged=(), seed=1, draws=20_000)
        level = 1 - 2 * scipy_stats.t.sf(found, clusters - 1)
        assert level == pytest.approx(0.95, abs=0.0047)


def test_independent_contrasts_give_sidaks_value_and_tied_ones_cost_nothing() -> None:
    """Independent normals: (1 - 2 sf(c))^m = 0.95. Perfectly correlated: m = 1. Tolerance as above, in level."""
    for tasks, checkpoints in ((1, 8), (4, 5)):
        (found,) = critical_values(
            [curve(np.eye(checkpoints))] * tasks, [(np.eye(checkpoints), 0.95)], averaged=(), seed=2, draws=20_000
        )
        level = (1 - 2 * scipy_stats.norm.sf(found)) ** (tasks * checkpoints)
        assert level == pytest.approx(0.95, abs=0.0047)
    (tied,) = critical_values([curve(np.ones((8, 8)))], [(np.eye(8), 0.95)], averaged=(), seed=3, draws=20_000)
    assert 1 - 2 * scipy_stats.norm.sf(tied) == pytest.approx(0.95, abs=0.0047)


def test_the_average_counts_among_the_contrasts() -> None:
    """Two independent tasks and their mean (Z1 + Z2)/sqrt 2: the largest of three normals in a plane.

    Its distribution by integration over the angle: the region is a hexagon-like intersection of three strips.
    """
    (found,) = critical_values(
        [curve(np.eye(1)), curve(np.eye(1))], [(np.eye(1), 0.95)], averaged=(0, 1), seed=4, draws=20_000
    )
    angles = (np.arange(200_000) + 0.5) * (2 * math.pi / 200_000)
    largest = np.max(
        [np.abs(np.cos(angles)), np.abs(np.sin(angles)), np.abs(np.cos(angles) + np.sin(angles)) / math.sqrt(2)], axis=0
    )
    # The radius of a planar normal is Rayleigh: P(r < c / largest).
    level = float(np.mean(1 - np.exp(-((found / largest) ** 2) / 2)))
    assert level == pytest.approx(0.95, abs=0.0047)


def test_average_of_curves() -> None:
    first, second = (paired_curve(random_scores(seed=seed), own(300)) for seed in (1, 2))
    mean = average_curve([first, second])
    assert mean.change == pytest.approx((first.change + second.change) / 2)
    assert mean.covariance == pytest.approx((first.covariance + second.covariance) / 4)
    assert mean.n == 600
    a, b = first.covariance[-1, -1], second.covariance[-1, -1]
    assert mean.freedom == pytest.approx((a + b) ** 2 / (a**2 / 299 + b**2 / 299))  # Satterthwaite


def test_bad_scores_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        paired_curve(np.zeros((1, 3)), own(3))
    with pytest.raises(ValueError, match="finite"):
        paired_curve(np.array([[0.0, np.nan], [0, 0]]), own(2))
    with pytest.raises(ValueError, match="one cluster"):
        paired_curve(np.zeros((2, 3)), ["a"] * 3)


def test_same_seed_same_value() -> None:
    curves = [paired_curve(random_scores(), own(300))]
    values = [critical_values(curves, [(against_base(4), 0.95)], averaged=(), seed=5)[0] for _ in range(2)]
    assert values[0] == values[1]
