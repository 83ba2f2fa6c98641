"""How far the weights moved from the base, where, how sparsely, and how much of that a pure random walk would give.

Sums are accumulated in float64, tensor by tensor and slice by slice: in half precision the square of a change below
1.7e-4 is 0 and most of the norm is lost. A tied tensor is counted once, as it is in ``Weights``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from driftlab.drift import theory
from driftlab.engines.base import Engine, Weights
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.rows import Rows
from driftlab.run.records import Update

_SLICE = 1 << 22  # elements widened to float64 at a time, 32 MiB

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d+)\.")
_NORM = re.compile(r"norm|(?:^|[._])ln(?:[._]|\d|$)")
_ATTENTION = re.compile(r"(?:^|\.)(?:self_attn|self_attention|attn|attention)\.")
_MLP = re.compile(r"(?:^|\.)(?:mlp|feed_forward|ffn|block_sparse_moe|moe|fc1|fc2)(?:\.|$)")
_EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|embed_positions|embed_in|word_embeddings|embeddings|wte|wpe)\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|embed_out|output_projection|score)\.")


@dataclass(slots=True)
class Change:
    """Sums over the parameters of one group, in float64."""

    n: int = 0
    squared: float = 0.0
    base_squared: float = 0.0
    largest: float = 0.0
    unchanged: int = 0
    within_tau: int = 0

    def add(self, other: Change) -> None:
        self.n += other.n
        self.squared += other.squared
        self.base_squared += other.base_squared
        # max() drops a NaN that is its second argument; a broken weight must stay visible.
        self.largest = other.largest if math.isnan(other.largest) else max(self.largest, other.largest)
        self.unchanged += other.unchanged
        self.within_tau += other.within_tau


def layer_group(name: str) -> str:
    """Layer group of a canonical Hugging Face parameter name.

    Returns:
        ``norm`` for every normalisation weight, inside a layer or not; ``layer.<i>.attention`` or ``layer.<i>.mlp``;
        ``embedding`` (tokens and positions); ``head``; ``other`` for what none of these describes.
    """
    if _NORM.search(name):
        return "norm"
    layer = _LAYER.search(name)
    if layer:
        rest = name[layer.end() :]
        if _ATTENTION.search(rest):
            return f"layer.{int(layer.group(1))}.attention"
        if _MLP.search(rest):
            return f"layer.{int(layer.group(1))}.mlp"
        return "other"
    if _EMBEDDING.search(name):
        return "embedding"
    return "head" if _HEAD.search(name) else "other"


def group_changes(weights: Weights, base: Weights, tau: float) -> dict[str, Change]:
    """Sums of ``weights - base`` by layer group, in order of first appearance.

    Raises:
        ValueError: when the two differ in tensor names or shapes.
    """
    if weights.keys() != base.keys():
        odd = sorted(weights.keys() ^ base.keys())
        raise ValueError(f"checkpoint and base differ in {len(odd)} tensor names, the first is {odd[0]}")
    groups: dict[str, Change] = {}
    for name, start in base.items():
        if weights[name].shape != start.shape:
            raise ValueError(
                f"{name}: shape {tuple(weights[name].shape)} in the checkpoint, {tuple(start.shape)} in base"
            )
        groups.setdefault(layer_group(name), Change()).add(_tensor_change(weights[name], start, tau))
    return groups


def _tensor_change(weight: torch.Tensor, base: torch.Tensor, tau: float) -> Change:
    total = Change()
    flat, flat_base = weight.detach().reshape(-1), base.detach().reshape(-1)
    for piece, piece_base in zip(flat.split(_SLICE), flat_base.split(_SLICE), strict=True):
        if piece.numel() == 0:
            continue
        start = piece_base.to(torch.float64)
        change = piece.to(device=start.device, dtype=torch.float64).sub_(start).abs_()
        total.add(
            Change(
                n=change.numel(),
                squared=float(change.square().sum()),
                base_squared=float(start.square().sum()),
                largest=float(change.max()),
                unchanged=int((change == 0.0).sum()),
                within_tau=int((change <= tau).sum()),
            )
        )
    return total


class WeightsProbe:
    """Norms of the change from the base, its sparsity, the last step, and the random-walk predictions beside them.

    Rows (unit): for ``all`` and each layer group ``update_norm`` (l2) and ``relative_update_norm`` (fraction of the
    base norm); for ``all`` ``max_abs_change`` (absolute), ``zero_fraction`` (exactly unchanged) and ``sparsity``
    (changed by at most ``tau``), ``step_norm`` (l2) and ``step_cosine`` (cosine) of the last update,
    ``predicted_norm`` from the applied coefficients, ``predicted_norm_alpha``, ``predicted_norm_sigma``,
    ``predicted_norm_anchored`` (l2; see ``driftlab.drift.theory``), and ``random_walk_ratio`` = update_norm /
    predicted_norm. ``n`` counts parameters. A quantity that is not defined at a checkpoint is a skipped row.
    """

    name = "weights"

    def __init__(self, tau: float = 1e-6, *, tied_twice: bool = False) -> None:
        """Raises ValueError for a negative ``tau`` or NaN.

        Args:
            tau: largest absolute change that counts as none in ``sparsity``.
            tied_twice: also give ``update_norm_state_dict``, which counts a tied tensor once per name.
        """
        if not tau >= 0.0:
            raise ValueError(f"tau is {tau}; an absolute change of 0 or more is needed")
        self.tau, self.tied_twice = tau, tied_twice

    def prepare(self, engine: Engine) -> None:
        """Nothing to prepare: base and checkpoint weights arrive with each checkpoint."""

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Rows for ``checkpoint``; reads its tensors only.

        Raises:
            ValueError: when weights and base differ in tensor names or shapes, or hold no parameter.
        """
        groups = group_changes(checkpoint.weights, checkpoint.base, self.tau)
        total = Change()
        for change in groups.values():
            total.add(change)
        if total.n == 0:
            raise ValueError("the checkpoint holds no parameters")
        rows = Rows(checkpoint.step, self.name)
        for group, change in {"all": total, **groups}.items():
            _add_norms(rows, group, change)
        if self.tied_twice:
            _add_state_dict(rows, checkpoint, total, engine)
        _add_sparsity(rows, total, self.tau)
        _add_last_step(rows, checkpoint, total.n)
        add_predictions(rows, checkpoint, total)
        return Measured(measurements=tuple(rows.rows))


