"""``driftlab emulate``: how far the arms of a spec would walk if rewards said nothing, in their own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from driftlab.drift.emulator import Walk, WalkCurve, drawn_weights, emulate, gaussian_weights
from driftlab.errors import SpecError
from driftlab.es.noise import Array
from driftlab.run.spec import RunSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Weights that stand for a model's.

    Attributes:
        base: sampled theta_0, float32.
        d: parameters of the model.
        source: where they come from, in words.
    """

    base: Array
    d: int
    source: str


def walk_of(spec: RunSpec) -> Walk:
    """The walk of a run without its rewards.

    Raises:
        SpecError: a control without rollouts, or another trainer, which does not walk.
    """
    if not spec.walks:
        what = f"is a {spec.control} control" if spec.trainer == "es" else f"has trainer {spec.trainer}"
        raise SpecError(f"arm {spec.arm!r} {what}, which does not walk: choose others with --arm")
    es, anchor = spec.evolution, spec.anchor
    return Walk(
        population=es.population,
        alpha=es.step_scale,
        sigma=es.sigma,
        steps=es.iterations,
        mirrored=es.mirrored,
        penalty=anchor.penalty,
        lam=anchor.lam,
        delta=anchor.delta,
        precision=spec.precision.resolved,
    )


def sample_of(source: str, *, weight_std: float | None, coordinates: int, seed: int) -> Sample:
    """Weights drawn from model ``source``, or with ``weight_std`` from a normal law, no model needed.

    Raises:
        MissingDataError: the model, or its size where a normal law is asked for, cannot be had here.
        SpecError: no coordinate, or a deviation of 0 or less.
    """
    if coordinates < 2:
        raise SpecError(f"--coordinates is {coordinates}: use 2 or more")
    if weight_std is not None:
        if not weight_std > 0:
            raise SpecError(f"--weight-std is {weight_std:g}: give a standard deviation above 0")
        from driftlab.models.plan import plan_model

        size = plan_model(source).n_parameters
        words = f"normal with standard deviation {weight_std:g}"
        return Sample(base=gaussian_weights(weight_std, coordinates, seed), d=size, source=words)
    import torch

    from driftlab.models.base import load_base

    model = load_base(source, dtype=torch.float32, device="cpu")
    weights = {name: tensor.numpy() for name, tensor in model.weights.items()}
    return Sample(base=drawn_weights(weights, coordinates, seed), d=model.n_parameters, source=f"drawn from {source}")


def emulate_run(
    spec: RunSpec, sample: Sample, *, seed: int, threads: int, progress: Callable[[float], None]
) -> WalkCurve:
    """The expected norm at the measured steps of ``spec``."""
    return emulate(
        walk_of(spec),
        base=sample.base,
        d=sample.d,
        at=spec.measured_steps(),
        seed=seed,
        threads=threads,
        progress=progress,
    )
