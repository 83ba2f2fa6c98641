"""What to run: frozen, unknown keys refused, checked before anything is written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from driftlab.es.noise import Scheme
from driftlab.tasks.targets import target as find_target


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ModelSpec(_Frozen):
    """The base model.

    ``source`` is ``nano`` (the embedded model), a Hugging Face folder, a ``.gguf`` file, or a hub id.
    ``dtype`` is what is served; the master weights are always float32. ``chat`` renders training prompts and the
    prompts of generated tasks with the tokenizer's chat template; choice tasks keep lm-eval's stock form.
    """

    source: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    revision: str | None = None
    chat: bool = False


class TargetSpec(_Frozen):
    """The task trained on: ``train_items`` prompts, fixed for the whole run, answered greedily."""

    task: str
    train_items: Annotated[int, Field(ge=1)]
    data_seed: Annotated[int, Field(ge=0)] = 0
    max_new_tokens: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] = 32


class EsSpec(_Frozen):
    """Evolution strategy; ``alpha`` defaults to sigma / 2 (LIT-211, LIT-238)."""

    population: int
    iterations: Annotated[int, Field(ge=1)]
    sigma: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    alpha: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    mirrored: bool = False
    noise: Scheme = "keyed"
    rollouts: Literal["sequential", "stacked"] = "sequential"

    @property
    def step_scale(self) -> float:
        return self.sigma / 2 if self.alpha is None else self.alpha

    @model_validator(mode="after")
    def _population(self) -> Self:
        if self.population < 2:
            raise ValueError(
                f"es.population is {self.population}, but rewards are standardised over the population: use 2 or more"
            )
        if self.mirrored and self.population % 2:
            raise ValueError(
                f"es.population is {self.population} with es.mirrored, but mirrored members come in pairs: "
                "use an even number"
            )
        return self


class AnchorSpec(_Frozen):
    """Anchored Weight Decay towards the base weights, after each step (LIT-238)."""

    penalty: Literal["none", "l1", "l2"] = "none"
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False, alias="lambda")] = 0.0


class MeasureSpec(_Frozen):
    """Which steps are measured: every ``every`` iterations and those in ``at``; first and last always."""

    every: Annotated[int, Field(ge=1)] | None = None
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()

    def steps(self, iterations: int) -> tuple[int, ...]:
        chosen = {0, iterations, *self.at}
        if self.every is not None:
            chosen.update(range(0, iterations, self.every))
        return tuple(sorted(chosen))


class WeightsProbeSpec(_Frozen):
    tau: Annotated[float, Field(ge=0)] = 1e-6


class KlProbeSpec(_Frozen):
    """``sequences`` continuations of at most ``max_new_tokens`` tokens per text set, drawn once from the base."""

    sequences: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: int = 0


class LmEvalProbeSpec(_Frozen):
    """Prior tasks, by lm-eval name; ``items`` seeded documents each, the target's own task included."""

    tasks: tuple[str, ...]
    items: Annotated[int, Field(ge=1)]
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1)] = 16


class FloorProbeSpec(_Frozen):
    """The base scored again under conditions that ought not to matter.

    ``items`` per task, a seeded subset of those of ``lm_eval``; null for all of them.
    """

    items: Annotated[int, Field(ge=1)] | None = None


class ProbesSpec(_Frozen):
    weights: WeightsProbeSpec | None = WeightsProbeSpec()
    kl: KlProbeSpec | None = None
    lm_eval: LmEvalProbeSpec | None = None
    floor: FloorProbeSpec | None = None

    @model_validator(mode="after")
    def _floor_of_something(self) -> Self:
        if self.floor is not None and self.lm_eval is None:
            raise ValueError(
                "probes.floor measures the noise of probes.lm_eval, which is absent: add it or leave the floor out"
            )
        return self


Control = Literal["none", "shuffled-reward", "random-direction", "base"]


class RunSpec(_Frozen):
    """One run: one arm, one seed.

    ``control`` replaces training by a null control, whose updates say nothing about the task:
    ``shuffled-reward`` is ES with its coefficients dealt to other noise draws, a random walk; ``random-direction`` is
    a straight line of the walk's length along one noise draw; ``base`` measures the base model again at every step.
    ``keyframes_every`` stores full weights every so many updates (they only shorten replay); null stores none.
    ``threads`` is the number of CPU threads, part of what makes numbers repeatable.
    ``data`` is a folder of benchmark files in the hub's names; null reads the hub.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    arm: Annotated[str, Field(pattern=r"[A-Za-z0-9]")] = "ES"
    seed: Annotated[int, Field(ge=0)] = 0
    control: Control = "none"
    threads: Annotated[int, Field(ge=1)] = 1
    data: Path | None = None
    keyframes_every: Annotated[int, Field(ge=1)] | None = None
    model: ModelSpec
    target: TargetSpec
    es: EsSpec
    anchor: AnchorSpec = AnchorSpec()
    measure: MeasureSpec = MeasureSpec()
    probes: ProbesSpec = ProbesSpec()

    @property
    def decay(self) -> float:
        """alpha times lambda: what one application of the anchor takes."""
        return self.es.step_scale * self.anchor.lam

    @property
    def rolls_out(self) -> bool:
        """Whether training evaluates members; a control that does not has no rewards."""
        return self.control in ("none", "shuffled-reward")

    @model_validator(mode="after")
    def _possible_control(self) -> Self:
        if not self.rolls_out and self.anchor.penalty != "none":
            raise ValueError(
                f"control is {self.control} and anchor.penalty is {self.anchor.penalty}, but a {self.control} arm "
                'takes no anchor: give this arm anchor = { penalty = "none", lambda = 0.0 }'
            )
        if self.control == "random-direction" and self.es.mirrored:
            raise ValueError(
                "control is random-direction with es.mirrored, but a straight line has no mirrored members: "
                "set es.mirrored to false for this arm"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        find_target(self.target.task)
        if self.anchor.penalty == "l2" and self.decay >= 1:
            raise ValueError(
                f"anchor.lambda is {self.anchor.lam:g} with alpha {self.es.step_scale:g}, so alpha*lambda is "
                f"{self.decay:g}, but L2 anchored weight decay needs alpha*lambda below 1: lower anchor.lambda"
            )
        if self.anchor.penalty == "none" and self.anchor.lam > 0:
            raise ValueError(
                f"anchor.lambda is {self.anchor.lam:g} but anchor.penalty is none: set anchor.penalty to l1 or l2"
            )
        late = [step for step in self.measure.at if step > self.es.iterations]
        if late:
            raise ValueError(f"measure.at names step {late[0]}, but the run ends at step {self.es.iterations}")
        return self

    @property
    def only_embedded_tasks(self) -> bool:
        """Whether every task comes with the package, so that no data is read."""
        priors = () if self.probes.lm_eval is None else self.probes.lm_eval.tasks
        return all(task.startswith("embedded_") for task in (self.target.task, *priors))

    def measured_steps(self) -> tuple[int, ...]:
        return self.measure.steps(self.es.iterations)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types, with ``lambda`` spelled as in the files."""
        return self.model_dump(mode="json", by_alias=True)

    def digest(self) -> str:
        """SHA-256 of everything that can move a number; where the data lies on disk is not part of it."""
        return spec_digest(self.as_dict())


def spec_digest(spec: dict[str, Any]) -> str:
    """Digest of a resolved spec as stored in ``run.json``."""
    kept = {key: value for key, value in spec.items() if key != "data"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
