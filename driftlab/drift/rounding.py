"""What rounding does to a measured norm: differences squared and summed in half precision.

The published ES-to-GRPO norm ratio of LIT-237 comes from code that squares float16 differences in float16. The smallest
positive float16 number is 2^-24, so a square below half of it, 2^-25, becomes 0: every |difference| up to
``VANISHING`` = 2^-12.5 = 1.73e-4 is lost from the norm.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, stdtr

Law = Literal["normal", "laplace", "student-t3"]
LAWS: tuple[Law, ...] = ("normal", "laplace", "student-t3")

VANISHING = 2.0**-12.5
"""Largest |difference| whose float16 square is 0. Its own square is half of the smallest number and would tie to even,
that is to 0; but it is irrational, so no float16 difference ties: (1 + 424/1024) 2^-13 vanishes, the next one does not.
"""

_RMS_RANGE = (1e-7, 1e-1)  # root mean squares between which a reading is inverted


def half_squared_norm(differences: NDArray[np.floating]) -> float:
    """Norm of one tensor as the code of LIT-237 computes it: differences and squares in float16, the sum too.

    The sum is that of torch over a half tensor: accumulated in float32, then rounded to float16. The root is exact.

    Args:
        differences: tuned minus base weights; rounded to float16 if they are not.

    Returns:
        The norm; infinite where a square (|difference| >= 256) or the sum (norm >= 256) leaves float16's range, NaN
        where a difference is NaN.
    """
    with np.errstate(over="ignore"):
        half = np.asarray(differences).astype(np.float16)
        total = np.sum(np.square(half), dtype=np.float32).astype(np.float16)
    return math.sqrt(float(total))


def kept_share(law: Law, rms: float) -> float:
    """Share of the true norm that squaring in float16 keeps, for very many differences drawn from ``law``.

    Exact, not simulated: sums the squares of all float16 numbers, weighted with the probability of rounding to each.
    Numbers whose square overflows are left out; at the sizes of fine-tuning they do not occur.

    Args:
        law: ``normal``, ``laplace``, or ``student-t3`` (Student's t with 3 degrees of freedom), centred.
        rms: root mean square of the differences, in units of the weights.

    Raises:
        ValueError: ``rms`` is not positive and finite.
    """
    if not 0.0 < rms < math.inf:
        raise ValueError(f"rms is {rms}; a positive number is needed")
    edges, squares = _half_grid()
    beyond = _survival(law, edges / rms)
    mean_square = 2.0 * math.fsum((beyond[:-1] - beyond[1:]) * squares)
    return math.sqrt(mean_square) / rms


def read_norm(law: Law, norm: float, d: int) -> float:
    """What a norm reads when its ``d`` differences, distributed as ``law``, are squared in float16."""
    return 0.0 if norm == 0.0 else norm * kept_share(law, norm / math.sqrt(d))


def consistent_norm(law: Law, reading: float, d: int) -> float:
    """The true norm that reads ``reading`` when ``d`` differences, distributed as ``law``, are squared in float16.

    Raises:
        ValueError: no root mean square between 1e-7 and 0.1 gives this reading.
    """
    low, high = (math.log(rms * math.sqrt(d)) for rms in _RMS_RANGE)
    if not read_norm(law, math.exp(low), d) < reading < read_norm(law, math.exp(high), d):
        raise ValueError(f"no plausible norm of {d} weights reads {reading} in float16")
    return math.exp(brentq(lambda x: read_norm(law, math.exp(x), d) - reading, low, high, xtol=1e-10))


@cache
def _half_grid() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Float16 squares of all positive float16 numbers that have a finite one, and the edges between those numbers."""
    numbers = np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16)
    with np.errstate(over="ignore"):
        squares = np.square(numbers)
    kept = np.isfinite(squares)
    values = numbers[kept].astype(np.float64)
    following = np.append(values[1:], 256.0)
    edges = np.concatenate([[0.5 * values[0]], 0.5 * (values + following)])
    return edges, squares[kept].astype(np.float64)


def _survival(law: Law, x: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(X > x) for unit root mean square."""
    if law == "normal":
        return np.asarray(ndtr(-x))
    if law == "laplace":
        return np.asarray(0.5 * np.exp(-math.sqrt(2.0) * x))
    return np.asarray(stdtr(3, -math.sqrt(3.0) * x))
