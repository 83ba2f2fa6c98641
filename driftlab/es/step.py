"""One ES step of an array: perturb, step, anchor, round. Elementwise, so that pieces of a tensor can move one by one.

    theta <- theta + (alpha / N) * sum_i c_i * eps_i          (LIT-211, LIT-238; 1/sigma is absorbed in alpha)
    then the anchor                                           (``driftlab.es.anchor``)

Arithmetic is float32 in a fixed order; a ``Precision`` other than the default says where it is rounded further.
Training, replay and the emulator of the random walk all come through ``move``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from driftlab.es.anchor import Penalty, anchored, pull
from driftlab.es.noise import Array, Scheme
from driftlab.es.precision import FLOAT32, Dtype, Precision, rounded, stochastically_rounded
from driftlab.es.survival import Survival, arrived, half_spacings, restore_residue


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """The numbers that define one update.

    Attributes:
        seeds, coefficients: one per noise draw.
        population: N, the divisor (twice the number of seeds when mirrored).
        alpha: step scale.
        penalty: anchored weight decay, applied after the step.
        decay: alpha times lambda.
        delta: Huber's; None for the other penalties.
        scheme: how seeds become noise.
        precision: where the arithmetic is rounded.
        in_place: seed and signed sigma of every member whose noise was added to these weights and subtracted again
            before the step, in that order.
    """

    seeds: tuple[int, ...]
    coefficients: tuple[float, ...]
    population: int
    alpha: float
    penalty: Penalty
    decay: float
    scheme: Scheme
    delta: float | None = None
    precision: Precision = FLOAT32
    in_place: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Watch:
    """Ask for the survival of a step.

    Attributes:
        served: format in which checkpoints are served.
        sigma: scale of the perturbation whose restore residue is measured.
    """

    served: Dtype
    sigma: float


@dataclass(slots=True)
class Moved:
    """A tensor (or a piece of one) after a step.

    Attributes:
        theta: its new values, on the master's grid.
        residual: what error feedback carries to the next step; None for every other rule.
        survival: by format, ``master`` (half precision only) and ``served``; empty unless watched.
    """

    theta: Array
    residual: Array | None
    survival: dict[str, Survival]


def move(
    theta: Array,
    base: Array,
    residual: Array | None,
    noises: Sequence[Array],
    step: Step,
    generator: np.random.Generator,
    watch: Watch | None = None,
) -> Moved:
    """One step of flat arrays, elementwise: pieces of a tensor may be moved one by one.

    Args:
        theta, base, residual: same length; ``theta`` and ``base`` on the master's grid. Not written to.
        noises: one array of standard normals per seed of ``step``; overwritten.
        generator: for stochastic rounding; unused by the other rules.
    """
    kept, dtype = step.precision, step.precision.master
    if kept.published:
        noises = [rounded(noise, dtype) for noise in noises]
    first = noises[0].copy() if watch is not None and noises else None
    start = _disturbed(theta, noises, step)
    scale = np.float32(step.alpha / step.population)
    if kept.published:
        stepped, intended = _published(start, noises, step, scale, exact=watch is not None)
        new = anchored(stepped, base, penalty=step.penalty, decay=step.decay, delta=step.delta, dtype=dtype)
        left, unrounded = None, stepped
    else:
        # Adding a sum of nothing would turn every -0.0 into +0.0.
        intended = _summed(noises, step.coefficients) * scale if noises else np.zeros_like(start)
        carried = start if residual is None else start + residual
        unrounded = carried + intended if noises else carried
        exact = anchored(unrounded, base, penalty=step.penalty, decay=step.decay, delta=step.delta)
        state = generator.bit_generator.state
        new = _stored(exact, kept, generator)
        left = exact - new if kept.update == "error-feedback" else None
        stepped = new
        if watch is not None and exact is not unrounded:
            # The same dice, so that what the anchor moved is not the luck of another throw.
            generator.bit_generator.state = state
            stepped = _stored(unrounded, kept, generator)
    if watch is None:
        return Moved(new, left, {})
    taken = -pull(unrounded, base, penalty=step.penalty, decay=step.decay, delta=step.delta)
    formats = {"served": watch.served} | ({} if dtype == "float32" else {"master": dtype})
    weights = (theta, start, stepped, new)
    survival = {
        name: _survival(tuple(rounded(x, one) for x in weights), intended, taken, first, watch.sigma, one)
        for name, one in formats.items()
    }
    return Moved(new, left, survival)


def _disturbed(theta: Array, noises: Sequence[Array], step: Step) -> Array:
    """``theta`` after the noise of in-place members was added and subtracted again."""
    places = {seed: index for index, seed in enumerate(step.seeds)}
    for seed, sigma in step.in_place:
        for signed in (sigma, -sigma):
            theta = added(theta, noises[places[seed]], signed, step.precision)
    return theta


def added(theta: Array, noise: Array, scale: float, kept: Precision) -> Array:
    """``theta + scale * noise`` in the master's format; the code of LIT-235 and LIT-237 rounds the product first."""
    product = noise * np.float32(scale)
    return rounded(theta + (rounded(product, kept.master) if kept.update == "members" else product), kept.master)


def _published(
    theta: Array, noises: Sequence[Array], step: Step, scale: np.float32, *, exact: bool
) -> tuple[Array, Array]:
    """Theta after the ES step with every operation rounded, and the step that exact arithmetic would have taken."""
    # Summed first: nothing below writes to the noise.
    intended = _summed([noise.copy() for noise in noises], step.coefficients) * scale if exact and noises else None
    dtype, sums = step.precision.master, np.zeros_like(theta)
    for noise, coefficient in zip(noises, step.coefficients, strict=True):
        if step.precision.update == "members":
            theta = added(theta, noise, float(scale) * coefficient, step.precision)
        else:
            sums = rounded(sums + noise * np.float32(coefficient), dtype)
    if noises and step.precision.update == "accumulate":
        theta = rounded(theta + sums * scale, dtype)
    return theta, np.zeros_like(theta) if intended is None else intended


def _summed(noises: Sequence[Array], coefficients: Sequence[float]) -> Array:
    total = np.zeros(noises[0].shape, dtype=np.float32)
    for noise, coefficient in zip(noises, coefficients, strict=True):
        np.multiply(noise, np.float32(coefficient), out=noise)
        total += noise
    return total


def _stored(exact: Array, kept: Precision, generator: np.random.Generator) -> Array:
    if kept.update == "stochastic":
        return stochastically_rounded(exact, kept.master, generator)
    return rounded(exact, kept.master)


def _survival(
    weights: tuple[Array, ...], intended: Array, taken: Array, noise: Array | None, sigma: float, dtype: Dtype
) -> Survival:
    """``weights``: before any member, before the step, after it, and after the anchor, all in ``dtype``."""
    untouched, before, stepped, after = weights
    found = Survival(
        n=before.size,
        update=arrived(intended, before, stepped),
        decay=arrived(taken, stepped, after),
        half_spacing=half_spacings(untouched, dtype),
    )
    if noise is not None:
        disturbance = noise * np.float32(sigma)
        # Where an in-place member has been, the same one leaves nothing a second time.
        residue = restore_residue(untouched, disturbance, dtype).astype(np.float64)
        found.residue = float(np.add.reduce(residue * residue))
        found.noise = float(np.add.reduce(disturbance.astype(np.float64) ** 2))
    return found
