"""A small version of the simulation in benchmarks/, and its item-level model against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import operating_characteristics as simulated


def three_errors(share: float, runs: int) -> float:
    return 3 * math.sqrt(share * (1 - share) / runs)


def test_flip_share_at_even_odds_is_the_arc_cosine() -> None:
    """Sheppard's formula: two normals of correlation r differ in sign with probability arccos(r) / pi."""
    for correlation in (0.2, 0.9, 0.99):
        assert simulated.flip_share(0.5, correlation) == pytest.approx(math.acos(correlation) / math.pi, abs=1e-6)


def test_paths_have_the_planted_accuracy_and_flips() -> None:
    """40,000 items: three standard errors."""
    generator = np.random.default_rng(0)
    accuracies = np.array([0.65, 0.60, 0.65, 0.65, 0.65])
    scores = simulated.paths(generator, 40_000, 0.10, accuracies)
    for found, planted in zip(scores.mean(axis=1), accuracies, strict=True):
        assert found == pytest.approx(planted, abs=three_errors(planted, 40_000))
    flips = np.mean(scores[-1] != scores[0])
    assert flips == pytest.approx(0.10, abs=three_errors(0.10, 40_000))


def test_pure_noise_is_rarely_called_a_change() -> None:
    """The promise is at most 5 % of runs; 120 runs may show three standard errors more. Uncorrected it is most runs."""
    found = simulated.null_cell(200, 0.10, 10, runs=120, seed=7)
    assert found["false verdict, % of runs"] <= 100 * (0.05 + three_errors(0.05, 120))
    assert found["whole band covers, %"] >= 100 * (0.95 - three_errors(0.95, 120))
    assert found["some uncorrected interval excludes 0, % of runs"] > 40


def test_planted_changes_are_seen_and_small_ones_are_not_called_stable() -> None:
    """A final loss of 8 points at n = 2000 and 5 % flips is about 15 standard errors, a dip of 8 likewise."""
    found = simulated.power_cell(2000, 0.05, 10, runs=12, seed=7)
    assert found["decline of 8 points: declined, %"] == 100
    assert found["dip of 8 points: dipped and recovered, %"] == 100
    assert found["dip of 8 points: called stable, %"] == 0


def test_the_peak_is_inside_its_interval() -> None:
    found = simulated.peak_cell(500, 0.10, 10, runs=60, seed=7)
    for name, share in found.items():
        if name.endswith("interval holds the peak, %"):
            assert share >= 100 * (0.95 - three_errors(0.95, 60)), name
    assert found["then 8 points down: peaked and decays, %"] > found["then level: peaked and decays, %"] + 50


def test_every_interval_covers() -> None:
    """95 ± 1 % is shown by the full simulation; 300 runs show it to three standard errors, ± 3.8 %."""
    found = simulated.coverage_cell(200, 0.10, 10, runs=300, seed=7)
    assert len(found) == 10
    for name, share in found.items():
        runs = 150 if name in ("time-averaged drift", "paired difference (bootstrap)") else 300
        if name.startswith("over three seeds"):
            # The wider of two intervals: at least 95 %, and more where seeds and items err alike.
            assert share >= 95 - 100 * three_errors(0.95, runs), name
        else:
            assert share == pytest.approx(95, abs=100 * three_errors(0.95, runs) + 1), name


def test_planted_shapes() -> None:
    assert simulated.triangle(4, 0.08) == pytest.approx([0, -0.04, -0.08, -0.04, 0])
    assert simulated.ramp(4, 0.08) == pytest.approx([0, -0.02, -0.04, -0.06, -0.08])
    assert simulated.rise(6, 0.1)[4] == pytest.approx(0.6)
    assert simulated.rise(6, 0.1)[-1] == pytest.approx(0.5)
