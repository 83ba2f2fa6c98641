"""The target's curve: planted shapes, coverage of the peak by simulation, and the late slope by least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.drift.bands import paired_curve
from driftlab.drift.peaks import FROM_THE_START, Level, level_of, peak_set, pooled, reward_level, target_verdict


def level(values: list[float], sd: float = 0.01, freedom: int = 1000) -> Level:
    return Level(
        steps=tuple(range(0, 10 * len(values), 10)),
        value=np.array(values),
        covariance=sd**2 * np.eye(len(values)),
        freedom=freedom,
    )


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([0.1, 0.3, 0.5, 0.7, 0.62, 0.55], "peaked and decays"),
        ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "still rising"),
        ([0.1, 0.4, 0.6, 0.6, 0.6, 0.6], "plateau"),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1], "cannot say"),  # nothing rose
        ([0.7, 0.6, 0.5, 0.4, 0.3, 0.2], "peaked and decays"),  # from its start
    ],
)
def test_words(values: list[float], word: str) -> None:
    assert target_verdict(level(values)).word == word


def test_a_fall_from_the_start_says_so() -> None:
    assert target_verdict(level([0.7, 0.6, 0.5, 0.4])).reason.startswith(FROM_THE_START)


def test_a_noisy_late_change_is_not_called_level() -> None:
    found = target_verdict(level([0.1, 0.5, 0.6, 0.58, 0.61, 0.6], sd=0.05))
    assert found.word == "cannot say"
    assert "too uncertain" in found.reason


def test_peak_and_its_interval() -> None:
    found = target_verdict(level([0.1, 0.3, 0.69, 0.7, 0.69, 0.5]))
    assert (found.peak, found.low, found.high) == (30, 20, 40)
    assert found.fallen == pytest.approx(0.2)


def test_two_levels_are_compared_by_a_one_sided_t() -> None:
    """One competitor: left out when the difference exceeds t(0.95) sqrt 2 sd; 4000 draws, level within 0.0103."""
    cut = math.sqrt(2) * 0.01
    for factor, kept in ((scipy_stats.t.ppf(0.94 - 0.0103, 30), 2), (scipy_stats.t.ppf(0.96 + 0.0103, 30), 1)):
        assert len(peak_set(level([0.0, factor * cut], freedom=30), seed=0)) == kept


def test_the_true_peak_is_kept_in_95_of_100_curves() -> None:
    """400 simulated curves with one true peak and close competitors, known errors.

    At least 95 % in expectation; 400 runs have a standard error of 1.1 %, so 92 % is three below.
    """
    truth = np.array([0.0, 0.3, 0.5, 0.6, 0.605, 0.6, 0.59])
    rng = np.random.default_rng(0)
    held = 0
    for run in range(400):
        drawn = truth + 0.02 * rng.standard_normal(len(truth))
        held += int(np.argmax(truth)) in peak_set(level(list(drawn), sd=0.02), seed=run)
    assert held / 400 > 0.92


def test_a_level_curve_is_rarely_called_anything_else() -> None:
    """Under equal true levels every word but *cannot say* is wrong; at most 5 %, 400 runs, three standard errors."""
    rng = np.random.default_rng(1)
    words = [target_verdict(level(list(0.02 * rng.standard_normal(8)), sd=0.02), seed=run).word for run in range(400)]
    assert sum(word != "cannot say" for word in words) / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_long_reward_curves_are_averaged_in_groups() -> None:
    """250 iterations in groups of three: means of means, variance of a mean of three independent ones."""
    rewards = [(0.1 * i, 0.1 * i + 0.2) for i in range(250)]
    found = reward_level(range(1, 251), rewards)
    assert len(found.steps) == 84
    assert (found.steps[0], found.steps[-1]) == (2, 250)
    assert found.value[0] == pytest.approx(0.2)  # mean of 0.1, 0.2, 0.3
    assert found.covariance[0, 0] == pytest.approx(0.02 / 2 / 3)


def test_late_change_is_numpys_line() -> None:
    values = [0.1, 0.2, 0.4, 0.5, 0.52, 0.58, 0.55, 0.6, 0.63]
    found = target_verdict(level(values)).late
    slope = np.polyfit([60, 70, 80], values[-3:], 1)[0]
    assert (found.step, found.change) == (60, pytest.approx(20 * slope))
    # Var of a least-squares slope: sd^2 / sum (t - mean)^2 = sd^2 / 200, times 20^2.
    half = scipy_stats.t.ppf(0.975, 1000) * 0.01 * math.sqrt(400 / 200)
    assert found.high - found.change == pytest.approx(half)


def test_level_of_a_paired_curve_starts_at_zero_without_error() -> None:
    rng = np.random.default_rng(2)
    scores = (rng.random((4, 200)) < [[0.3], [0.5], [0.6], [0.6]]).astype(float)
    curve = paired_curve(scores, [str(i) for i in range(200)])
    found = level_of(curve, (5, 10, 15))
    assert found.steps == (0, 5, 10, 15)
    assert found.value[0] == 0.0
    assert found.value[1:] == pytest.approx(curve.change)
    assert not found.covariance[0].any()


def test_reward_errors_come_from_the_members() -> None:
    rewards = [(0.1, 0.3, 0.2), (0.5, 0.5, 0.8)]
    found = reward_level((1, 2), rewards)
    assert found.value == pytest.approx([0.2, 0.6])
    assert np.diag(found.covariance) == pytest.approx([0.01 / 3, 0.03 / 3])
    assert found.freedom == 2


def test_seeds_add_their_scatter() -> None:
    found = pooled([level([0.0, 0.2, 0.3]), level([0.0, 0.4, 0.3]), level([0.0, 0.3, 0.3])])
    assert found.value == pytest.approx([0.0, 0.3, 0.3])
    # Variance of 0.2, 0.4, 0.3 is 0.01.
    assert found.covariance[1, 1] == pytest.approx(1e-4 + 0.01 / 3)
    assert found.covariance[2, 2] == pytest.approx(1e-4)
    assert found.freedom == 2


def test_short_curves_are_refused() -> None:
    with pytest.raises(ValueError, match="3 checkpoints"):
        target_verdict(level([0.1, 0.2]))
