"""One ES step with Anchored Weight Decay; training and replay both call this.

    theta <- theta + (alpha / N) * sum_i c_i * eps_i          (LIT-211, LIT-238; 1/sigma is absorbed in alpha)
    L2:  theta <- theta_0 + (1 - alpha*lambda) * (theta - theta_0)
    L1:  theta <- theta_0 + sign(theta - theta_0) * max(|theta - theta_0| - alpha*lambda, 0)

All arithmetic is float32 on the host, in a fixed order, on arrays in the canonical layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from driftlab.es.noise import CHUNK, Array, Scheme, noise_chunks

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The numbers that define one update.

    Attributes:
        seeds, coefficients: one per noise draw.
        population: N, the divisor (twice the number of seeds when mirrored).
        alpha: step scale.
        penalty: anchored weight decay, applied after the step.
        decay: alpha times lambda.
        scheme: how seeds become noise.
    """

    seeds: tuple[int, ...]
    coefficients: tuple[float, ...]
    population: int
    alpha: float
    penalty: Literal["none", "l1", "l2"]
    decay: float
    scheme: Scheme


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGeometry:
    """L2 norm of the step, decay included, and its cosine with the previous one (None where undefined)."""

    norm: float
    cosine: float | None


def perturbed(theta: Array, name: str, *, seed: int, sigma: float, scheme: Scheme) -> Array:
    """A member's tensor ``theta + sigma * eps`` in new memory; ``theta`` is never touched. sigma < 0 mirrors."""
    out = np.empty_like(theta)
    flat_theta, flat_out = theta.reshape(-1), out.reshape(-1)
    scale = np.float32(sigma)
    for start, chunk in noise_chunks(seed, name, theta.shape, scheme):
        piece = slice(start, start + chunk.size)
        np.multiply(chunk, scale, out=chunk)
        np.add(flat_theta[piece], chunk, out=flat_out[piece])
    return out


def updated(theta: Array, base: Array, name: str, step: Step) -> Array:
    """The tensor after ``step``; ``theta`` is never written to. Without seeds and anchor it is ``theta`` itself."""
    if not step.seeds:
        # Adding a sum of nothing would turn every -0.0 into +0.0.
        return anchored(theta, base, penalty=step.penalty, decay=step.decay)
    total = np.zeros(theta.size, dtype=np.float32)
    streams = [noise_chunks(seed, name, theta.shape, step.scheme) for seed in step.seeds]
    for pieces in zip(*streams, strict=True):
        for coefficient, (start, chunk) in zip(step.coefficients, pieces, strict=True):
            # Chunks of the streams come in step; each stream owns its buffer until its next piece.
            np.multiply(chunk, np.float32(coefficient), out=chunk)
            total[start : start + chunk.size] += chunk
    new = theta + (total * np.float32(step.alpha / step.population)).reshape(theta.shape)
    return anchored(new, base, penalty=step.penalty, decay=step.decay)


def anchored(theta: Array, base: Array, *, penalty: Literal["none", "l1", "l2"], decay: float) -> Array:
    """Anchored Weight Decay (LIT-238): pull ``theta`` towards ``base``.

    L2 keeps ``1 - decay`` of the difference. L1 is the soft threshold: inside it a coordinate becomes exactly base.
    ``decay`` = 0 returns ``theta`` unchanged, bit for bit.
    """
    if penalty == "none" or decay == 0.0:
        return theta
    difference = theta - base
    if penalty == "l2":
        return base + difference * np.float32(1.0 - decay)
    shrunk = np.maximum(np.abs(difference) - np.float32(decay), np.float32(0.0))
    return base + np.copysign(shrunk, difference)


def apply_step(
    weights: Mapping[str, Array],
    base: Mapping[str, Array],
    step: Step,
    *,
    previous: dict[str, Array] | None,
    threads: int,
) -> tuple[dict[str, Array], StepGeometry]:
    """Apply ``step`` to ``weights`` in place.

    Args:
        weights: float32 master, canonical name to array; overwritten.
        base: float32 anchor theta_0.
        previous: displacement of the previous step, for the cosine; None before the first step.
        threads: tensors worked on at a time; the result does not depend on it.

    Returns:
        The displacement of this step and its geometry (norms and products in float64).
    """

    def one(name: str) -> tuple[Array, float, float, float]:
        theta = weights[name]
        new = updated(theta, base[name], name, step)
        displacement = new - theta
        theta[...] = new
        if previous is None:
            return displacement, _dot(displacement, displacement), 0.0, 0.0
        old = previous[name]
        return displacement, _dot(displacement, displacement), _dot(displacement, old), _dot(old, old)

    names = list(weights)
    results = each_tensor(one, names, threads)
    displacement = {name: result[0] for name, result in zip(names, results, strict=True)}
    squared = math.fsum(result[1] for result in results)
    product = math.fsum(result[2] for result in results)
    scale = math.sqrt(squared * math.fsum(result[3] for result in results))
    cosine = product / scale if previous is not None and scale > 0 else None
    return displacement, StepGeometry(norm=math.sqrt(squared), cosine=cosine)


def each_tensor(work: Callable[[str], Result], names: Iterable[str], threads: int) -> list[Result]:
    """``work`` on every name, in order; NumPy lets go of the interpreter lock, so threads help with large tensors."""
    if threads == 1:
        return [work(name) for name in names]
    with ThreadPoolExecutor(max_workers=threads) as pool:
        return list(pool.map(work, names))


def _dot(a: Array, b: Array) -> float:
    """Sum of products in float64. Pairwise sums of fixed pieces: einsum and BLAS sum in an order that depends on where
    an array happens to lie in memory, and a resumed run must repeat the last bit."""
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    pieces = (slice(start, start + CHUNK) for start in range(0, flat_a.size, CHUNK))
    return math.fsum(
        float(np.add.reduce(np.multiply(flat_a[piece], flat_b[piece], dtype=np.float64))) for piece in pieces
    )
