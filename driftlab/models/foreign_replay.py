"""Weights of an es-awd run from its seeds and coefficients, in that code's own arithmetic and dtype.

As published: every sum is rounded to the run's precision. A member's noise is drawn tensor by tensor from a generator
that is seeded anew with the member's seed, so tensors of equal shape share it. Before each update the master copy has
itself served as a member: noise was added to it and subtracted again, and the rounding residue of that stays.

    layout "fused"   the tensors that training perturbed: vLLM's qkv_proj (rows of q, k, v) and gate_up_proj (gate, up)
    layout "hf"      Hugging Face's own tensors, as the authors' KL script replays them
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from driftlab.errors import RunError
from driftlab.models.base import DTYPES
from driftlab.models.foreign import ForeignArgs, ForeignRun, ForeignUpdate

Layout = Literal["hf", "fused"]

_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_PADDING = 64  # rows to which vLLM fills an embedding up


@dataclass(slots=True)
class _Tensor:
    """One tensor as training held it: rows of the named ones below each other, and the anchor where there is one."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    value: torch.Tensor
    anchor: torch.Tensor | None


class Master:
    """The master copy of a run: weights that its updates are applied to, one after the other."""

    def __init__(
        self, args: ForeignArgs, base_weights: Mapping[str, torch.Tensor], *, layout: Layout, device: str
    ) -> None:
        """Starts at the base, rounded to the run's precision. Raises RunError as ``tensor_names`` does."""
        self._args = args
        # Tensors of one shape share their noise, so they are kept, and moved, together.
        self._groups: dict[torch.Size, list[_Tensor]] = {}
        for names in tensor_names(base_weights, layout):
            parts = [base_weights[name].detach().to(device, DTYPES[args.precision]) for name in names]
            value = torch.cat(parts) if len(parts) > 1 else parts[0].clone()
            anchor = None if args.penalty == "none" else value.clone()
            tensor = _Tensor(names, tuple(part.shape[0] for part in parts), value, anchor)
            self._groups.setdefault(value.shape, []).append(tensor)
        self._order = tuple(base_weights)

    def advance(self, update: ForeignUpdate) -> None:
        """Apply one update, in place."""
        for group in self._groups.values():
            _advance(group, update, self._args)

    def weights(self) -> dict[str, torch.Tensor]:
        """Float32 copies on the host, under the names and in the order of the base weights."""
        found = {
            name: part.to("cpu", torch.float32, copy=True)
            for group in self._groups.values()
            for tensor in group
            for name, part in zip(tensor.names, tensor.value.split(tensor.rows), strict=True)
        }
        return {name: found[name] for name in self._order}


def replay(
    foreign: ForeignRun, base_weights: Mapping[str, torch.Tensor], *, layout: Layout, device: str, steps: Iterable[int]
) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """The weights after each of ``steps`` updates, ascending.

    They are those of training, bit for bit, where layout, device, torch version and base weights are training's; see
    ``replay_notes`` for what differs otherwise. Nothing global is changed, random states included.

    Args:
        base_weights: canonical Hugging Face name to tensor, a tied tensor once; rounded to the run's precision first.
        device: where noise is drawn and sums are made.
        steps: updates applied; 0 gives the base as rounded.

    Yields:
        Step, and float32 tensors on the host under the names of ``base_weights``; new memory every time.

    Raises:
        RunError: a step is not in the run, or the model has no known fused layout.
    """
    wanted = set(steps)
    for step in sorted(wanted):
        if not 0 <= step <= len(foreign.updates):
            raise RunError(f"{foreign.path} has steps 0 to {len(foreign.updates)}, not {step}")
    master = Master(foreign.args, base_weights, layout=layout, device=device)
    for step in range(max(wanted, default=-1) + 1):
        if step > 0:
            master.advance(foreign.updates[step - 1])
        if step in wanted:
            yield step, master.weights()


def _advance(group: Sequence[_Tensor], update: ForeignUpdate, args: ForeignArgs) -> None:
    """One iteration on tensors of one shape. They share their noise, so each member's is drawn once for all."""
    like = group[0].value
    total = torch.zeros_like(like)
    for index, (seed, coefficient) in enumerate(zip(update.seeds, update.coefficients, strict=True)):
        noise = _noise(seed, like)
        # Seeds go round the engines in turn; the first engine is the master.
        if index % args.engines == 0:
            _visit(group, noise, args.sigma)
        total.add_(noise, alpha=coefficient)
    if args.mirrored:
        for seed in update.seeds[:: args.engines]:
            _visit(group, _noise(seed, like), -args.sigma)
    for tensor in group:
        tensor.value.add_(total, alpha=args.alpha / args.population)
        _pull(tensor, args)


def _noise(seed: int, like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator(device=like.device).manual_seed(seed)
    return torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)


def _visit(group: Sequence[_Tensor], noise: torch.Tensor, scale: float) -> None:
    """To a member and back, which does not end where it began."""
    for tensor in group:
        tensor.value.add_(noise, alpha=scale)
        tensor.value.add_(noise, alpha=-scale)


