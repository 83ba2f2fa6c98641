"""Verdicts on curves whose truth is planted, one per word, and the quantities beside them against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from driftlab.drift.bands import Curve
from driftlab.drift.curves import Critical, prior_verdict, run_critical_values, too_short

STEPS = (10, 20, 30, 40)
CRITICAL = Critical(path=3.0, final=2.0, back=3.0)


def curve(change: tuple[float, ...], sd: float = 0.01, shared: float = 0.5) -> Curve:
    """Equal errors ``sd`` at every checkpoint, correlated by ``shared``: a difference of two has the error sd too."""
    k = len(change)
    covariance = sd**2 * (np.full((k, k), shared) + (1 - shared) * np.eye(k))
    values = np.array(change)
    counts = np.round(1000 * np.abs(values))
    return Curve(change=values, covariance=covariance, n=1000, freedom=999, gained=counts, lost=counts)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ((0.0, 0.01, -0.01, 0.0), "stable"),  # ±3 points around at most one: within ±5
        ((-0.03, -0.10, -0.05, 0.0), "dipped and recovered"),
        ((-0.03, -0.05, -0.06, -0.07), "declined"),
        ((0.01, -0.08, 0.02, 0.06), "gained"),  # the end decides, a dip before it is in the numbers
        ((0.08, 0.10, 0.02, 0.0), "gained and settled back"),
        ((0.0, -0.021, 0.0, 0.0), "cannot say"),  # not a change, but a fall of 5.1 is not excluded
        ((0.0, -0.04, -0.025, -0.019), "cannot say"),  # fell, and may or may not have come back
    ],
)
def test_words(change: tuple[float, ...], word: str) -> None:
    assert prior_verdict(curve(change), STEPS, CRITICAL).word == word


def test_a_return_must_end_within_the_margin() -> None:
    """The end, −1.9 points, has come back from −10; its interval reaches down to −1.9 − 2 * 1 = −3.9."""
    found = curve((-0.10, -0.06, -0.04, -0.019))
    assert prior_verdict(found, STEPS, CRITICAL, margin=0.040).word == "dipped and recovered"
    assert prior_verdict(found, STEPS, CRITICAL, margin=0.038).word == "cannot say"


def test_the_deepest_point_needs_the_corrected_interval_not_its_own() -> None:
    """−2.5 standard errors would be a change for one look; for this many looks it is none."""
    found = prior_verdict(curve((0.0, -0.025, 0.0, 0.0)), STEPS, CRITICAL)
    assert found.word == "cannot say"
    assert "no change is distinguishable from 0" in found.reason
    assert prior_verdict(curve((0.0, -0.025, 0.0, 0.0)), STEPS, Critical(2.0, 2.0, 2.0)).word == "dipped and recovered"


def test_points_and_what_came_back() -> None:
    found = prior_verdict(curve((-0.03, -0.10, -0.05, 0.0)), STEPS, CRITICAL)
    assert (found.lowest.step, found.lowest.change) == (20, -0.10)
    assert (found.lowest.low, found.lowest.high) == pytest.approx((-0.13, -0.07))
    assert found.came_back is not None
    # Var(a - b) = 2 sd^2 (1 - 0.5) = sd^2.
    assert (found.came_back.change, found.came_back.low, found.came_back.high) == pytest.approx((0.10, 0.07, 0.13))
    assert (found.final.step, found.highest.step) == (40, 40)
    assert found.drawdown == pytest.approx(0.10)
    lowest_last = prior_verdict(curve((0.0, -0.01, -0.02, -0.09)), STEPS, CRITICAL)
    assert lowest_last.came_back is None


def test_drawdown_counts_falls_from_any_earlier_value() -> None:
    assert prior_verdict(curve((0.06, -0.02, 0.01, 0.0)), STEPS, CRITICAL).drawdown == pytest.approx(0.08)
    assert prior_verdict(curve((0.01, 0.02, 0.03, 0.04)), STEPS, CRITICAL).drawdown == 0.0


def test_drawdown_of_noise_against_its_closed_form() -> None:
    """All checkpoints tied: the fall is max(0, -Z) sd once, whose 95 % quantile is 1.645 sd.

    2000 draws put the quantile's level within 3 * 0.0049, that is the quantile within 0.14 sd.
    """
    found = prior_verdict(curve((0.0, 0.0, 0.0, 0.0), shared=1.0), STEPS, CRITICAL)
    assert found.drawdown_noise == pytest.approx(0.01645, abs=0.0015)


def test_time_average_is_the_area_under_the_curve() -> None:
    steps = (10, 20, 60)
    change = (-0.02, -0.04, 0.0)
    found = prior_verdict(curve(change), steps, CRITICAL).average
    area = (0.5 * 10 * -0.02) + 10 * -0.03 + 40 * -0.02
    assert found.change == pytest.approx(area / 60)
    weights = np.array([10, 25, 20]) / 60
    covariance = 1e-4 * (np.full((3, 3), 0.5) + 0.5 * np.eye(3))
    error = math.sqrt(weights @ covariance @ weights)
    assert (found.high - found.low) / 2 == pytest.approx(1.9623 * error, rel=1e-4)  # t quantile, 999 degrees


def test_items_needed_scale_with_the_square_of_the_width() -> None:
    wide = prior_verdict(curve((0.0, 0.0, 0.0, 0.0), sd=0.03), STEPS, CRITICAL)
    assert wide.word == "cannot say"
    assert wide.items_needed == math.ceil(1000 * (0.09 / 0.05) ** 2)
    assert "about 3,300 items would do" in wide.reason
    assert prior_verdict(curve((0.0, 0.0, 0.0, 0.0)), STEPS, CRITICAL).items_needed is None
    # Off centre: the room left by a change of 2.1 points is 2.9, the half width 3.
    off = prior_verdict(curve((0.0, -0.021, 0.0, 0.0)), STEPS, CRITICAL)
    assert off.items_needed == math.ceil(1000 * (0.03 / 0.029) ** 2)
    # No number of items makes a change beyond the margin stable.
    beyond = prior_verdict(curve((0.0, -0.06, 0.0, 0.0), sd=0.03), STEPS, CRITICAL)
    assert (beyond.word, beyond.items_needed) == ("cannot say", None)


def test_a_curve_needs_three_checkpoints() -> None:
    assert too_short(3) is None
    assert "2 were measured" in (too_short(2) or "")
    with pytest.raises(ValueError, match="3 checkpoints, base included, and 2 were measured"):
        prior_verdict(curve((0.0,)), (10,), CRITICAL)


def test_the_final_step_has_half_the_error_to_itself() -> None:
    """Three tasks and their mean at 97.5 %: more than one look (2.24), at most Bonferroni's four (2.73)."""
    found = run_critical_values([curve((0.0,) * 4)] * 3, averaged=range(3), seed=0)
    assert 2.24 < found.final < 2.74
    assert found.final < found.path
    assert found.along(4) == pytest.approx([found.path] * 3 + [found.final])
    one = run_critical_values([curve((0.0,) * 2)], averaged=(0,), seed=0)
    assert one.final == pytest.approx(one.path, abs=0.1)  # one look each
    assert one.back < one.final  # one look at 95 %
