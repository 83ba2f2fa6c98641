"""Running a sequence stage by stage, and what is read of a finished one.

A stage is an ordinary run whose base is the end of the stage before it, written as a Hugging Face folder in float32.
The master weights are float32 numbers whatever is served, so that folder holds them exactly: nothing is rounded between
stages, and its hash is that of the last update. Nothing is trained here: the caller says how a stage is run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from driftlab.drift.sequences import stage_products
from driftlab.drift.stats import Array
from driftlab.errors import RunError
from driftlab.models.base import BaseModel, load_base
from driftlab.models.checkpoints import check_base, in_format, weights_at
from driftlab.models.save import save_folder
from driftlab.report.runs import read_run
from driftlab.report.sequences import SequenceData
from driftlab.run.store import RunStore
from driftlab.sequence.plan import Chain, Stage


def run_chain(chain: Chain, execute: Callable[[Stage, Path], None]) -> None:
    """Run what is not finished, stage by stage, and write the end of each.

    Args:
        chain: checked by ``refuse_other``.
        execute: runs a stage in the folder given, or goes on with it.

    Raises:
        RunError: the end of a stage is missing where another started from it, or is not what that stage ended with.
        DriftlabError: what ``execute`` raises.
    """
    for stage in chain.stages:
        if stage.number == 1:
            _begin(chain, execute)
        else:
            execute(stage, chain.path)
        _write_end(chain, stage)


def _begin(chain: Chain, execute: Callable[[Stage, Path], None]) -> None:
    """The first stage; a sequence whose first run could not start leaves nothing."""
    first, file = chain.stages[0], chain.path / "sequence.json"
    if not file.exists():
        chain.path.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f".{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(chain.request, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(file)
    try:
        execute(first, chain.path)
    finally:
        if not (chain.path / first.folder).exists():
            file.unlink()
            with suppress(OSError):  # whatever else lies there stays
                for folder in (chain.path, *chain.path.parents[:2]):
                    folder.rmdir()


def _write_end(chain: Chain, stage: Stage) -> None:
    folder, store = chain.after(stage.number), RunStore.open(chain.path / stage.folder)
    if folder.exists():
        _checked_end(folder, store)
        return
    if stage.number < len(chain.stages) and (chain.path / chain.stages[stage.number].folder).exists():
        raise RunError(
            f"{folder} is missing, but {chain.stages[stage.number].folder} started from it: restore it from a copy, "
            "or start anew with another --out"
        )
    base = _start(stage, store)
    weights = weights_at(store, base.weights, stage.spec.iterations)
    save_folder(base.model, base.tokenizer, weights, folder, torch.float32)
    _checked_end(folder, store)


def _start(stage: Stage, store: RunStore) -> BaseModel:
    """The base of a stage in float32. Raises RunError when it is not what the stage started from."""
    base = _loaded(stage.spec.model.source, stage.spec.model.revision)
    check_base(store, base)
    return base


def _checked_end(folder: Path, store: RunStore) -> BaseModel:
    """The end of a stage as written. Raises RunError when it is not what the stage ended with."""
    base = _loaded(str(folder), None)
    if base.weights_hash != store.updates()[-1].weights_hash:
        raise RunError(
            f"{folder} does not hold the weights with which {store.path} ended (hash mismatch): restore it from a "
            "copy, or start anew with another --out"
        )
    return base


def _loaded(source: str, revision: str | None) -> BaseModel:
    return load_base(source, dtype=torch.float32, device="cpu", revision=revision)


def read_chain(chain: Chain) -> SequenceData:
    """The runs of a finished sequence, and the products of its stages' displacements.

    All its checkpoints are held in memory at once, in float32. Displacements are counted from the base in the master's
    format, as a run counts its own.

    Raises:
        RunError: a run cannot be read, or weights are not those that it started from or ended with.
    """
    stores = [RunStore.open(chain.path / stage.folder) for stage in chain.stages]
    base = _start(chain.stages[0], stores[0])
    checkpoints = [in_format(base.weights, chain.asked.spec.precision.resolved.master)]
    for stage, store in zip(chain.stages, stores, strict=True):
        checkpoints.append(_checked_end(chain.after(stage.number), store).weights)
    products: Array = np.zeros((len(stores), len(stores)))
    for name in base.weights:
        products += stage_products([weights[name].numpy() for weights in checkpoints])
    return SequenceData(
        seed=chain.asked.spec.seed,
        targets=chain.targets,
        walks=chain.asked.spec.walks,
        runs=tuple(read_run(store.path) for store in stores),
        products=products,
        parameters=base.n_parameters,
    )