def _pull(tensor: _Tensor, args: ForeignArgs) -> None:
    """Anchored weight decay; the difference is rounded, shrunk, rounded and added back."""
    if tensor.anchor is None:
        return
    difference = tensor.value.sub_(tensor.anchor)
    if args.penalty == "l2":
        difference.mul_(1.0 - args.decay)
    else:
        sign = difference.sign()
        difference.abs_().sub_(args.decay).clamp_(min=0.0).mul_(sign)
    difference.add_(tensor.anchor)


def tensor_names(base_weights: Mapping[str, torch.Tensor], layout: Layout) -> list[tuple[str, ...]]:
    """The names that make up each tensor of a layout, in the order of their rows.

    Raises:
        RunError: a fused layout is asked for, and the model has no tensors to fuse or lacks some of a group.
    """
    if layout == "hf":
        return [(name,) for name in base_weights]
    found: list[tuple[str, ...]] = []
    for name in base_weights:
        head, _, tail = name.rpartition(".")
        stem, _, module = head.rpartition(".")
        group = next((group for group in _FUSED if module in group), None)
        if group is None:
            found.append((name,))
            continue
        names = tuple(f"{stem}.{part}.{tail}" for part in group)
        lacking = [other for other in names if other not in base_weights]
        if lacking:
            raise RunError(
                f"the fused layout joins {', '.join(names)}, but the model lacks {lacking[0]}; use --replay hf"
            )
        if module == group[0]:
            found.append(names)
    if len(found) == len(base_weights):
        raise RunError("the model has no q_proj, k_proj, v_proj or gate_proj, up_proj to fuse; use --replay hf")
    return found


def replay_notes(base_weights: Mapping[str, torch.Tensor], *, layout: Layout, device: str) -> tuple[str, ...]:
    """What sets the replayed weights apart from the trained ones, one sentence each; empty where nothing is known."""
    notes = []
    if layout == "hf":
        notes.append(
            "replayed in the layout hf: training drew noise for vLLM's fused tensors (qkv_proj, gate_up_proj), so k, v "
            "and up, and wherever the generator's numbers depend on a tensor's size q and gate, received other noise "
            "than here, and these are not the trained weights"
        )
    if torch.device(device).type == "cpu":
        notes.append(
            "replayed on the CPU: torch.randn gives other numbers there than on the accelerator that trained, so these "
            "are not the trained weights but another draw of the same walk's noise; in half precision it also rounds "
            "scalars such as alpha / N, which an accelerator does not (0.1 % of the step at the published setting)"
        )
    padded = [
        name
        for name, tensor in base_weights.items()
        if name.endswith(("embed_tokens.weight", "lm_head.weight")) and tensor.shape[0] % _PADDING
    ]
    if layout == "fused" and padded:
        notes.append(
            f"vLLM fills the {base_weights[padded[0]].shape[0]} rows of {padded[0]} up to a multiple of {_PADDING}, "
            "which is not imitated, so its noise may differ from training's"
        )
    return tuple(notes)


def shared_noise_factor(base_weights: Mapping[str, torch.Tensor], layout: Layout) -> float:
    """How much wider the walk's norm scatters than with independent coordinates, because equal shapes share noise.

    m tensors of one shape with s elements add m x^2 for each of s independent coordinates, so the variance of the
    squared norm is that of sum_shapes m^2 s coordinates where sum m s are expected: the factor is
    sqrt(sum m^2 s / sum m s). The expected squared norm itself does not change.
    """
    shapes = Counter(
        (sum(base_weights[name].shape[0] for name in names), *base_weights[names[0]].shape[1:])
        for names in tensor_names(base_weights, layout)
    )
    squares = sum(count**2 * math.prod(shape) for shape, count in shapes.items())
    return math.sqrt(squares / sum(count * math.prod(shape) for shape, count in shapes.items()))


class StepsInARow:
    """Norm and cosine of steps, from weights that are shown one after the other."""

    def __init__(self) -> None:
        self._step = -1
        self._weights: Mapping[str, torch.Tensor] = {}
        self._displacement: Mapping[str, torch.Tensor] | None = None

    def follow(self, step: int, weights: Mapping[str, torch.Tensor]) -> tuple[float | None, float | None]:
        """L2 norm of the step that led to ``weights``, and its cosine with the step before, summed in float64.

        None where the weights one, or two, steps earlier were not shown right before, or a step has length 0. The
        tensors are kept, not copied: they must not be written to.
        """
        norm = cosine = displacement = None
        if step > 0 and step == self._step + 1:
            displacement = {name: weights[name] - before for name, before in self._weights.items()}
            norm = math.sqrt(_dot(displacement, displacement))
            if self._displacement is not None:
                scale = norm * math.sqrt(_dot(self._displacement, self._displacement))
                cosine = _dot(displacement, self._displacement) / scale if scale > 0 else None
        self._step, self._weights, self._displacement = step, weights, displacement
        return norm, cosine


def _dot(a: Mapping[str, torch.Tensor], b: Mapping[str, torch.Tensor]) -> float:
    return math.fsum(float((a[name].double() * b[name].double()).sum()) for name in a)
