"""Greedy decoding of a whole population at once, for models so small that calls cost more than arithmetic.

Every member's weights are stacked along a leading axis and one batched forward serves all of them. Covers the plain
Llama architecture (RMSNorm, rotary positions, grouped-query attention, SwiGLU); the tests hold it to the transformers
model, logit for logit. Shapes: M members, B prompts, T positions, D width, H heads, K key-value heads, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def check_supported(config: Any) -> str | None:
    """Why ``config`` cannot be stacked, or None when it can."""
    if config.model_type != "llama":
        return f"its architecture is {config.model_type}, not llama"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "it has biases"
    if config.rope_parameters.get("rope_type", "default") != "default":
        return f"its rotary positions are {config.rope_parameters['rope_type']}"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    return None


class StackedLlama:
    """M copies of one Llama with different weights.

    Args:
        config: the transformers ``LlamaConfig``.
        weights: canonical name to tensor of shape [M, *shape].
    """

    def __init__(self, config: Any, weights: Mapping[str, Tensor]) -> None:
        self.config = config
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        # [M, D_in, D_out], so that x @ w serves every member in one batched product.
        self.matrices = {name: w.transpose(1, 2).contiguous() for name, w in weights.items() if w.dim() == 3}
        self.vectors = {name: w[:, None, None, :] for name, w in weights.items() if w.dim() == 2}
        self.embedding = weights["model.embed_tokens.weight"]
        self.head = self.matrices.get("lm_head.weight", self.matrices["model.embed_tokens.weight"])
        theta = config.rope_parameters["rope_theta"]
        self.frequencies = 1.0 / theta ** (torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)

    def logits(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: dict[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Logits [M, B, V] of the last position.

        Args:
            ids: new token ids [M, B, T].
            positions: their positions [B, T].
            mask: True where attention is allowed, [B, T, S] over all S cached and new positions.
            cache: keys and values by layer, extended in place.
        """
        members, batch, length = ids.shape
        x = self.embedding.gather(1, ids.reshape(members, -1, 1).expand(-1, -1, self.embedding.shape[2])).view(
            members, batch, length, -1
        )
        angles = positions[..., None].float() * self.frequencies
        rotation = torch.cat([angles, angles], dim=-1)
        cos, sin = rotation.cos()[None, :, None], rotation.sin()[None, :, None]
        bias = torch.zeros(mask.shape, dtype=x.dtype).masked_fill(~mask, torch.finfo(x.dtype).min)[None, :, None]
        for layer in range(self.config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            normed = self._norm(x, prefix + "input_layernorm.weight")
            x = x + self._attention(normed, prefix + "self_attn.", cos, sin, bias, cache, layer)
            normed = self._norm(x, prefix + "post_attention_layernorm.weight")
            x = x + self._mlp(normed, prefix + "mlp.")
        last = self._norm(x[:, :, -1:], "model.norm.weight")
        return (last.view(members, batch, -1) @ self.head).view(members, batch, -1)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        members, batch, length, width = x.shape
        return (x.reshape(members, batch * length, width) @ self.matrices[name]).view(members, batch, length, -1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.config.rms_norm_eps)
        return self.vectors[name] * (x.float() * scale).to(x.dtype)

    def _mlp(self, x: Tensor, prefix: str) -> Tensor:
        gate = torch.nn.functional.silu(self._linear(x, prefix + "gate_proj.weight"))
        return self._linear(gate * self._linear(x, prefix + "up_proj.weight"), prefix + "down_proj.weight")

    def _attention(
        self,
        x: Tensor,
        prefix: str,
        cos: Tensor,
        sin: Tensor,
        bias: Tensor,
        cache: dict[int, tuple[Tensor, Tensor]],
        layer: int,
    ) -> Tensor:
        members, batch, length, _ = x.shape

        def heads(name: str, count: int) -> Tensor:
            return self._linear(x, prefix + name).view(members, batch, length, count, self.head_dim).transpose(2, 3)

        query = _rotate(heads("q_proj.weight", self.heads), cos, sin)
        key = _rotate(heads("k_proj.weight", self.kv_heads), cos, sin)
        value = heads("v_proj.weight", self.kv_heads)
        if layer in cache:
            key = torch.cat([cache[layer][0], key], dim=3)
            value = torch.cat([cache[layer][1], value], dim=3)
        cache[layer] = (key, value)
        groups = self.heads // self.kv_heads
        key, value = key.repeat_interleave(groups, dim=2), value.repeat_interleave(groups, dim=2)
        scores = query @ key.transpose(3, 4) * self.head_dim**-0.5 + bias
        mixed = scores.float().softmax(-1).to(x.dtype) @ value
        joined = mixed.transpose(2, 3).reshape(members, batch, length, self.heads * self.head_dim)
        return self._linear(joined, prefix + "o_proj.weight")


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


def greedy(
    model: StackedLlama,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    pad: int,
    ends: frozenset[int],
) -> list[list[list[int]]]:
    """Greedy continuations of every member for every prompt: [M][B] lists of ids, end token included."""
    width = max(len(prompt) for prompt in prompts)
    members = model.embedding.shape[0]
    left = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    real = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    # A padding row sees itself only, so that its softmax is defined; nothing reads it.
    mask = (causal & real[:, None, :]) | torch.eye(width, dtype=torch.bool)
    cache: dict[int, tuple[Tensor, Tensor]] = {}
    ids = left[None].expand(members, -1, -1)
    stops = torch.tensor(sorted(ends), dtype=torch.long)
    finished = torch.zeros(members, len(prompts), dtype=torch.bool)
    produced: list[Tensor] = []
    with torch.no_grad():
        for _ in range(max_new_tokens):
            token = model.logits(ids, positions, mask, cache).argmax(-1)
            produced.append(torch.where(finished, pad, token))
            finished |= torch.isin(token, stops)
            if finished.all():
                break
            ids = produced[-1][..., None]
            positions = positions[:, -1:] + 1
            mask = torch.cat([mask[:, -1:], torch.ones(len(prompts), 1, 1, dtype=torch.bool)], dim=2)
    return [[_until_end(row, ends) for row in member] for member in torch.stack(produced, dim=-1).tolist()]


def _until_end(row: list[int], ends: frozenset[int]) -> list[int]:
    stop = next((index for index, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: stop + 1]
