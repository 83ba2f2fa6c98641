"""The way back to a Hugging Face folder: weights of any checkpoint, written whole or not at all."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from driftlab.models.base import ModelError, progress_bars_off


def save_folder(
    model: PreTrainedModel, tokenizer: Any, weights: Mapping[str, torch.Tensor], out: Path, dtype: torch.dtype
) -> Path:
    """Write a Hugging Face folder that ``AutoModelForCausalLM.from_pretrained`` loads; the live model is not changed.

    The folder appears whole or not at all: it is written beside ``out`` and renamed.

    Args:
        model: live model that gives architecture, configuration and buffers; its own parameter values are not used.
        tokenizer: written along, with its chat template.
        weights: canonical name to tensor, exactly the model's parameters; each is rounded once to ``dtype``.
        out: folder to create; its parent is created where needed.
        dtype: floating dtype on disk and in ``config.json``.

    Returns:
        ``out``.

    Raises:
        ModelError: ``out`` is taken, or ``weights`` are not those of ``model``.
    """
    refuse_taken(out)
    state = _state_to_save(model, weights, dtype)
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    own_config = model.config
    try:
        partial.mkdir(parents=True)
        model.config = copy.deepcopy(own_config)  # saving writes into it
        with progress_bars_off():
            model.save_pretrained(partial, state_dict=state)
        tokenizer.save_pretrained(partial)
        # transformers notes the live model's dtype; what lies in the folder is this one.
        config_file = partial / "config.json"
        config = json.loads(config_file.read_text(encoding="utf-8")) | {"dtype": str(dtype).removeprefix("torch.")}
        config_file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        for file in partial.iterdir():
            shutil.copymode(config_file, file)  # safetensors leaves its file readable by the owner alone
        partial.replace(out)
    finally:
        model.config = own_config
        shutil.rmtree(partial, ignore_errors=True)
    return out


def refuse_taken(out: Path) -> None:
    """Raise ModelError where ``out`` is a file or a folder with something in it."""
    if out.is_dir() and not any(out.iterdir()):
        return
    if out.exists():
        raise ModelError(f"output folder '{out}' is already there and is not empty; give another one or remove it")


def _state_to_save(
    model: PreTrainedModel, weights: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """State dict with ``weights`` in place of the live parameters; the names of a tied tensor share one tensor."""
    own = dict(model.named_parameters())
    wrong = sorted(set(own) ^ set(weights)) or [name for name in own if own[name].shape != weights[name].shape]
    if wrong:
        raise ModelError(
            f"the weights to save are not those of the model (first difference: {wrong[0]}); check the run"
        )
    rounded = {id(own[name]): weights[name].detach().to("cpu", dtype).contiguous() for name in own}
    state = dict(model.state_dict())
    state.update({name: rounded[id(p)] for name, p in model.named_parameters(remove_duplicate=False)})
    return state