def _add_norms(rows: Rows, group: str, change: Change) -> None:
    rows.add("update_norm", math.sqrt(change.squared), "l2", change.n, group=group)
    if change.base_squared == 0.0:
        rows.add("relative_update_norm", None, "fraction", change.n, group=group, note="the base norm is 0")
        return
    # The quotient of two roots, not the root of a quotient: inf / inf stays a NaN and so a failed row.
    relative = math.sqrt(change.squared) / math.sqrt(change.base_squared)
    rows.add("relative_update_norm", relative, "fraction", change.n, group=group)


def _add_state_dict(rows: Rows, checkpoint: Checkpoint, total: Change, engine: Engine) -> None:
    """The norm over every name of the live model's parameters: a tied tensor counts once for each of its names."""
    names: dict[int, list[str]] = {}
    for name, parameter in engine.model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    squared, n, extra = total.squared, total.n, []
    for first, *others in names.values():
        if others:
            change = _tensor_change(checkpoint.weights[first], checkpoint.base[first], 0.0)
            squared += len(others) * change.squared
            n += len(others) * change.n
            extra += others
    note = f"counted again: {', '.join(extra)}" if extra else "nothing is tied"
    rows.add("update_norm_state_dict", math.sqrt(squared), "l2", n, note=note)


def _add_sparsity(rows: Rows, total: Change, tau: float) -> None:
    rows.add("max_abs_change", total.largest, "absolute", total.n)
    rows.add("zero_fraction", total.unchanged / total.n, "fraction", total.n, note="exactly unchanged")
    rows.add("sparsity", total.within_tau / total.n, "fraction", total.n, note=f"absolute change at most {tau:g}")


