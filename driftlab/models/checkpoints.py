"""Where the weights of step t come from: the base and the first t updates, replayed with the trainer's own function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from driftlab.errors import RunError
from driftlab.es.noise import Scheme
from driftlab.es.update import Step, StepGeometry, apply_step
from driftlab.models.base import DTYPES, load_base
from driftlab.models.hashing import weights_hash
from driftlab.models.save import refuse_taken, save_folder
from driftlab.run.records import Update
from driftlab.run.store import RunStore


@dataclass(slots=True)
class State:
    """Weights after ``step`` updates.

    Attributes:
        base: float32 theta_0 on the host, never written.
        weights: float32 theta_t on the host; ``advance`` overwrites it.
        displacement: theta_t - theta_(t-1), for the step cosine; None at the base and right after a keyframe.
    """

    step: int
    base: Mapping[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    displacement: dict[str, np.ndarray] | None = None

    @classmethod
    def at_base(cls, base: Mapping[str, torch.Tensor]) -> State:
        return cls(0, base, {name: tensor.clone() for name, tensor in base.items()})

    def advance(self, step: Step, threads: int) -> StepGeometry:
        """Apply one update; training and replay both come through here."""
        self.displacement, geometry = apply_step(
            {name: tensor.numpy() for name, tensor in self.weights.items()},
            {name: tensor.numpy() for name, tensor in self.base.items()},
            step,
            previous=self.displacement,
            threads=threads,
        )
        self.step += 1
        return geometry

    def hash(self) -> str:
        return weights_hash(self.weights)


def step_of(update: Update, scheme: Scheme) -> Step:
    """The arithmetic of a stored update."""
    return Step(
        seeds=update.seeds,
        coefficients=update.coefficients,
        population=update.population,
        alpha=update.alpha,
        penalty=update.penalty,
        decay=update.decay,
        scheme=scheme,
    )


def rebuild(
    store: RunStore, base: Mapping[str, torch.Tensor], updates: Sequence[Update], step: int, *, threads: int
) -> State:
    """The state after ``step`` updates, from the nearest keyframe that leaves at least one update to replay.

    That one is needed for the displacement of the last step. The result is compared with the hash stored in the run.

    Raises:
        RunError: ``step`` is beyond the run, or the rebuilt weights are not the trained ones.
    """
    if not 0 <= step <= len(updates):
        raise RunError(f"{store.path} has steps 0 to {len(updates)}, not {step}")
    scheme: Scheme = store.manifest.spec["es"]["noise"]
    state = State.at_base(base)
    usable = [frame for frame in store.keyframe_steps() if frame <= step - 1]
    if usable:
        state = State(usable[-1], base, store.keyframe(usable[-1]))
    for update in updates[state.step : step]:
        state.advance(step_of(update, scheme), threads)
    if step > 0 and state.hash() != updates[step - 1].weights_hash:
        raise RunError(
            f"replaying {store.path} to step {step} gives other weights than were trained (hash mismatch): "
            f"use the device, dtype and package versions recorded in its run.json"
        )
    return state


def export(run_dir: Path, step: int | None, to: Path) -> int:
    """Write step ``step`` (None: the last) of a run as a Hugging Face folder in the run's served dtype.

    Returns:
        The step written.

    Raises:
        RunError: no such step, or the replayed weights are not the trained ones.
        ModelError: ``to`` is taken.
    """
    refuse_taken(to)
    store = RunStore.open(run_dir)
    updates = store.updates()
    wanted = len(updates) if step is None else step
    model, threads = store.manifest.spec["model"], store.manifest.spec["threads"]
    dtype = DTYPES[model["dtype"]]
    base = load_base(model["source"], dtype=dtype, device="cpu", revision=model["revision"])
    if base.weights_hash != store.manifest.model["weights_hash"]:
        raise RunError(f"{run_dir} started from other base weights than {model['source']} holds now")
    state = rebuild(store, base.weights, updates, wanted, threads=threads)
    save_folder(base.model, base.tokenizer, state.weights, to, dtype)
    return wanted
