"""From member rewards to the coefficients of the update (LIT-211, LIT-238)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# The papers' guard against a zero standard deviation; part of the published formula.
EPSILON = 1e-8


def z_scores(rewards: Sequence[float]) -> tuple[float, ...]:
    """``(R - mean) / (population standard deviation + 1e-8)``, in float64; all zero when all rewards are equal."""
    values = np.asarray(rewards, dtype=np.float64)
    # The mean of equal numbers need not equal them in floating point, and 1e-17 / 1e-8 would be a step.
    if values.min() == values.max():
        return (0.0,) * len(values)
    scores = (values - values.mean()) / (values.std() + EPSILON)
    return tuple(float(score) for score in scores)


def coefficients(rewards: Sequence[float], *, mirrored: bool) -> tuple[float, ...]:
    """One coefficient per noise draw.

    Plain: the z-scores. Mirrored: ``rewards`` holds all plus members, then all minus members in the same order;
    all N are standardised together and a pair's coefficient is ``z_plus - z_minus``.
    """
    scores = z_scores(rewards)
    if not mirrored:
        return scores
    half = len(scores) // 2
    return tuple(plus - minus for plus, minus in zip(scores[:half], scores[half:], strict=True))
