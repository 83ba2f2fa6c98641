"""Anchored Weight Decay (LIT-238): the pull towards the base weights after each ES step.

    L2:     theta <- theta_0 + (1 - alpha*lambda) * (theta - theta_0)
    L1:     theta <- theta_0 + sign(theta - theta_0) * max(|theta - theta_0| - alpha*lambda, 0)
    Huber:  theta <- theta - alpha*lambda * min(max(theta - theta_0, -delta), delta)

Huber pulls like L2 within ``delta`` of the base and with the constant force of L1 beyond; it needs no soft threshold,
because with alpha*lambda < 1 a step never passes the base.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from driftlab.es.precision import Array, Dtype, rounded

Penalty = Literal["none", "l1", "l2", "huber"]


def anchored(
    theta: Array,
    base: Array,
    *,
    penalty: Penalty,
    decay: float,
    delta: float | None = None,
    dtype: Dtype = "float32",
) -> Array:
    """``theta`` after one pull towards ``base``; where it takes nothing, ``theta`` unchanged, bit for bit.

    Args:
        decay: alpha times lambda: the share taken (L2, Huber within ``delta``) or the threshold (L1).
        delta: where Huber's pull stops growing, in units of the weights; None for the other penalties.
        dtype: format to which the result of every single operation is rounded, as published code has it; the
            default rounds nowhere beyond float32.

    Raises:
        ValueError: Huber without delta.
    """
    if penalty == "none" or decay == 0.0:
        return theta
    difference = rounded(theta - base, dtype)
    if penalty == "l2":
        kept = rounded(difference * np.float32(1.0 - decay), dtype)
    elif penalty == "l1":
        shrunk = np.maximum(rounded(np.abs(difference) - np.float32(decay), dtype), np.float32(0.0))
        kept = np.copysign(shrunk, difference)
    else:
        if delta is None:
            raise ValueError("a Huber penalty needs delta")
        pull = rounded(np.clip(difference, np.float32(-delta), np.float32(delta)) * np.float32(decay), dtype)
        kept = rounded(difference - pull, dtype)
    return rounded(base + kept, dtype)


def pull(theta: Array, base: Array, *, penalty: Penalty, decay: float, delta: float | None = None) -> Array:
    """What ``anchored`` takes off in exact arithmetic, to float32: minus the decay, of the shape of ``theta``.

    Computed from the difference and never as a difference of weights, so that a pull far below the spacing of float32
    at ``theta`` keeps its digits.
    """
    difference = theta - base
    if penalty == "none":
        return np.zeros_like(difference)
    if penalty == "l1":
        return np.clip(difference, np.float32(-decay), np.float32(decay))
    if penalty == "huber":
        if delta is None:
            raise ValueError("a Huber penalty needs delta")
        difference = np.clip(difference, np.float32(-delta), np.float32(delta))
    return difference * np.float32(decay)
