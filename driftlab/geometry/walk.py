"""One run from its base to its solution: how the norm grew, what a random walk explains, KL from stage to stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch

from driftlab.drift import geometry as maths
from driftlab.drift import theory
from driftlab.geometry.runs import Side, weights_along
from driftlab.geometry.scoring import Scorer, Weights
from driftlab.probes.weights import layer_group
from driftlab.run.records import Update

Tell = Callable[[float], None]
NOT_ES = "the law is that of evolution strategies, and the run has another trainer"
Levels = tuple[tuple[str, str, int, list[str]], ...]
"""(level, name, parameters, its tensors) for the whole model, every layer group and every tensor."""


@dataclass(slots=True)
class Followed:
    """What was seen on the way of one run.

    Attributes:
        end: master weights of the solution.
        squares: by step, the squared norm of the displacement of every tensor.
        kl: rows of the KL table.
    """

    end: dict[str, torch.Tensor] = field(default_factory=dict)
    squares: dict[int, dict[str, float]] = field(default_factory=dict)
    kl: list[dict[str, Any]] = field(default_factory=list)


def levels(base: Weights) -> Levels:
    """The whole model, its layer groups in order of appearance, its tensors."""
    groups: dict[str, list[str]] = {}
    for name in base:
        groups.setdefault(layer_group(name), []).append(name)
    named = [("all", "all", list(base)), *(("group", group, names) for group, names in groups.items())]
    named += [("tensor", name, [name]) for name in base]
    return tuple((level, name, sum(base[one].numel() for one in names), names) for level, name, names in named)


def follow(
    side: Side,
    base_weights: Mapping[str, torch.Tensor],
    base: Weights,
    scorer: Scorer,
    stages: Sequence[int] | None,
    tell: Tell,
) -> Followed:
    """Walk through the measured steps and ``stages`` of one run; weights are held for two stages at most.

    Args:
        base_weights: of the base before any rounding.
        base: theta_0 in the master's format.
        stages: steps between which the KL is taken; None for the measured ones.

    Raises:
        RunError: the weights of a step cannot be had.
    """
    measured = sorted({*side.measured, side.step})
    marks = sorted({*stages}) if stages is not None else measured
    steps = sorted({*measured, *marks})
    found, before = Followed(), dict[str, torch.Tensor]()
    last: int | None = None
    for number, (step, weights) in enumerate(weights_along(side, base_weights, steps)):
        found.squares[step] = {
            name: maths.squared_distance(tensor.numpy(), weights[name].numpy()) for name, tensor in base.items()
        }
        if step in marks and scorer.draws_texts:
            if last is not None:
                found.kl += _stage(side.label, last, step, before, weights, scorer)
            before, last = weights, step
        if step == side.step:
            found.end = weights
        tell((number + 1) / len(steps))
    return found


def _stage(
    label: str, first: int, second: int, before: Weights, after: Weights, scorer: Scorer
) -> list[dict[str, Any]]:
    return [
        {
            "run": label,
            "before": first,
            "after": second,
            "task": task,
            "kl": row.value,
            "kl_stderr": row.stderr,
            "n": row.n,
            "n_failed": row.n_failed,
            "status": row.status,
            "note": row.note,
        }
        for task, row in scorer.kl_rows(after, before).items()
    ]


def growth_rows(side: Side, followed: Followed, parts: Levels) -> list[dict[str, Any]]:
    """A straight line through ||theta_t - theta_0||^2 against t, and d_eff, for every part of the model.

    ``d_eff_fraction`` is LIT-235's slope * N / (alpha^2 d); ``d_eff_fraction_applied`` puts the mean variance that the
    applied coefficients gave to a coordinate in place of alpha^2 / N, which is the same for z-scored rewards. Errors
    are those of a random walk with these coefficients: the points of one walk share their past.
    """
    steps = sorted(followed.squares)
    why = _no_linear_law(side)
    variances = [theory.step_variance(u) for u in side.updates or ()]
    walked = [0.0, *accumulate(variances)]
    applied = walked[-1] / len(variances) if variances else 0.0
    rows = []
    for level, name, d, tensors in parts:
        line = maths.fit_line(steps, [sum(followed.squares[step][one] for one in tensors) for step in steps])
        row: dict[str, Any] = {"run": side.label, "level": level, "name": name, "d": d, "n": len(steps)}
        row |= dict.fromkeys(_GROWTH)
        if line is None:
            note = f"{len(steps)} measured steps, and a line through fewer than three always fits"
            rows.append(row | {"status": "skipped", "note": note})
            continue
        row |= {"slope": line.slope, "intercept": line.intercept, "r_squared": line.r_squared}
        if why is None and side.updates:
            first, sd = side.updates[0], maths.walk_slope_sd(steps, [walked[step] for step in steps], d)
            own = first.population / (first.alpha**2 * d)
            row |= {"slope_stderr": sd, "d_eff_fraction": line.slope * own, "d_eff_fraction_stderr": sd * own}
            if applied > 0:
                row["d_eff_fraction_applied"] = line.slope / (applied * d)
                row["d_eff_fraction_applied_stderr"] = sd / (applied * d)
        rows.append(row | {"status": "ok", "note": why})
    return rows


_GROWTH = (
    "slope",
    "slope_stderr",
    "intercept",
    "r_squared",
    "d_eff_fraction",
    "d_eff_fraction_stderr",
    "d_eff_fraction_applied",
    "d_eff_fraction_applied_stderr",
)


def _no_linear_law(side: Side) -> str | None:
    """Why the squared norm of a random walk with the run's updates would not grow in a straight line; None if it would.

    A d_eff is a ratio to that slope.
    """
    updates = side.updates
    if updates is None:
        return f"no d_eff: {NOT_ES}"
    if not updates:
        return "no d_eff: no update was applied"
    if any(u.decay > 0 for u in updates):
        return "no d_eff: the anchor bends the line"
    if theory.repeats_noise(updates):
        return "no d_eff: noise seeds repeat, and steps that share noise add up in step"
    if len({(u.alpha, u.population) for u in updates}) > 1:
        return "no d_eff: alpha or the population changed during the run"
    return None


def share_row(side: Side, followed: Followed, d: int) -> dict[str, Any]:
    """The squared norm of the displacement beside the random walk's, and the part that agreeing steps add."""
    measured = sum(followed.squares[side.step].values())
    row: dict[str, Any] = {"run": side.label, "step": side.step, "d": d, "squared_norm": measured}
    row |= dict.fromkeys(_SHARES)
    if side.step == 0:
        return row | {"status": "skipped", "note": "step 0 is the base model"}
    norms = [u.step_norm for u in side.data.updates[: side.step]]
    if len(norms) == side.step and all(norm is not None for norm in norms):
        row["cross_terms"] = maths.cross_terms(measured, [norm for norm in norms if norm is not None])
        if measured > 0:
            row["cross_share"] = row["cross_terms"] / measured
        if side.updates and _independent_steps(side.updates):
            row["cross_walk_sd"] = maths.walk_cross_sd([theory.step_variance(u) for u in side.updates], d)
    if side.updates is None:
        return row | {"status": "skipped", "note": NOT_ES}
    moments = theory.coordinate_moments(side.updates)
    if moments is None or measured == 0.0:
        why = "nothing moved" if measured == 0.0 else "no law for this anchor, or for these step sizes and seeds"
        return row | {"status": "skipped", "note": why}
    found = maths.walk_share(measured, moments, d)
    row |= {name: getattr(found, name) for name in ("predicted", "predicted_sd", "share", "share_stderr", "excess")}
    shared = side.spec.evolution.noise == "shared-by-shape"
    note = "tensors of equal shape share noise, which widens the scatter beyond these errors" if shared else None
    return row | {"status": "ok", "note": note}


_SHARES = (
    "predicted",
    "predicted_sd",
    "share",
    "share_stderr",
    "excess",
    "cross_terms",
    "cross_share",
    "cross_walk_sd",
)


def _independent_steps(updates: Sequence[Update]) -> bool:
    return not theory.repeats_noise(updates) and not any(u.decay > 0 for u in updates)
