"""What to run: frozen, unknown keys refused, checked before anything is written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from driftlab.run.parts import (
    AnchorSpec,
    EsSpec,
    FoldersSpec,
    Frozen,
    GrpoSpec,
    MeasureSpec,
    ModelSpec,
    PrecisionSpec,
    ProbesSpec,
    TargetSpec,
)
from driftlab.tasks.targets import target as find_target

Control = Literal["none", "shuffled-reward", "random-direction", "base"]
Trainer = Literal["es", "grpo", "folders"]


class RunSpec(Frozen):
    """One run: one arm, one seed.

    ``trainer`` says who makes the checkpoints, ES, GRPO, or somebody else (``folders``); a file may hold the tables of
    several, for several arms, and a run keeps its own.
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
    trainer: Trainer = "es"
    control: Control = "none"
    threads: Annotated[int, Field(ge=1)] = 1
    data: Path | None = None
    keyframes_every: Annotated[int, Field(ge=1)] | None = None
    model: ModelSpec
    target: TargetSpec
    es: EsSpec | None = None
    grpo: GrpoSpec | None = None
    folders: FoldersSpec | None = None
    anchor: AnchorSpec = AnchorSpec()
    precision: PrecisionSpec = PrecisionSpec()
    measure: MeasureSpec = MeasureSpec()
    probes: ProbesSpec = ProbesSpec()

    @model_validator(mode="before")
    @classmethod
    def _own_table(cls, given: Any) -> Any:
        """Without the tables of the other trainers: what is not used must not look as if it were."""
        if not isinstance(given, dict):
            return given
        own = given.get("trainer", "es")
        return {key: value for key, value in given.items() if key not in get_args(Trainer) or key == own}

    @model_validator(mode="after")
    def _has_table(self) -> Self:
        if getattr(self, self.trainer) is None:
            raise ValueError(f"trainer is {self.trainer}, but there is no [{self.trainer}] table: add it")
        return self

    @property
    def evolution(self) -> EsSpec:
        """The settings of an ES run.

        Raises:
            ValueError: the run is not one.
        """
        if self.es is None:
            raise ValueError(f"a run of trainer {self.trainer} has no evolution strategy")
        return self.es

    @property
    def iterations(self) -> int:
        """Iterations of training; 0 where somebody else trained."""
        if self.trainer == "folders":
            return 0
        return self.evolution.iterations if self.grpo is None else self.grpo.iterations

    @property
    def decay(self) -> float:
        """alpha times lambda: what one application of the anchor takes."""
        return 0.0 if self.es is None else self.es.step_scale * self.anchor.lam

    @property
    def rolls_out(self) -> bool:
        """Whether training evaluates members; a control that does not has no rewards."""
        return self.trainer != "folders" and self.control in ("none", "shuffled-reward")

    @property
    def walks(self) -> bool:
        """Whether the weights take steps along fresh noise, so that the random-walk law speaks of them."""
        return self.trainer == "es" and self.rolls_out

    @model_validator(mode="after")
    def _only_es(self) -> Self:
        """What belongs to ES alone must not be set, by an arm or for all arms, where another trainer ignores it."""
        set_here = {
            "anchor": self.anchor.penalty != "none" or self.anchor.lam > 0,
            "control": self.control != "none",
            "precision": self.precision != PrecisionSpec(),
            "keyframes_every": self.keyframes_every is not None,
        }
        wrong = [key for key, is_set in set_here.items() if is_set]
        if self.trainer != "es" and wrong:
            raise ValueError(
                f"{wrong[0]} is set, but it belongs to evolution strategies and this arm's trainer is {self.trainer}: "
                "set it in the arms it is meant for"
            )
        return self

    @model_validator(mode="after")
    def _possible_control(self) -> Self:
        if not self.rolls_out and self.anchor.penalty != "none":
            raise ValueError(
                f"control is {self.control} and anchor.penalty is {self.anchor.penalty}, but a {self.control} arm "
                'takes no anchor: give this arm anchor = { penalty = "none", lambda = 0.0 }'
            )
        if self.control == "random-direction" and self.evolution.mirrored:
            raise ValueError(
                "control is random-direction with es.mirrored, but a straight line has no mirrored members: "
                "set es.mirrored to false for this arm"
            )
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        find_target(self.target.task)
        if self.es is not None and self.anchor.penalty in ("l2", "huber") and self.decay >= 1:
            raise ValueError(
                f"anchor.lambda is {self.anchor.lam:g} with alpha {self.es.step_scale:g}, so alpha*lambda is "
                f"{self.decay:g}, but {self.anchor.penalty.capitalize()} anchored weight decay needs alpha*lambda "
                "below 1: lower anchor.lambda"
            )
        if self.anchor.penalty == "none" and self.anchor.lam > 0:
            raise ValueError(
                f"anchor.lambda is {self.anchor.lam:g} but anchor.penalty is none: "
                "set anchor.penalty to l1, l2 or huber"
            )
        late = [step for step in self.measure.at if step > self.iterations and self.trainer != "folders"]
        if late:
            raise ValueError(f"measure.at names step {late[0]}, but the run ends at step {self.iterations}")
        if self.grpo is not None and self.seed >= 2**32:
            raise ValueError(f"seed is {self.seed}, but TRL takes seeds below 2**32: choose another")
        if self.grpo is not None and self.model.dtype == "float16" and self.model.device == "cpu":
            raise ValueError("model.dtype is float16, in which TRL does not train on a CPU: use float32 or bfloat16")
        if self.grpo is not None and self.grpo.prompts > self.target.train_items:
            raise ValueError(
                f"grpo.prompts is {self.grpo.prompts}, but the training batch has {self.target.train_items} "
                "(target.train_items): lower it"
            )
        return self

    @model_validator(mode="after")
    def _possible_precision(self) -> Self:
        kept = self.precision
        if kept.master != "float32" and self.model.dtype not in ("float32", kept.master):
            raise ValueError(
                f"precision.master is {kept.master} and model.dtype is {self.model.dtype}, but rounding half precision "
                f"to another half precision mixes two errors: serve {kept.master}, or float32, which holds it exactly"
            )
        population = self.evolution.population if self.trainer == "es" else 0
        if kept.in_place_members > (population if self.rolls_out else 0):
            what = f"es.population is {population}" if self.rolls_out else f"a {self.control} arm has no members"
            raise ValueError(f"precision.in_place_members is {kept.in_place_members}, but {what}: lower it")
        if self.control == "random-direction" and kept.update == "stochastic":
            raise ValueError(
                "control is random-direction with precision.update stochastic, but a straight line repeats its noise "
                "and would repeat its dice: use another rule"
            )
        if self.keyframes_every and kept.update == "error-feedback":
            raise ValueError(
                "keyframes_every is set with precision.update error-feedback, but a keyframe lacks the residual "
                "that is carried: leave keyframes out"
            )
        return self

    @property
    def only_embedded_tasks(self) -> bool:
        """Whether every task comes with the package, so that no data is read."""
        priors = () if self.probes.lm_eval is None else self.probes.lm_eval.tasks
        return all(task.startswith("embedded_") for task in (self.target.task, *priors))

    def measured_steps(self) -> tuple[int, ...]:
        return self.measure.steps(self.iterations)

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
