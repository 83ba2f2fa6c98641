"""The reference engine: a live Hugging Face model on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from driftlab.engines.base import Completion, Weights
from driftlab.errors import DriftlabError


class TransformersEngine:
    """Implements ``Engine`` over a causal language model.

    Batches are formed from prompts in the order given, ``batch_size`` at a time, so that a checkpoint is always
    scored in the same company: a batch's padding can move last bits.
    """

    def __init__(self, model: Any, tokenizer: Any, *, batch_size: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.device = model.device
        # named_parameters lists a tied tensor once, under its first name.
        self._parameters: Mapping[str, torch.nn.Parameter] = dict(model.named_parameters())

    def write(self, weights: Weights) -> None:
        if weights.keys() != self._parameters.keys():
            wrong = sorted(weights.keys() ^ self._parameters.keys())
            raise ValueError(f"weights do not match the model: {wrong[0]} is in one of them only")
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(weights[name])

    def encode(self, prompt: str, *, chat: bool) -> tuple[int, ...]:
        if chat:
            text = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        return tuple(self.tokenizer(prompt)["input_ids"])

    def generate(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[Completion]:
        completions: list[Completion] = []
        for batch in self._batches(prompts):
            ids, mask = self._left_pad(batch)
            with torch.no_grad():
                output = self.model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=False,
                    max_new_tokens=max_new_tokens,
                    pad_token_id=self._pad,
                )
            for row in output[:, ids.shape[1] :].tolist():
                completions.append(self.completion(row, max_new_tokens))
        return completions

    def completion(self, row: Sequence[int], max_new_tokens: int) -> Completion:
        """Cut generated ids at the first end-of-sequence token."""
        ends = self.end_tokens()
        length = next((index for index, token in enumerate(row) if token in ends), None)
        tokens = tuple(row[:length])
        return Completion(
            tokens=tokens,
            text=self.tokenizer.decode(tokens, skip_special_tokens=True),
            truncated=length is None and len(row) >= max_new_tokens,
        )

    def end_tokens(self) -> frozenset[int]:
        """Ids that end a sequence, from the generation config (chat models name several)."""
        end = self.model.generation_config.eos_token_id
        if end is None:
            end = self.tokenizer.eos_token_id
        return frozenset([end] if isinstance(end, int) else end or [])

    def sample(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, seed: int, temperature: float = 1.0
    ) -> list[tuple[int, ...]]:
        drawn: list[tuple[int, ...]] = []
        for batch in self._batches(prompts):
            # One stream per prompt: what one sequence draws does not depend on how long its neighbours are.
            streams = [np.random.default_rng([seed, len(drawn) + row]) for row in range(len(batch))]
            drawn += self._sample_batch(batch, max_new_tokens, streams, temperature)
        return drawn

    def _sample_batch(
        self,
        batch: Sequence[Sequence[int]],
        max_new_tokens: int,
        streams: Sequence[np.random.Generator],
        temperature: float,
    ) -> list[tuple[int, ...]]:
        ids, mask = self._left_pad(batch)
        ends = self.end_tokens()
        rows: list[list[int]] = [[] for _ in batch]
        open_rows = set(range(len(batch)))
        cache = None
        with torch.no_grad():
            while open_rows:
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
                output = self.model(
                    input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True
                )
                cache = output.cache
                # Division by 1 is exact.
                scaled = output.logits[:, -1].float() / temperature
                cumulative = scaled.softmax(-1).double().cumsum(-1).cpu().numpy()
                if not np.isfinite(cumulative[:, -1]).all():
                    raise DriftlabError(
                        f"logits at temperature {temperature:g} are not finite, so no answer can be drawn: the weights "
                        "or the activations overflowed, or the temperature is too small"
                    )
                chosen = [
                    min(int(np.searchsorted(row, stream.random() * row[-1], side="right")), len(row) - 1)
                    for row, stream in zip(cumulative, streams, strict=True)
                ]
                for index in sorted(open_rows):
                    rows[index].append(chosen[index])
                    if chosen[index] in ends or len(rows[index]) == max_new_tokens:
                        open_rows.discard(index)
                ids = torch.tensor(chosen, device=self.device)[:, None]
                mask = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        return [tuple(row) for row in rows]

    def continuation_logits(
        self, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]]
    ) -> list[torch.Tensor]:
        logits: list[torch.Tensor] = []
        pairs = list(zip(prompts, continuations, strict=True))
        for start in range(0, len(pairs), self.batch_size):
            batch = pairs[start : start + self.batch_size]
            ids, mask = self._left_pad([(*prompt, *continuation) for prompt, continuation in batch])
            longest = max(len(continuation) for _, continuation in batch)
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            with torch.no_grad():
                output = self.model(
                    input_ids=ids,
                    attention_mask=mask,
                    position_ids=positions,
                    use_cache=False,
                    # Left padding aligns the ends, so the needed rows are the last ones for every sequence.
                    logits_to_keep=longest + 1,
                )
            for row, (_, continuation) in zip(output.logits, batch, strict=True):
                logits.append(row[-len(continuation) - 1 : -1].float())
        return logits

    @property
    def _pad(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def _batches(self, prompts: Sequence[Sequence[int]]) -> Iterator[Sequence[Sequence[int]]]:
        for start in range(0, len(prompts), self.batch_size):
            yield prompts[start : start + self.batch_size]

    def _left_pad(self, batch: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids and attention mask, both [batch, longest]."""
        width = max(len(row) for row in batch)
        ids = [[self._pad] * (width - len(row)) + list(row) for row in batch]
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in batch]
        return torch.tensor(ids, device=self.device), torch.tensor(mask, device=self.device)
