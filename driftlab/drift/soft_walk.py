"""The random walk under an L1 anchor: one coordinate's density, followed step by step.

There is no closed form for a Gaussian walk that is soft-thresholded after every step; its law is computed here to
quadrature accuracy instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_NODES = 10  # Gauss-Legendre nodes a panel; with panels of three step sizes the quadrature error is below 1e-9
_REACH = 8.5  # step sizes beyond which the Gaussian kernel is below 1e-15 of its peak
_MAX_STEP_RATIO = 16.0  # largest over smallest step that one uniform grid resolves in reasonable time


def soft_walk_moments(walk: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """Second and fourth moment of x_t = soft(x_{t-1} + s_t g, tau_t), x_0 = 0, g standard normal.

    ``walk`` holds (s_t, tau_t), the step size and the threshold after it.

    The law is an atom at 0 and a symmetric density. The density on the half line is kept at Gauss-Legendre nodes of
    equal panels, so that one step is a convolution over panels with small matrices. None: steps too unequal.
    """
    steps: list[tuple[float, float]] = []
    for s, tau in walk:
        if s > 0.0:
            steps.append((s, tau))
        elif steps:  # two soft thresholds in a row are one at the sum; before the first move x stays 0
            steps[-1] = (steps[-1][0], steps[-1][1] + tau)
    if not steps:
        return 0.0, 0.0
    scales = [s for s, _ in steps]
    if all(tau > 40.0 * max(scales) for _, tau in steps):
        return 0.0, 0.0  # nothing passes such a threshold: beyond 40 deviations there is less than 1e-300
    if max(scales) > _MAX_STEP_RATIO * min(scales):
        return None
    # Just above the threshold the density falls as exp(-x tau / s^2): a strong threshold needs narrower panels.
    width = min(min(3.0 * s, 15.0 * s * s / tau if tau > 0.0 else math.inf) for s, tau in steps)
    panels = math.ceil(7.0 * math.sqrt(math.fsum(s * s for s in scales)) / width)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    nodes, weights = 0.5 * width * (nodes + 1.0), 0.5 * width * weights
    x = nodes + width * np.arange(panels)[:, None]
    density, atom = np.zeros_like(x), 1.0
    for s, tau in steps:
        # Below tau the stepped coordinate becomes exactly 0, above it moves down by tau: read the density at x + tau.
        density = _smooth(density, s, tau, width, nodes, weights) + atom * _normal(x + tau, s)
        atom = 1.0 - 2.0 * float((density @ weights).sum())
    return 2.0 * float(((density * x**2) @ weights).sum()), 2.0 * float(((density * x**4) @ weights).sum())


def _smooth(density: Array, s: float, tau: float, width: float, nodes: Array, weights: Array) -> Array:
    """The symmetric density, convolved with a normal of deviation ``s``, read at nodes + tau; shape [panels, nodes]."""
    panels = density.shape[0]
    first = math.floor((-_REACH * s - tau) / width) - 1
    last = math.ceil((_REACH * s - tau) / width) + 1
    margin = max(-first, last, 0)
    line = np.pad(np.concatenate([density[::-1, ::-1], density]), ((margin, margin), (0, 0)))
    result = np.zeros_like(density)
    gap = nodes[:, None] - nodes[None, :] + tau  # target minus source within one panel
    for shift in range(first, last + 1):
        kernel = _normal(gap + shift * width, s) * weights
        start = margin + panels - shift
        result += line[start : start + panels] @ kernel.T
    return result


def _normal(x: Array, s: float) -> Array:
    density: Array = np.exp(-0.5 * (x / s) ** 2) / (s * math.sqrt(2.0 * math.pi))
    return density
