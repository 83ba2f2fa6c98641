"""Power against the reference table, simulation and exact inversion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from driftlab.drift.power import (
    items_needed,
    minimal_detectable_difference,
    outlook,
    planned_critical_values,
    walk_correlation,
)  # fmt: skip


@pytest.mark.parametrize(
    ("n", "flips", "effect", "points"),
    [
        # Computed independently for the project's reference page: points at two-sided 5 %, power 80 %.
        (200, 0.05, 1, 4.4), (200, 0.10, 1, 6.2), (200, 0.20, 1, 8.7), (200, 0.10, 2, 8.5),
        (500, 0.05, 1, 2.8), (500, 0.10, 1, 3.9), (500, 0.30, 1, 6.8), (500, 0.10, 2, 5.5),
        (1172, 0.15, 1, 3.2), (2000, 0.05, 1, 1.4), (2000, 0.10, 1, 2.0), (10_042, 0.20, 1, 1.3),
    ],
)  # fmt: skip
def test_the_reference_table(n: int, flips: float, effect: float, points: float) -> None:
    found = minimal_detectable_difference(n, flips, design_effect=effect)
    # Printed with one decimal; its formula gives 4.345 and 6.145 where 4.4 and 6.2 are printed.
    assert 100 * found == pytest.approx(points, abs=0.056)


def test_bonferroni_rows_of_the_reference() -> None:
    """10 and 20 checkpoints, 10 % flips: 5.1 and 5.4 points at n = 500, 2.6 and 2.7 at n = 2000."""
    for n, checkpoints, points in ((500, 10, 5.1), (500, 20, 5.4), (2000, 10, 2.6), (2000, 20, 2.7)):
        critical = float(scipy_stats.norm.ppf(1 - 0.025 / checkpoints))
        found = minimal_detectable_difference(n, 0.10, critical=critical)
        assert 100 * found == pytest.approx(points, abs=0.051)


def test_items_needed_inverts_the_detectable_difference() -> None:
    for n, flips in ((200, 0.1), (731, 0.07), (5000, 0.2)):
        difference = minimal_detectable_difference(n, flips)
        assert items_needed(difference, flips) == pytest.approx(n, abs=1)
    assert items_needed(-0.04, 0.1) == items_needed(0.04, 0.1)


def test_power_is_what_it_says_by_simulation() -> None:
    """A plain z test of simulated flips at the detectable difference finds it 80 % of the time.

    20,000 runs: standard error 0.0028; the normal approximation of the power itself is good to about a point at n=500.
    """
    n, flips = 500, 0.10
    difference = minimal_detectable_difference(n, flips)
    rng = np.random.default_rng(11)
    lost, gained, _ = rng.multinomial(n, [(flips + difference) / 2, (flips - difference) / 2, 1 - flips], 20_000).T
    change = (gained - lost) / n
    error = np.sqrt(((gained + lost) / n - change**2) / n)
    assert np.mean(np.abs(change) > 1.96 * error) == pytest.approx(0.80, abs=0.02)


def test_looking_at_many_checkpoints_costs_less_than_bonferroni() -> None:
    one = planned_critical_values(500, 0.1, 2, 1)
    many = planned_critical_values(500, 0.1, 20, 4)
    single = float(scipy_stats.t.ppf(1 - 0.025 / 2, 499))
    assert (one.path, one.final) == pytest.approx((single, single), abs=0.06)  # Monte Carlo, see test_bands
    assert single < many.final < scipy_stats.t.ppf(1 - 0.025 / (2 * 5), 499)
    assert many.final < many.path < scipy_stats.t.ppf(1 - 0.025 / (2 * 19 * 5), 499)


def test_outlook_puts_the_pieces_together() -> None:
    found = outlook(500, 0.1, 20, 4, margin=0.05)
    assert found.visible_once == minimal_detectable_difference(500, 0.1)
    assert found.visible_once < found.visible_final < found.visible_dip
    needed = found.needed[0.05]
    assert needed is not None
    assert minimal_detectable_difference(needed, 0.1, critical=found.critical.final) == pytest.approx(0.05, rel=0.002)
    assert found.needed[0.10] is not None
    assert outlook(500, 0.05, 20, 4, margin=0.05).needed[0.10] is None
    # An unchanged task: both ends inside the margin with 80 % by two one-sided tests, z(0.9) = 1.2816.
    half = (found.critical.final + 1.2816) * math.sqrt((0.1 + 1 / 500) / found.items_for_stable)
    assert half == pytest.approx(0.05, rel=0.002)


def test_walk_correlation_is_that_of_a_brownian_path_times_what_is_shared() -> None:
    found = walk_correlation(4)
    assert np.diag(found) == pytest.approx(np.ones(4))
    assert found[0, 3] == pytest.approx(0.9 * math.sqrt(1 / 4))
    assert np.linalg.eigvalsh(found).min() > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimal_detectable_difference(0, 0.1), "at least one item"),
        (lambda: minimal_detectable_difference(10, 1.1), "between 0 and 1"),
        (lambda: minimal_detectable_difference(10, 0.1, power=1.0), "power"),
        (lambda: items_needed(0.2, 0.1), "needs at least that share of items to flip"),
        (lambda: items_needed(0.0, 0.1), "needs at least"),
        (lambda: outlook(100, 0.1, 1, 4, margin=0.05), "2 checkpoints after the base"),
        (lambda: outlook(100, float("nan"), 5, 4, margin=0.05), "flip rate"),
        (lambda: outlook(100, 0.1, 5, 4, margin=0.0), "stability margin"),
        (lambda: outlook(100, 0.1, 5, 4, margin=0.05, design_effect=0.5), "design effect"),
    ],
)
def test_impossible_questions_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
