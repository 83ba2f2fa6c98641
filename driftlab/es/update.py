"""One ES step of a model: what training and replay both call, on tensors in the canonical layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from driftlab.es.noise import CHUNK, Array, Scheme, noise_chunks, private_generator
from driftlab.es.precision import FLOAT32, Precision, rounded
from driftlab.es.step import Moved, Step, Watch, added, move
from driftlab.es.survival import Survival

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepGeometry:
    """L2 norm of the step, decay included, and its cosine with the previous one (None where undefined)."""

    norm: float
    cosine: float | None


def updated(theta: Array, residual: Array | None, base: Array, name: str, step: Step, watch: Watch | None) -> Moved:
    """The tensor ``name`` after ``step``; nothing given is written to. Without seeds and anchor it keeps every bit."""
    flat_theta, flat_base = theta.reshape(-1), base.reshape(-1)
    flat_residual = None if residual is None else residual.reshape(-1)
    new, left = np.empty_like(flat_theta), None
    survival: dict[str, Survival] = {}
    if step.precision.update == "error-feedback":
        left = np.empty_like(flat_theta)
    generator = private_generator(f"rounding|{step.seeds}|{name}")
    streams = [noise_chunks(seed, name, theta.shape, step.scheme) for seed in step.seeds]
    for start in range(0, flat_theta.size, CHUNK):
        piece = slice(start, start + CHUNK)
        # Chunks of the streams come in step; each stream owns its buffer until its next piece.
        noises = [next(stream)[1] for stream in streams]
        old = None if flat_residual is None else flat_residual[piece]
        moved = move(flat_theta[piece], flat_base[piece], old, noises, step, generator, watch)
        new[piece] = moved.theta
        if left is not None:
            left[piece] = moved.residual
        for format_, found in moved.survival.items():
            survival.setdefault(format_, Survival()).add(found)
    return Moved(new.reshape(theta.shape), None if left is None else left.reshape(theta.shape), survival)


def perturbed(
    theta: Array, name: str, *, seed: int, sigma: float, scheme: Scheme, precision: Precision = FLOAT32
) -> Array:
    """A member's tensor ``theta + sigma * eps`` in new memory; ``theta`` is never touched. sigma < 0 mirrors."""
    out = np.empty_like(theta)
    flat_theta, flat_out = theta.reshape(-1), out.reshape(-1)
    for start, chunk in noise_chunks(seed, name, theta.shape, scheme):
        piece = slice(start, start + chunk.size)
        noise = rounded(chunk, precision.master) if precision.published else chunk
        flat_out[piece] = added(flat_theta[piece], noise, sigma, precision)
    return out


def restored(theta: Array, name: str, *, seed: int, sigma: float, scheme: Scheme, precision: Precision) -> Array:
    """``theta`` after a member's noise was added and subtracted again; only in exact arithmetic is it ``theta``."""
    there = perturbed(theta, name, seed=seed, sigma=sigma, scheme=scheme, precision=precision)
    return perturbed(there, name, seed=seed, sigma=-sigma, scheme=scheme, precision=precision)


def in_place_members(
    seeds: Sequence[int], sigma: float, *, mirrored: bool, precision: Precision
) -> tuple[tuple[int, float], ...]:
    """The perturbations that an iteration leaves its residue of: the first ``precision.in_place_members`` members.

    Mirrored: all plus members, then all minus members, in the order in which they are evaluated.
    """
    members = [(seed, sign * sigma) for sign in ((1, -1) if mirrored else (1,)) for seed in seeds]
    return tuple(members[: precision.in_place_members])


@dataclass(frozen=True, kw_only=True, slots=True)
class Stepped:
    """What ``apply_step`` says of a step.

    Attributes:
        displacement: theta after minus theta before, by tensor.
        geometry: norm and cosine of the step (norms and products in float64).
        survival: by tensor and format; empty unless watched.
    """

    displacement: dict[str, Array]
    geometry: StepGeometry
    survival: dict[str, dict[str, Survival]]


def apply_step(
    weights: Mapping[str, Array],
    base: Mapping[str, Array],
    step: Step,
    *,
    residual: dict[str, Array] | None = None,
    previous: dict[str, Array] | None,
    threads: int,
    watch: Watch | None = None,
) -> Stepped:
    """Apply ``step`` to ``weights`` in place.

    Args:
        weights: master, canonical name to float32 array; overwritten.
        base: anchor theta_0, on the master's grid.
        residual: what error feedback carries, by tensor; overwritten, and filled before the first step. None for
            every other rule.
        previous: displacement of the previous step, for the cosine; None before the first step.
        threads: tensors worked on at a time; the result does not depend on it.
        watch: measure survival.
    """

    def one(name: str) -> tuple[Array, dict[str, Survival], float, float, float]:
        theta = weights[name]
        moved = updated(theta, None if residual is None else residual.get(name), base[name], name, step, watch)
        displacement = moved.theta - theta
        theta[...] = moved.theta
        if residual is not None and moved.residual is not None:
            residual[name] = moved.residual
        own = _dot(displacement, displacement)
        if previous is None:
            return displacement, moved.survival, own, 0.0, 0.0
        old = previous[name]
        return displacement, moved.survival, own, _dot(displacement, old), _dot(old, old)

    names = list(weights)
    results = each_tensor(one, names, threads)
    squared = math.fsum(result[2] for result in results)
    product = math.fsum(result[3] for result in results)
    scale = math.sqrt(squared * math.fsum(result[4] for result in results))
    cosine = product / scale if previous is not None and scale > 0 else None
    return Stepped(
        displacement={name: result[0] for name, result in zip(names, results, strict=True)},
        geometry=StepGeometry(norm=math.sqrt(squared), cosine=cosine),
        survival={name: result[1] for name, result in zip(names, results, strict=True)},
    )


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
