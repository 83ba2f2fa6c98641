"""Rollouts of a population: members are master + sigma * noise, written elsewhere and never subtracted back.

Unless a precision asks for what published code does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from driftlab.engines import stacked
from driftlab.engines.base import Completion, Weights
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import SpecError
from driftlab.es.noise import Array, Scheme
from driftlab.es.precision import FLOAT32, Precision
from driftlab.es.update import each_tensor, perturbed, restored


@dataclass(frozen=True, slots=True)
class Member:
    """One perturbation: noise seed and signed scale (negative for the mirrored partner)."""

    seed: int
    sigma: float


Rollouts = Callable[[Weights, Sequence[Member], Sequence[Sequence[int]]], list[list[Completion]]]
"""(master, members, token-id prompts) to completions [member][prompt]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SequentialRollouts:
    """Each member in turn is written into the live model, which answers all prompts."""

    engine: TransformersEngine
    scheme: Scheme
    max_new_tokens: int
    threads: int
    precision: Precision = FLOAT32

    def __call__(
        self, master: Weights, members: Sequence[Member], prompts: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        results = []
        for weights in population(master, members, self.scheme, self.precision, self.threads):
            self.engine.write(weights)
            results.append(self.engine.generate(prompts, max_new_tokens=self.max_new_tokens))
        return results


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedRollouts:
    """All members in one batched forward; ``refuse_unstackable`` says beforehand whether the model allows it."""

    engine: TransformersEngine
    scheme: Scheme
    max_new_tokens: int
    threads: int
    precision: Precision = FLOAT32

    def __call__(
        self, master: Weights, members: Sequence[Member], prompts: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        model = self.engine.model
        perturbations = list(population(master, members, self.scheme, self.precision, self.threads))
        # One rounding to the served dtype, as the live model's parameters have.
        weights = {name: torch.stack([p[name] for p in perturbations]).to(model.dtype) for name in master}
        rows = stacked.greedy(
            stacked.StackedLlama(model.config, weights),
            prompts,
            max_new_tokens=self.max_new_tokens,
            pad=int(self.engine.tokenizer.pad_token_id),
            ends=self.engine.end_tokens(),
        )
        return [[self.engine.completion(row, self.max_new_tokens) for row in member] for member in rows]


def refuse_unstackable(config: Any) -> None:
    """Raise SpecError when a model of this configuration is not a plain Llama."""
    problem = stacked.check_supported(config)
    if problem is not None:
        raise SpecError(f"es.rollouts is stacked, but this model cannot be stacked: {problem}; use sequential")


def population(
    master: Weights, members: Sequence[Member], scheme: Scheme, precision: Precision, threads: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The weights of one member after the other, in new memory; ``master`` is never written to.

    Where the rule says that members are added to the master itself and subtracted again, a member starts from what the
    ones before it left behind, as it did in published code; the step takes the residue from the record (``Step``).
    """

    def tensors(work: Callable[[str], Array]) -> dict[str, torch.Tensor]:
        return dict(zip(master, map(torch.from_numpy, each_tensor(work, master, threads)), strict=True))

    current = dict(master)
    for index, member in enumerate(members):
        draw = partial(_draw, current, member, scheme, precision)
        yield tensors(draw)
        if index < precision.in_place_members:
            current = tensors(partial(draw, restore=True))


def _draw(
    weights: Weights, member: Member, scheme: Scheme, precision: Precision, name: str, *, restore: bool = False
) -> Array:
    work = restored if restore else perturbed
    return work(weights[name].numpy(), name, seed=member.seed, sigma=member.sigma, scheme=scheme, precision=precision)
