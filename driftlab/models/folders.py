"""Checkpoints that somebody else trained: a folder with one Hugging Face folder per step."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch

from driftlab.errors import MissingDataError, RunError
from driftlab.models.base import load_base

_NAME = re.compile(r"(?:checkpoint|global_step|step|iter|iteration|epoch)?[-_]?(\d+)")
# verl keeps the merged model of a step below its actor.
_WITHIN = (".", "actor/huggingface", "actor", "huggingface")


def steps_in(path: str) -> dict[int, Path]:
    """Hugging Face folders below ``path`` by step, ascending: ``checkpoint-100`` (TRL), ``global_step_100`` (verl).

    Raises:
        MissingDataError: no such folder, or none of its folders ends in a step and holds a model.
        RunError: two folders of one step, one of step 0, or one without a model in it.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise MissingDataError(f"no folder at {path!r}: give the folder that holds the checkpoints, one folder a step")
    found: dict[int, Path] = {}
    for entry in sorted(folder.iterdir()):
        number = _NAME.fullmatch(entry.name)
        if number is None or not entry.is_dir():
            continue
        model = next((entry / part for part in _WITHIN if (entry / part / "config.json").is_file()), None)
        step = int(number.group(1))
        if model is None:
            raise RunError(f"{entry} holds no config.json: merge adapters and consolidate sharded states first")
        if step == 0:
            raise RunError(f"{entry} is of step 0, which is the base model: leave it out")
        if step in found:
            raise RunError(f"{found[step]} and {model} are both of step {step}; keep the one that belongs to the run")
        found[step] = model
    if not found:
        raise MissingDataError(
            f"{path!r} holds no checkpoint: a folder whose name ends in its step, such as checkpoint-100, with a "
            "Hugging Face model in it (adapters must be merged, sharded training states consolidated)"
        )
    return dict(sorted(found.items()))


def folder_weights(folder: Path, base: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights in ``folder``, float32, in the order of ``base``.

    Raises:
        RunError: other tensors, or other shapes, than the base has.
        DriftlabError: no readable model there.
    """
    weights = load_base(str(folder), dtype=torch.float32, device="cpu").weights
    odd = sorted(weights.keys() ^ base.keys()) or [name for name in base if weights[name].shape != base[name].shape]
    if odd:
        raise RunError(
            f"{folder} is not a checkpoint of the base model: they differ in {len(odd)} tensors, the first is {odd[0]}"
        )
    return {name: weights[name] for name in base}
