"""The lm_eval probe: per item equal to lm-eval's own evaluation, and no trace left."""

from __future__ import annotations

import hashlib
import os
import random
import string
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from driftlab.errors import DriftlabError, MissingDataError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.lm_eval import LmEvalProbe

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def tiny_engine(*, seed: int = 0, max_length: int = 8192, **generation: Any) -> Any:
    """A random two-layer Llama over characters; the probe needs an engine's model and tokenizer only."""
    words = [*SPECIAL, *(c for c in string.printable if c not in "\r\x0b\x0c\t")]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=max_length,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    model.requires_grad_(False)
    for key, value in generation.items():
        setattr(model.generation_config, key, value)
    return SimpleNamespace(model=model, tokenizer=tokenizer)