def _add_last_step(rows: Rows, checkpoint: Checkpoint, n: int) -> None:
    missing = _why_no_updates(checkpoint)
    if missing is not None:
        rows.add("step_norm", None, "l2", n, note=missing)
        rows.add("step_cosine", None, "cosine", n, note=missing)
        return
    last = checkpoint.updates[-1]
    if last.step_norm is None:
        rows.add("step_norm", None, "l2", n, note=_NO_STEPS)
        rows.add("step_cosine", None, "cosine", n, note=_NO_STEPS)
        return
    rows.add("step_norm", last.step_norm, "l2", n)
    note = None if last.step_cosine is not None else "no previous step, or a step of length 0"
    rows.add("step_cosine", last.step_cosine, "cosine", n, note=note)


_NO_STEPS = "the weights of single steps were not kept"


def _why_no_updates(checkpoint: Checkpoint) -> str | None:
    """Why nothing can be said about the steps that led here; None where they are all recorded."""
    if checkpoint.step == 0:
        return "step 0 is the base model"
    if len(checkpoint.updates) != checkpoint.step:
        return f"{len(checkpoint.updates)} of {checkpoint.step} updates are recorded"
    return None


def add_predictions(rows: Rows, checkpoint: Checkpoint, total: Change) -> None:
    """The random-walk norms and measured over predicted. Before the first update each prediction is a true 0."""
    n, updates = total.n, [update for update in checkpoint.updates if isinstance(update, Update)]
    missing = _why_no_updates(checkpoint)
    if missing is None and len(updates) < len(checkpoint.updates):
        missing = "the law is that of evolution strategies, and the run has another trainer"
    if missing is not None and checkpoint.step > 0:
        for quantity in ("predicted_norm", "predicted_norm_alpha", "predicted_norm_sigma", "predicted_norm_anchored"):
            rows.add(quantity, None, "l2", n, note=missing)
        rows.add("random_walk_ratio", None, "ratio", n, note=missing)
        return
    moments = theory.coordinate_moments(updates)
    predicted: float | None = None
    if moments is None:
        rows.add("predicted_norm", None, "l2", n, note=_why_no_law(updates))
    else:
        predicted = math.sqrt(n * moments.second)
        sd = theory.norm_sd(moments, n)
        rows.add("predicted_norm", predicted, "l2", n, stderr=sd, note="from the applied coefficients")
    alpha = math.hypot(*(theory.alpha_form(u.alpha, n, 1, u.population) for u in updates))
    rows.add("predicted_norm_alpha", alpha, "l2", n, note="z-scored rewards, step scale alpha, no decay")
    sigma = math.hypot(*(theory.sigma_form(u.sigma, n, 1, u.population) for u in updates))
    rows.add("predicted_norm_sigma", sigma, "l2", n, note="z-scored rewards, step scale sigma, no decay")
    _add_anchored(rows, updates, n)
    if missing is not None:
        rows.add("random_walk_ratio", None, "ratio", n, note=missing)
    elif not predicted:
        note = "no prediction" if predicted is None else "the predicted norm is 0"
        rows.add("random_walk_ratio", None, "ratio", n, note=note)
    else:
        rows.add("random_walk_ratio", math.sqrt(total.squared) / predicted, "ratio", n)


def _why_no_law(updates: Sequence[Update]) -> str:
    if theory.repeats_noise(updates):
        return "noise seeds repeat, and under an L1 anchor there is no law for that"
    if any(u.penalty == "huber" for u in updates):
        return "no law under a Huber anchor; driftlab emulate gives the expected norm"
    return "no law for this sequence of penalties and step sizes"


def _add_anchored(rows: Rows, updates: Sequence[Update], n: int) -> None:
    if not updates or any(u.penalty != "l2" for u in updates):
        note = "the penalty is not l2 at every step" if updates else "step 0 is the base model"
        rows.add("predicted_norm_anchored", None, "l2", n, note=note)
        return
    if any((a.alpha, a.decay, a.population) != (b.alpha, b.decay, b.population) for a, b in pairwise(updates)):
        note = "alpha, decay or population changed during the run; predicted_norm follows them"
        rows.add("predicted_norm_anchored", None, "l2", n, note=note)
        return
    first = updates[0]
    value = theory.anchored_form(first.alpha, first.decay, n, len(updates), first.population)
    rows.add("predicted_norm_anchored", value, "l2", n, note="z-scored rewards, step scale alpha, L2 decay")
