"""The policy that GRPO trains: what must be there before it starts, its weights, and where it can go on from."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from driftlab.errors import SpecError
from driftlab.es.noise import private_generator
from driftlab.run.parts import GrpoSpec, LoraSpec


def check_installed(grpo: GrpoSpec) -> None:
    """Raise SpecError where TRL, or PEFT for adapters, is not installed."""
    for name, needed in (("trl", True), ("peft", grpo.lora is not None)):
        if needed and importlib.util.find_spec(name) is None:
            raise SpecError(f"trainer grpo needs the package {name}; install it with `pip install 'driftlab[grpo]'`")


def check_modules(model: PreTrainedModel, lora: LoraSpec) -> None:
    """Raise SpecError where a module of ``lora`` is not among the linear layers of ``model``, or is its head."""
    head = model.get_output_embeddings()
    linear = {
        name.rsplit(".", 1)[-1]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }
    missing = [name for name in lora.modules if name not in linear]
    if missing:
        raise SpecError(
            f"grpo.lora.modules names {missing[0]!r}, but the model's linear layers are {', '.join(sorted(linear))}"
        )


def latest_state(folder: Path, at_most: int) -> tuple[int, Path] | None:
    """The last complete state that TRL left in ``folder`` at or before step ``at_most``; None without one."""
    found = {}
    for file in folder.glob("checkpoint-*/trainer_state.json"):
        try:
            # The trainer's own notes are written last: whole ones say that the rest is there.
            step = int(json.loads(file.read_text(encoding="utf-8"))["global_step"])
        except (ValueError, KeyError, TypeError):
            continue
        if step <= at_most:
            found[step] = file.parent
    return max(found.items()) if found else None


def canonical_weights(model: Any, base: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Float32 weights of ``model`` on the host under the names of ``base``; adapters are added to copies.

    Merging adapters into the live model and taking them out again would not restore it.
    """
    if not hasattr(model, "peft_config"):
        own = dict(model.named_parameters())
        return {name: own[name].detach().to("cpu", torch.float32, copy=True) for name in base}
    weights = {name: tensor.clone() for name, tensor in base.items()}
    for name, module in model.get_base_model().named_modules():
        if hasattr(module, "get_delta_weight"):
            weights[f"{name}.weight"] += module.get_delta_weight("default").detach().to("cpu", torch.float32)
    return weights


def prompt_order(run_seed: int, items: int, prompts: int, iterations: int) -> list[int]:
    """Which items each iteration asks, ``prompts`` at a time: every item once before any comes again.

    An iteration never asks an item twice: where ``prompts`` does not divide ``items``, the rest of a round is left out.
    """
    generator = private_generator(f"grpo-prompts|{run_seed}")
    per_round = items // prompts * prompts
    rounds = -(-iterations * prompts // per_round)
    order = [int(index) for _ in range(rounds) for index in generator.permutation(items)[:per_round]]
    return order[: iterations * prompts]
