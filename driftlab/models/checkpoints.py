"""Where the weights of step t come from: the base and the first t updates, replayed with the trainer's own function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from driftlab.errors import RunError
from driftlab.es.precision import FLOAT32, Dtype, Precision, rounded
from driftlab.es.step import Step, Watch
from driftlab.es.survival import Survival
from driftlab.es.update import StepGeometry, apply_step, in_place_members
from driftlab.models.base import DTYPES, BaseModel, load_base
from driftlab.models.folders import folder_weights, steps_in
from driftlab.models.hashing import weights_hash
from driftlab.models.save import refuse_taken, save_folder
from driftlab.run.records import Iteration, Update
from driftlab.run.spec import RunSpec
from driftlab.run.store import RunStore


@dataclass(slots=True)
class State:
    """Weights after ``step`` updates.

    Attributes:
        base: theta_0 on the host in the master's format (held as float32), never written.
        weights: theta_t, likewise; ``advance`` overwrites it.
        displacement: theta_t - theta_(t-1), for the step cosine; None at the base and right after a keyframe.
        residual: what error feedback carries to the next step; None for every other rule.
        watch: what to ask of each step's survival; None to ask nothing.
        survival: of the last step, by tensor and format; empty before the first and where nothing is asked.
    """

    step: int
    base: Mapping[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    displacement: dict[str, np.ndarray] | None = None
    residual: dict[str, np.ndarray] | None = None
    watch: Watch | None = None
    survival: Mapping[str, Mapping[str, Survival]] = field(default_factory=dict)

    @classmethod
    def at_base(
        cls, base: Mapping[str, torch.Tensor], precision: Precision = FLOAT32, watch: Watch | None = None
    ) -> State:
        """The base in the master's format; ``base`` itself may be finer and is not written to."""
        grid = in_format(base, precision.master)
        residual: dict[str, np.ndarray] | None = {} if precision.update == "error-feedback" else None
        return cls(0, grid, {name: tensor.clone() for name, tensor in grid.items()}, residual=residual, watch=watch)

    def advance(self, step: Step, threads: int) -> StepGeometry:
        """Apply one update; training and replay both come through here."""
        stepped = apply_step(
            {name: tensor.numpy() for name, tensor in self.weights.items()},
            {name: tensor.numpy() for name, tensor in self.base.items()},
            step,
            residual=self.residual,
            previous=self.displacement,
            threads=threads,
            watch=self.watch,
        )
        self.displacement, self.survival = stepped.displacement, stepped.survival
        self.step += 1
        return stepped.geometry

    def hash(self) -> str:
        return weights_hash(self.weights)


def in_format(weights: Mapping[str, torch.Tensor], dtype: Dtype) -> Mapping[str, torch.Tensor]:
    """``weights`` rounded to ``dtype``, held as float32; the same tensors for float32."""
    if dtype == "float32":
        return weights
    return {name: torch.from_numpy(rounded(tensor.numpy(), dtype)) for name, tensor in weights.items()}


def step_of(update: Update, spec: RunSpec) -> Step:
    """The arithmetic of a stored update of a run of ``spec``."""
    precision = spec.precision.resolved
    return Step(
        seeds=update.seeds,
        coefficients=update.coefficients,
        population=update.population,
        alpha=update.alpha,
        penalty=update.penalty,
        decay=update.decay,
        scheme=spec.evolution.noise,
        delta=update.delta,
        precision=precision,
        in_place=in_place_members(update.seeds, update.sigma, mirrored=spec.evolution.mirrored, precision=precision),
    )


def check_base(store: RunStore, base: BaseModel) -> None:
    """Raises RunError when the source of the base holds other weights than the run started from."""
    if base.weights_hash != store.manifest.model["weights_hash"]:
        raise RunError(f"{store.path} started from other base weights than {base.source} holds now")


def es_updates(updates: Sequence[Iteration]) -> list[Update]:
    """``updates``, which must be those of an ES run.

    Raises:
        RunError: one of them is another trainer's.
    """
    found = [update for update in updates if isinstance(update, Update)]
    if len(found) < len(updates):
        raise RunError("only the updates of evolution strategies can be replayed; this run has another trainer")
    return found


def rebuild(
    store: RunStore,
    base: Mapping[str, torch.Tensor],
    updates: Sequence[Iteration],
    step: int,
    watch: Watch | None = None,
) -> State:
    """The state after ``step`` updates of ES, from the nearest keyframe that leaves at least one update to replay.

    That one is needed for the displacement of the last step. The result is compared with the hash stored in the run.

    Raises:
        RunError: ``step`` is beyond the run, it is no ES run, or the rebuilt weights are not the trained ones.
    """
    spec = RunSpec.model_validate(store.manifest.spec)
    own = es_updates(updates)
    if not 0 <= step <= len(own):
        raise RunError(f"{store.path} has steps 0 to {len(own)}, not {step}")
    state = State.at_base(base, spec.precision.resolved, watch)
    usable = [frame for frame in store.keyframe_steps() if frame <= step - 1]
    if usable:
        # In the order of the base: sums over tensors must repeat their last bit.
        frame = store.keyframe(usable[-1])
        state = State(usable[-1], state.base, {name: frame[name] for name in state.base}, watch=watch)
    for update in own[state.step : step]:
        state.advance(step_of(update, spec), spec.threads)
    if step > 0 and state.hash() != own[step - 1].weights_hash:
        raise RunError(
            f"replaying {store.path} to step {step} gives other weights than were trained (hash mismatch): "
            f"use the device, dtype and package versions recorded in its run.json"
        )
    return state


def weights_at(store: RunStore, base: Mapping[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
    """The master weights after ``step`` updates, wherever the trainer of the run left them.

    ES: replayed. GRPO: those that were kept, at measured steps. Folders: read from the folder of the step.

    Raises:
        RunError: no such step, its weights were not kept, or they are not those that were trained.
    """
    trainer = store.manifest.spec.get("trainer", "es")
    if trainer == "es":
        return rebuild(store, base, store.updates(), step).weights
    if step == 0:
        return {name: tensor.clone() for name, tensor in base.items()}
    if trainer == "folders":
        folders = steps_in(store.manifest.spec["folders"]["path"])
        if step not in folders:
            raise RunError(f"{store.path} has steps 0, {', '.join(map(str, folders))}, not {step}")
        return folder_weights(folders[step], base)
    updates = store.updates()
    # One beyond the last update was being stored when the run was stopped.
    kept = [frame for frame in store.keyframe_steps() if frame <= len(updates)]
    if step not in kept:
        raise RunError(f"{store.path} kept the weights of steps {', '.join(map(str, [0, *kept]))}, not of {step}")
    frame = store.keyframe(step)
    weights = {name: frame[name] for name in base}
    if weights_hash(weights) != updates[step - 1].weights_hash:
        raise RunError(f"the weights of step {step} in {store.path} are not those that were trained; restore a copy")
    return weights


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
    if "imported" in store.manifest.spec:
        raise RunError(
            f"{run_dir} is a run of other code, whose checkpoints cannot be rebuilt bit for bit; export one from where "
            "it was trained"
        )
    last = store.example_steps()[-1] if store.manifest.spec.get("trainer") == "folders" else len(store.updates())
    wanted = last if step is None else step
    model = store.manifest.spec["model"]
    dtype = DTYPES[model["dtype"]]
    base = load_base(model["source"], dtype=dtype, device="cpu", revision=model["revision"])
    check_base(store, base)
    save_folder(base.model, base.tokenizer, weights_at(store, base.weights, wanted), to, dtype)
    return wanted
