"""Train the nano model: ``python -m driftlab.models.nano_train --out DIR``, deterministic, one thread, minutes.

The same command on the same machine and library versions writes the same bytes.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from driftlab.tasks.embedded.documents import TrainingText
from driftlab.tasks.embedded.suite import training_batches
from driftlab.tasks.embedded.world import World, build_world

SEED = 1
STEPS = 2500
"""Steps on true text, in which the model learns to look things up in its context."""
UNSURE_STEPS = 500
"""Steps after that on text as hearsay has it. With hearsay from the start the looking up was not learned."""
WARMUP = 100
LEARNING_RATE = 4e-3
UNSURE_LEARNING_RATE = 2e-3
WEIGHT_DECAY = 0.05
INITIAL_STD = 0.05
SHORT = 16
"""Texts of up to this many words go through the model apart from longer ones, so that little is padding."""
IGNORED = -100
"""PyTorch's label of positions that are not learned."""


def build_tokenizer(world: World) -> PreTrainedTokenizerFast:
    """One token per word of ``world``; nothing is added to a text, neither at its start nor at its end."""
    ids = {word: i for i, word in enumerate(world.vocabulary())}
    words = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        model_max_length=64,
        clean_up_tokenization_spaces=False,
    )


def build_model(vocabulary: Mapping[str, int], seed: int) -> LlamaForCausalLM:
    """The untrained model, initialised from a private generator; global random states stay as they were."""
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=vocabulary["<pad>"],
        bos_token_id=vocabulary["<bos>"],
        eos_token_id=vocabulary["<eos>"],
    )
    with torch.random.fork_rng(devices=[]):
        model = LlamaForCausalLM(config).float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=INITIAL_STD, generator=generator)
    return model


def encode(texts: list[TrainingText], vocabulary: Mapping[str, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, labels) of shape [texts, longest]; labels are shifted already, and IGNORED where nothing is learned."""
    rows = [
        [(word, kind) for part in text.parts for kind, words in enumerate(part) for word in words.split()]
        for text in texts
    ]
    longest = max(map(len, rows))
    inputs = torch.full((len(rows), longest), vocabulary["<pad>"])
    labels = torch.full((len(rows), longest), IGNORED)
    for i, row in enumerate(rows):
        ids = [vocabulary[word] for word, _ in row]
        inputs[i, : len(row)] = torch.tensor(ids)
        following = [vocabulary[word] if learned else IGNORED for word, learned in row[1:]]
        labels[i, : len(row)] = torch.tensor([*following, vocabulary["<eos>"]])
    return inputs, labels


def summed_loss(model: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Sum of the cross-entropies in nats of the learned tokens; a scalar."""
    learned = labels != IGNORED
    # Right padding comes after every learned token, which causal attention cannot see: no mask is needed.
    hidden = model.model(input_ids=inputs).last_hidden_state[learned]
    return torch.nn.functional.cross_entropy(model.lm_head(hidden), labels[learned], reduction="sum")


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up to ``peak``, then half a cosine to zero."""
    if step < WARMUP:
        return peak * (step + 1) / WARMUP
    return peak * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(steps - WARMUP, 1)))


def train(
    model: LlamaForCausalLM,
    batches: Iterator[list[TrainingText]],
    vocabulary: Mapping[str, int],
    steps: int,
    peak: float,
) -> None:
    """Fit ``model`` in place with AdamW, one batch a step."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=WEIGHT_DECAY)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("loss {task.fields[loss]:.3f}"))
    with Progress(*columns) as progress:
        bar = progress.add_task("training", total=steps, loss=float("nan"))
        for step in range(steps):
            texts = next(batches)
            groups = [[t for t in texts if (len(t.text.split()) <= SHORT) is short] for short in (True, False)]
            encoded = [encode(group, vocabulary) for group in groups]
            learned = sum(int((labels != IGNORED).sum()) for _, labels in encoded)
            loss = torch.stack([summed_loss(model, *pair) for pair in encoded]).sum() / learned
            optimizer.param_groups[0]["lr"] = learning_rate(step, steps, peak)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            progress.update(bar, advance=1, loss=loss.item())


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write a Hugging Face folder: configuration, float32 weights, tokenizer, greedy generation settings."""
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.eval().save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the nano model of the embedded suite.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the model to")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimiser steps (default: %(default)s)")
    parser.add_argument("--unsure-steps", type=int, default=UNSURE_STEPS, help="then (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=SEED, help="initial weights and training text (default: %(default)s)"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    world = build_world()
    tokenizer = build_tokenizer(world)
    vocabulary = tokenizer.get_vocab()
    model = build_model(vocabulary, arguments.seed)
    true, unsure = (training_batches(world, arguments.seed, unsure=unsure) for unsure in (False, True))
    train(model, true, vocabulary, arguments.steps, LEARNING_RATE)
    train(model, unsure, vocabulary, arguments.unsure_steps, UNSURE_LEARNING_RATE)
    save(model, tokenizer, arguments.out)


if __name__ == "__main__":
    main()
