"""The reward-free walk in any arithmetic: what rounding makes of the random-walk law, from a sample of coordinates.

Every coordinate of ES without a reward signal walks alike, so some ten thousand of them, moved by the very function
that trains (``driftlab.es.step.move``), stand for all d: E||theta_t - theta_0||^2 = d * mean over the sample. Beside
each rounded coordinate runs one in float32 with the same noise, whose expectation is known in closed form; what the
sample has by chance is taken off with it (a control variate), which leaves a Monte-Carlo error far below that of the
plain mean wherever rounding matters little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftlab.drift.theory import coordinate_moments
from driftlab.es.anchor import Penalty, anchored
from driftlab.es.noise import private_generator
from driftlab.es.precision import FLOAT32, Array, Precision, rounded
from driftlab.es.shaping import coefficients
from driftlab.es.step import Step, move
from driftlab.es.update import in_place_members

BLOCK = 8192
"""Coordinates walked at a time: large enough to drown the interpreter, small enough for the cache."""

Progress = Callable[[float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """ES without a reward signal.

    Attributes:
        population, alpha, sigma, mirrored: as in training; members N, step scale, perturbation scale, mirrored pairs.
        penalty, lam, delta: the anchor; lambda, and Huber's delta.
        precision: format of the master and order of operations.
        steps: T.
    """

    population: int
    alpha: float
    sigma: float
    steps: int
    mirrored: bool = False
    penalty: Penalty = "none"
    lam: float = 0.0
    delta: float | None = None
    precision: Precision = FLOAT32


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkCurve:
    """Expected norm against steps.

    Attributes:
        steps: where; as asked.
        norm: sqrt(E||theta_t - theta_0||^2) in the walk's arithmetic.
        stderr: its Monte-Carlo standard error, over coordinates.
        law: the same in exact arithmetic: closed form without an anchor and under L2, the coordinate's density under
            L1; None where there is no law (Huber).
        coordinates: sample size.
        seconds: wall time.
    """

    steps: tuple[int, ...]
    norm: tuple[float, ...]
    stderr: tuple[float, ...]
    law: tuple[float | None, ...]
    coordinates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Applied:
    """An update as ``theory`` reads it."""

    seeds: tuple[int, ...]
    coefficients: tuple[float, ...]
    population: int
    alpha: float
    penalty: str
    decay: float


def gaussian_weights(std: float, n: int, seed: int) -> Array:
    """``n`` base weights drawn from a normal law with mean 0 and standard deviation ``std``."""
    weights: Array = private_generator(f"base weights|{seed}").standard_normal(n, dtype=np.float32) * np.float32(std)
    return weights


def drawn_weights(weights: Mapping[str, Array], n: int, seed: int) -> Array:
    """About ``n`` weights of a model, each tensor represented in proportion to its size (at least once)."""
    total = sum(tensor.size for tensor in weights.values())
    generator = private_generator(f"base weights|{seed}")
    drawn = []
    for name in sorted(weights):
        flat = weights[name].reshape(-1)
        drawn.append(flat[generator.integers(0, flat.size, size=max(1, round(n * flat.size / total)))])
    return np.concatenate(drawn)


def emulate(
    walk: Walk,
    *,
    base: Array,
    d: int,
    at: Sequence[int],
    seed: int,
    threads: int = 1,
    progress: Progress | None = None,
) -> WalkCurve:
    """The expected norm of ``walk`` for ``d`` parameters whose weights are distributed as ``base``.

    Args:
        base: sample of theta_0, float32 [n]; rounded to the master's format first.
        d: perturbed parameters (a tied tensor once, unless a published norm counted it twice).
        at: steps in [0, walk.steps] at which the norm is wanted.
        seed: of noise and coefficients.
        threads: blocks walked at a time; the result does not depend on it.
        progress: is told the share done.

    Raises:
        ValueError: no coordinate, a step outside the walk, fewer than two members, or a decay outside [0, 1) under L2
            and Huber.
    """
    _check(walk, base, at)
    started = time.perf_counter()
    wanted = tuple(sorted(set(at)))
    updates = _updates(walk, seed)
    start = rounded(np.ascontiguousarray(base, dtype=np.float32), walk.precision.master)
    blocks = [start[first : first + BLOCK] for first in range(0, start.size, BLOCK)]
    law = {step: coordinate_moments(updates[:step]) for step in wanted}
    # Where there is no law at some step (Huber, or L1 with very unequal steps) the control is the plain walk.
    follows = all(moments is not None for moments in law.values())
    control = law if follows else {step: coordinate_moments(_plain(updates[:step])) for step in wanted}
    sums = np.zeros((len(wanted), 5))
    for found in _each_block(walk, blocks, updates, wanted, seed, threads, progress, follows=follows):
        sums += found
    norms = {
        step: _norm(row, start.size, d, moments.second)
        for (step, moments), row in zip(control.items(), sums, strict=True)
        if moments is not None
    }
    exact = {step: None if moments is None else float(np.sqrt(d * moments.second)) for step, moments in law.items()}
    return WalkCurve(
        steps=tuple(at),
        norm=tuple(norms[step][0] for step in at),
        stderr=tuple(norms[step][1] for step in at),
        law=tuple(exact[step] for step in at),
        coordinates=start.size,
        seconds=time.perf_counter() - started,
    )


def _check(walk: Walk, base: Array, at: Sequence[int]) -> None:
    if base.size < 2:
        raise ValueError(f"{base.size} coordinates; an emulated walk needs at least 2")
    outside = [step for step in at if not 0 <= step <= walk.steps]
    if outside:
        raise ValueError(f"step {outside[0]} lies outside a walk of {walk.steps} steps")
    if walk.population < 2 or (walk.mirrored and walk.population % 2):
        raise ValueError(f"population is {walk.population}; 2 or more are needed, and an even number when mirrored")
    decay = walk.alpha * walk.lam
    if not 0 <= decay < (1 if walk.penalty in ("l2", "huber") else np.inf):
        raise ValueError(f"alpha * lambda is {decay:g}; it must be 0 or more, and below 1 under l2 and huber")


def _updates(walk: Walk, seed: int) -> list[_Applied]:
    """Rewards that say nothing: independent normals, shaped as training shapes rewards."""
    generator = private_generator(f"rewards|{seed}")
    draws = walk.population // 2 if walk.mirrored else walk.population
    return [
        _Applied(
            seeds=tuple(range(t * draws, (t + 1) * draws)),
            coefficients=coefficients(generator.standard_normal(walk.population).tolist(), mirrored=walk.mirrored),
            population=walk.population,
            alpha=walk.alpha,
            penalty=walk.penalty,
            decay=walk.alpha * walk.lam,
        )
        for t in range(walk.steps)
    ]


def _plain(updates: Sequence[_Applied]) -> list[_Applied]:
    return [_Applied(u.seeds, u.coefficients, u.population, u.alpha, "none", 0.0) for u in updates]


def _each_block(
    walk: Walk,
    blocks: Sequence[Array],
    updates: Sequence[_Applied],
    wanted: Sequence[int],
    seed: int,
    threads: int,
    progress: Progress | None,
    *,
    follows: bool,
) -> Iterator[NDArray[np.float64]]:
    """Sums of every block, in order whatever thread finishes first."""
    done = [0] * len(blocks)

    def one(index: int) -> NDArray[np.float64]:
        generator = private_generator(f"walk|{seed}|{index}")

        def count(steps: int) -> None:
            done[index] = steps

        return _walk_block(walk, blocks[index], updates, wanted, generator, count, follows=follows)

    with ThreadPoolExecutor(max_workers=threads) as pool:
        futures = [pool.submit(one, index) for index in range(len(blocks))]
        left: set[Future[NDArray[np.float64]]] = set(futures)
        try:
            while left:
                left = wait(left, timeout=0.2, return_when=FIRST_COMPLETED).not_done
                if progress is not None:
                    progress(sum(done) / (len(blocks) * max(1, walk.steps)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for future in futures:
        yield future.result()


def _walk_block(
    walk: Walk,
    base: Array,
    updates: Sequence[_Applied],
    wanted: Sequence[int],
    generator: np.random.Generator,
    count: Callable[[int], None],
    *,
    follows: bool,
) -> NDArray[np.float64]:
    """Per wanted step: sums over coordinates of x, y, x^2, y^2, xy with x, y the squared walks, rounded and exact.

    The exact one takes the anchor where its law ``follows`` it.
    """
    sums = np.zeros((len(wanted), 5))
    noise = np.empty((len(updates[0].seeds) if updates else 0, base.size), dtype=np.float32)
    theta, residual, exact = base, None, np.zeros_like(base)
    zero = np.zeros_like(base)
    for t in range(walk.steps + 1):
        if t in wanted:
            x = (theta.astype(np.float64) - base) ** 2
            y = exact.astype(np.float64) ** 2
            sums[wanted.index(t)] = [part.sum() for part in (x, y, x * x, y * y, x * y)]
        if t == walk.steps:
            break
        generator.standard_normal(dtype=np.float32, out=noise)
        step = _step(walk, updates[t])
        total = np.asarray(step.coefficients, dtype=np.float32) @ noise
        exact = exact + np.float32(step.alpha / step.population) * total
        if follows:
            exact = anchored(exact, zero, penalty=step.penalty, decay=step.decay)
        moved = move(theta, base, residual, list(noise), step, generator)
        theta, residual = moved.theta, moved.residual
        count(t + 1)
    return sums


def _step(walk: Walk, update: _Applied) -> Step:
    members = in_place_members(update.seeds, walk.sigma, mirrored=walk.mirrored, precision=walk.precision)
    return Step(
        seeds=update.seeds,
        coefficients=update.coefficients,
        population=walk.population,
        alpha=walk.alpha,
        penalty=walk.penalty,
        decay=update.decay,
        scheme="keyed",
        delta=walk.delta,
        precision=walk.precision,
        in_place=members,
    )


def _norm(sums: NDArray[np.float64], n: int, d: int, known: float) -> tuple[float, float]:
    """Norm and its standard error from the sums of a step; ``known`` is the control's second moment."""
    x, y, xx, yy, xy = sums / n
    spread = yy - y * y
    slope = (xy - x * y) / spread if spread > 0 else 0.0
    mean = x - slope * (y - known)
    variance = max(xx - x * x - slope * (xy - x * y), 0.0) / (n - 1)
    if mean <= 0.0:
        return 0.0, float(np.sqrt(d * np.sqrt(variance)))
    norm = float(np.sqrt(d * mean))
    return norm, float(d * np.sqrt(variance) / (2 * norm))
