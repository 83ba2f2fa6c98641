"""Squares in float16: cases worked out by hand, torch's own sum, and simulation."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from driftlab.drift.rounding import (
    LAWS,
    VANISHING,
    Law,
    consistent_norm,
    half_squared_norm,
    kept_share,
    read_norm,
)

SMALLEST = 2.0**-24  # the smallest positive float16 number
D = 1_777_088_000  # Qwen2.5-1.5B, tied embedding twice


def test_differences_up_to_the_threshold_vanish() -> None:
    """2^-12.5 = 1.41421 x 2^-13 lies between 1 + 424/1024 = 1.41406 and 1 + 425/1024 = 1.41504, times 2^-13."""
    last, first = (1 + 424 / 1024) * 2.0**-13, (1 + 425 / 1024) * 2.0**-13
    assert last < VANISHING < first
    assert half_squared_norm(np.full(1000, last)) == 0.0
    # Its square, 1.00119 x 2^-25, is rounded up to 2^-24.
    assert half_squared_norm(np.array([first])) == 2.0**-12


@pytest.mark.parametrize(
    ("differences", "norm"),
    [
        ([3.0, -4.0], 5.0),
        ([2.0**-12], 2.0**-12),  # the square is the smallest number itself
        ([1.25 * 2.0**-12], math.sqrt(2.0) * 2.0**-12),  # 1.5625 units of 2^-24 become 2
        ([1.21875 * 2.0**-12], 2.0**-12),  # 1.4854 units become 1
        ([1.0] * 2049, math.sqrt(2048.0)),  # the sum, exact in float32, ties to even in float16
        ([1.0] * 2051, math.sqrt(2052.0)),
        ([255.875], math.sqrt(65472.0)),  # 65472.02
        ([256.0], math.inf),  # 65536 is beyond the largest number, 65504
        ([16.0] * 300, math.inf),  # each square fits, their sum does not
        ([], 0.0),
    ],
)
def test_by_hand(differences: list[float], norm: float) -> None:
    assert half_squared_norm(np.array(differences)) == norm


def test_nan_stays_nan() -> None:
    assert math.isnan(half_squared_norm(np.array([1.0, math.nan])))


def test_no_square_ties() -> None:
    """No float16 number has a square half-way between two multiples of 2^-24, so how ties round never matters here.

    m 2^e squared is m^2 2^2e; half-way is an odd number times 2^-25, and an odd power of two is no square's.
    """
    numbers = np.arange(1, 0x2400, dtype=np.uint16).view(np.float16)  # up to 2^-6: squares up to 2^-12
    halves = [Fraction(float(number)) ** 2 / Fraction(SMALLEST) % 1 for number in numbers]
    assert Fraction(1, 2) not in halves


@pytest.mark.parametrize("scale", [3e-5, 3e-4, 2e-3, 0.1])
def test_torch_sums_half_tensors_so(scale: float) -> None:
    differences = np.random.default_rng(5).standard_t(3, 100_000) * scale
    half = torch.from_numpy(differences).half()
    expected = math.sqrt(float(torch.sum(half**2)))
    # The order of float32 additions is torch's own: at most one unit in the last place of float16 in the square.
    assert half_squared_norm(differences) == pytest.approx(expected, rel=2.0**-11)
    assert half_squared_norm(half.numpy()) == half_squared_norm(differences)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("rms", [5e-5, 1e-4, 7e-4])
def test_kept_share_is_what_simulation_finds(law: Law, rms: float) -> None:
    rng = np.random.default_rng(3)
    draws = {
        "normal": lambda n: rng.standard_normal(n),
        "laplace": lambda n: rng.laplace(size=n) / math.sqrt(2.0),
        "student-t3": lambda n: rng.standard_t(3, n) / math.sqrt(3.0),
    }[law]
    x = draws(1_000_000) * rms
    kept = np.square(x.astype(np.float16)).astype(np.float64)
    # What is lost has light tails; what is kept of Student's t(3) would be found only slowly.
    share = math.sqrt(1.0 - float(np.mean(np.square(x) - kept)) / rms**2)
    assert kept_share(law, rms) == pytest.approx(share, rel=0.01)


def test_ordinary_sizes_keep_their_norm() -> None:
    """ES-sized differences: squares far above 2^-24, each off by at most a relative 2^-11."""
    for law in LAWS:
        assert kept_share(law, 1e-2) == pytest.approx(1.0, abs=2e-4)


def test_the_light_tail_by_quadrature() -> None:
    """Normal, rms 4e-5: what is kept rounds to 1, 2 or 3 times 2^-24, from 0.5, 1.5 and 2.5 times 2^-24 on."""
    rms = 4e-5
    tail = [math.erfc(math.sqrt(k) * 2.0**-12 / rms / math.sqrt(2.0)) for k in (0.5, 1.5, 2.5)]
    share = math.sqrt(SMALLEST * sum(tail)) / rms
    # Differences are themselves rounded to 2^-23 steps, 1/1400 of the threshold: a percent of the tail's mass.
    assert kept_share("normal", rms) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("law", LAWS)
def test_consistent_norm_inverts_the_reading(law: Law) -> None:
    for norm in (0.9, 1.3, 88.0):
        assert consistent_norm(law, read_norm(law, norm, D), D) == pytest.approx(norm, rel=1e-6)


def test_grpo_reading_of_the_paper() -> None:
    """0.084 over 1.777e9 differences is a mean square of 3.97e-12, 6.7e-5 smallest numbers a difference.

    Normal: the share beyond 1.73e-4 must be a little under that, 4.0 deviations: rms about 1.73e-4 / 4, norm 1.8.
    Laplace: exp(-sqrt(2) 1.73e-4 / rms) = 6e-5 or so: rms about 2.5e-5, norm 1.06.
    """
    assert consistent_norm("normal", 0.084, D) == pytest.approx(1.83, abs=0.03)
    assert consistent_norm("laplace", 0.084, D) == pytest.approx(1.06, abs=0.03)
    assert consistent_norm("student-t3", 0.084, D) < consistent_norm("laplace", 0.084, D)


def test_nothing_and_too_much_are_refused() -> None:
    assert read_norm("normal", 0.0, D) == 0.0
    with pytest.raises(ValueError, match="positive"):
        kept_share("normal", 0.0)
    with pytest.raises(ValueError, match="no plausible norm"):
        consistent_norm("normal", 1e9, D)
