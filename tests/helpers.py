"""Tiny real models for tests: a random Llama with its own word-level tokenizer."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *"abcdefghijklmnop"]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Twenty tokens: four special, sixteen one-letter words."""
    core = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )


def tiny_llama(*, seed: int = 0, scale: float = 0.3, **overrides: Any) -> LlamaForCausalLM:
    """Two layers, width 16, grouped-query attention, tied embeddings, random weights large enough to have opinions."""
    settings: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    model = LlamaForCausalLM(LlamaConfig(**{**settings, **overrides})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.requires_grad_(False)


def weights_of(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    """Float32 copies under canonical names."""
    return {name: parameter.detach().float().clone() for name, parameter in model.named_parameters()}
