"""Floating-point operations of a transformer by formula, so that budgets of unlike trainers stand on one axis.

A multiplication and an addition count 2. A token's forward pass takes 2 P for the P weights that multiply activations,
and 4 L A c for attention over a context of c tokens (scores and weighted sum, L layers of width A = heads x head
size). A backward pass takes twice the forward: gradients of activations and of weights. Padding, recomputation, softmax
and normalisation are not counted (Kaplan et al. 2020, section 2.1, with the attention term summed exactly). All experts
of a mixture count, and a model without attention heads has no attention term.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the formula needs of a model.

    Attributes:
        weights: weights that multiply activations: all of them but an input embedding that is not also the head.
        layers, width: number of layers, and heads times head size.
        adapter_weights: weights of low-rank adapters, which are trained while ``weights`` are not; 0 without adapters.
    """

    weights: int
    layers: int
    width: int
    adapter_weights: int = 0


def shape_of(model: Any, adapter_weights: int = 0) -> Shape:
    """The shape of a live transformers causal language model, without its adapters."""
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight is embedding
    heads = getattr(config, "num_attention_heads", None)
    size = (getattr(config, "head_dim", None) or config.hidden_size // heads) if heads else 0
    return Shape(
        weights=sum(p.numel() for p in model.parameters()) - (0 if tied else embedding.numel()),
        layers=config.num_hidden_layers,
        width=(heads or 0) * size,
        adapter_weights=adapter_weights,
    )


def forward(shape: Shape, lengths: Iterable[int]) -> float:
    """Operations of one pass over sequences of ``lengths`` tokens; generating them token by token takes as many."""
    total = 0
    for n in lengths:
        # Token i attends to i tokens, itself included.
        total += 2 * (shape.weights + shape.adapter_weights) * n + 2 * shape.layers * shape.width * n * (n + 1)
    return float(total)


def backward(shape: Shape, lengths: Iterable[int]) -> float:
    """Operations of the backward pass over the same sequences.

    With adapters the frozen weights need gradients of activations only: once the forward instead of twice.
    """
    own = list(lengths)
    frozen = 2 * shape.weights * sum(own) if shape.adapter_weights else 0
    return 2 * forward(shape, own) - frozen
