"""Rollouts of a population: members are master + sigma * noise, written elsewhere and never subtracted back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftlab.engines import stacked
from driftlab.engines.base import Completion, Weights
from driftlab.engines.transformers import TransformersEngine
from driftlab.errors import SpecError
from driftlab.es.noise import Scheme
from driftlab.es.update import each_tensor, perturbed


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

    def __call__(
        self, master: Weights, members: Sequence[Member], prompts: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        results = []
        for member in members:
            self.engine.write(perturb(master, member, self.scheme, self.threads))
            results.append(self.engine.generate(prompts, max_new_tokens=self.max_new_tokens))
        return results


@dataclass(frozen=True, kw_only=True, slots=True)
class StackedRollouts:
    """All members in one batched forward; ``refuse_unstackable`` says beforehand whether the model allows it."""

    engine: TransformersEngine
    scheme: Scheme
    max_new_tokens: int
    threads: int

    def __call__(
        self, master: Weights, members: Sequence[Member], prompts: Sequence[Sequence[int]]
    ) -> list[list[Completion]]:
        model = self.engine.model
        perturbations = [perturb(master, member, self.scheme, self.threads) for member in members]
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


def perturb(master: Weights, member: Member, scheme: Scheme, threads: int) -> dict[str, torch.Tensor]:
    """``master + sigma * noise`` in new memory, float32."""

    def one(name: str) -> torch.Tensor:
        return torch.from_numpy(
            perturbed(master[name].numpy(), name, seed=member.seed, sigma=member.sigma, scheme=scheme)
        )

    return dict(zip(master, each_tensor(one, master, threads), strict=True))
