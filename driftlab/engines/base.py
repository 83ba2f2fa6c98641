"""What every engine can do: hold weights, generate, give token log-probabilities. Nothing above knows which runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Weights = Mapping[str, torch.Tensor]
"""Canonical Hugging Face parameter name to tensor; a tied tensor appears once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """One generated continuation.

    Attributes:
        tokens: generated token ids, without the end-of-sequence token.
        text: ``tokens`` decoded, special tokens skipped.
        truncated: the token limit was reached before the end-of-sequence token.
    """

    tokens: tuple[int, ...]
    text: str
    truncated: bool


class Engine(Protocol):
    """A live model whose weights can be replaced without a trace."""

    model: Any
    """The live transformers model (evaluation mode, one dtype, one device)."""
    tokenizer: Any

    def write(self, weights: Weights) -> None:
        """Serve ``weights``: each live parameter becomes one rounding of the given float32 tensor."""
        ...

    def encode(self, prompt: str, *, chat: bool) -> tuple[int, ...]:
        """Token ids of ``prompt``; with ``chat`` wrapped as one user turn with the generation prompt."""
        ...

    def generate(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[Completion]:
        """Greedy continuations of token-id prompts, in fixed batches of fixed order."""
        ...

    def end_tokens(self) -> frozenset[int]:
        """Ids that end a sequence."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seed: int, temperature: float = 1.0
    ) -> list[tuple[int, ...]]:
        """Continuations drawn from the full vocabulary, each prompt with a private generator of its own.

        Logits are divided by ``temperature``, which is above 0. A prompt that is given several times is answered
        independently each time. The end-of-sequence token, where it was drawn, is kept as the last token. Never empty.

        Raises:
            DriftlabError: logits are not finite, so that there is nothing to draw from.
        """
        ...

    def continuation_logits(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        """For each pair, float32 logits of shape [len(continuation), vocabulary] that predict its tokens."""
        ...
