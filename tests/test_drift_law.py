"""Reward-free runs of the real update code against the random-walk law, in closed form (LIT-235; DESIGN's formulas)."""

from __future__ import annotations

import numpy as np
import pytest

from driftlab.es.seeds import member_seeds
from driftlab.es.shaping import coefficients
from driftlab.es.step import Step
from driftlab.es.update import apply_step

ALPHA, STEPS, REPETITIONS = 0.05, 10, 120
SHAPES = {"a": (20, 10), "b": (50,)}
D = 250


def squared_drifts(population: int, decay: float, *, mirrored: bool) -> np.ndarray:
    """||theta_T - theta_0||^2 of independent runs whose rewards are standard normal draws."""
    rewards = np.random.default_rng([population, int(1000 * decay), int(mirrored)])
    drifts = []
    for repetition in range(REPETITIONS):
        base = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
        weights = {name: w.copy() for name, w in base.items()}
        for t in range(1, STEPS + 1):
            step = Step(
                seeds=member_seeds(repetition, t, population // 2 if mirrored else population),
                coefficients=coefficients(rewards.normal(size=population), mirrored=mirrored),
                population=population,
                alpha=ALPHA,
                penalty="l2",
                decay=decay,
                scheme="keyed",
            )
            apply_step(weights, base, step, previous=None, threads=1)
        drifts.append(sum(float(np.sum(w.astype(np.float64) ** 2)) for w in weights.values()))
    return np.array(drifts)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("population", [2, 12])
def test_mean_squared_drift_is_the_law(population, decay, mirrored):
    """Within 3 standard errors of alpha^2 d T/N, or of its anchored form.

    Plain: the squared z-scores of a population add up to N exactly. Mirrored and independent: the squared pair
    coefficients add up to N * N/(N - 1) on average, because standardising N scores correlates any two by -1/(N - 1).
    """
    drifts = squared_drifts(population, decay, mirrored=mirrored)
    keep = (1 - decay) ** 2
    steps = STEPS if decay == 0 else keep * (1 - keep**STEPS) / (1 - keep)
    law = ALPHA**2 * D / population * steps * (population / (population - 1) if mirrored else 1.0)
    assert abs(drifts.mean() - law) < 3 * drifts.std(ddof=1) / np.sqrt(REPETITIONS)
