"""The parts of a spec, one table of its file each."""

from __future__ import annotations

from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from driftlab.es.anchor import Penalty
from driftlab.es.noise import Scheme
from driftlab.es.precision import Dtype, Precision, Rule


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class ModelSpec(Frozen):
    """The base model.

    ``source`` is ``nano`` (the embedded model), a Hugging Face folder, a ``.gguf`` file, or a hub id.
    ``dtype`` is what is served; the master weights are float32 unless ``precision`` says otherwise.
    ``chat`` renders training prompts and the prompts of generated tasks with the tokenizer's chat template; choice
    tasks keep lm-eval's stock form.
    """

    source: str
    dtype: Dtype = "float32"
    device: str = "cpu"
    revision: str | None = None
    chat: bool = False


class TargetSpec(Frozen):
    """The task trained on: ``train_items`` prompts, fixed for the whole run, answered greedily."""

    task: str
    train_items: Annotated[int, Field(ge=1)]
    data_seed: Annotated[int, Field(ge=0)] = 0
    max_new_tokens: Annotated[int, Field(ge=1)]
    batch_size: Annotated[int, Field(ge=1)] = 32


class EsSpec(Frozen):
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


class LoraSpec(Frozen):
    """Low-rank adapters instead of all weights; merged into the weights at every checkpoint.

    ``modules`` are names of linear layers, as PEFT takes them; ``scale`` is LoRA's alpha, the adapter's product is
    multiplied by scale / rank.
    """

    rank: Annotated[int, Field(ge=1)]
    scale: Annotated[int, Field(ge=1)]
    modules: Annotated[tuple[str, ...], Field(min_length=1)]


class GrpoSpec(Frozen):
    """Group relative policy optimisation, by TRL's GRPOTrainer.

    One iteration draws ``generations`` answers to each of ``prompts`` prompts of the training batch and takes one
    optimiser step (AdamW, ``learning_rate`` held constant, no weight decay). ``beta`` weighs the KL penalty towards
    the base and has no default: runs with and without it are other methods. ``micro_batch`` is the rollouts of one
    forward and backward pass, ``loss`` TRL's ``loss_type``. Nothing is clipped but the gradient: with one step on a
    batch the ratio to the policy that drew it is 1. A run can go on from measured steps and every ``save_every``.
    """

    iterations: Annotated[int, Field(ge=1)]
    beta: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    prompts: Annotated[int, Field(ge=1)]
    generations: Annotated[int, Field(ge=2)]
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_gradient_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    micro_batch: Annotated[int, Field(ge=1)] | None = None
    save_every: Annotated[int, Field(ge=1)] | None = None
    loss: Literal["grpo", "dapo", "dr_grpo"] = "grpo"
    lora: LoraSpec | None = None

    @property
    def rollouts(self) -> int:
        """Rollouts of one iteration."""
        return self.prompts * self.generations

    @model_validator(mode="after")
    def _whole_batches(self) -> Self:
        size = self.micro_batch
        if size is not None and self.rollouts % size:
            raise ValueError(
                f"grpo.micro_batch is {size}, but an iteration's {self.prompts} x {self.generations} rollouts must be "
                "a whole number of micro batches: choose a divisor"
            )
        return self


class FoldersSpec(Frozen):
    """Checkpoints of any trainer: a folder with one Hugging Face folder per step, such as ``checkpoint-100``.

    Every step is measured; ``measure`` is not asked.
    """

    path: str


class PrecisionSpec(Frozen):
    """Format of the master weights and how steps are rounded into it; see ``driftlab.es.precision.Precision``.

    ``update`` must be given with a half-precision master: there is no usual way.
    """

    master: Dtype = "float32"
    update: Rule | None = None
    in_place_members: Annotated[int, Field(ge=0)] = 0

    @property
    def resolved(self) -> Precision:
        return Precision(master=self.master, update=self.update or "single", in_place_members=self.in_place_members)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.master != "float32" and self.update is None:
            raise ValueError(
                f"precision.master is {self.master}, but precision.update does not say how steps are rounded into it: "
                f"use one of {', '.join(get_args(Rule))}"
            )
        if self.in_place_members and self.update in ("stochastic", "error-feedback"):
            raise ValueError(
                f"precision.in_place_members is {self.in_place_members} with precision.update {self.update}, but "
                "members added and subtracted in place belong to the rules of published code: "
                "use single, accumulate or members"
            )
        return self


class AnchorSpec(Frozen):
    """Anchored Weight Decay towards the base weights, after each step (LIT-238).

    ``delta``, in units of the weights, is where Huber's pull stops growing.
    """

    penalty: Penalty = "none"
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False, alias="lambda")] = 0.0
    delta: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _delta(self) -> Self:
        if (self.penalty == "huber") != (self.delta is not None):
            got = f"anchor.penalty is {self.penalty} and anchor.delta is {self.delta}"
            raise ValueError(f"{got}, but delta belongs to huber alone: set anchor.delta with huber, and only then")
        return self


class MeasureSpec(Frozen):
    """Which steps are measured: every ``every`` iterations and those in ``at``; first and last always."""

    every: Annotated[int, Field(ge=1)] | None = None
    at: tuple[Annotated[int, Field(ge=0)], ...] = ()

    def steps(self, iterations: int) -> tuple[int, ...]:
        chosen = {0, iterations, *self.at}
        if self.every is not None:
            chosen.update(range(0, iterations, self.every))
        return tuple(sorted(chosen))


class WeightsProbeSpec(Frozen):
    """``tied_twice`` adds the norm of a state_dict, which holds a tied tensor once per name, as some papers print."""

    tau: Annotated[float, Field(ge=0)] = 1e-6
    tied_twice: bool = False


class RoundingProbeSpec(Frozen):
    """What of the last step of ES and of the anchor's pull arrived in the served and in the master's format."""


class KlProbeSpec(Frozen):
    """``sequences`` continuations of at most ``max_new_tokens`` tokens per text set, drawn once from the base."""

    sequences: Annotated[int, Field(ge=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    seed: int = 0


class LmEvalProbeSpec(Frozen):
    """Prior tasks, by lm-eval name; ``items`` seeded documents each, the target's own task included."""

    tasks: tuple[str, ...]
    items: Annotated[int, Field(ge=1)]
    seed: int = 0
    batch_size: Annotated[int, Field(ge=1)] = 16


class FloorProbeSpec(Frozen):
    """The base scored again under conditions that ought not to matter.

    ``items`` per task, a seeded subset of those of ``lm_eval``; null for all of them.
    """

    items: Annotated[int, Field(ge=1)] | None = None


class CoverageProbeSpec(Frozen):
    """``samples`` answers to each of ``items`` problems per task, a seeded subset of those of ``lm_eval``.

    ``k`` of pass@k beside 1, null for the powers of two up to ``samples``; ``tasks``, null for the target's own and
    every generative prior; ``at``, measured steps at which to sample, null for the first and the last.
    """

    samples: Annotated[int, Field(ge=2)]
    items: Annotated[int, Field(ge=1)]
    k: Annotated[tuple[Annotated[int, Field(ge=1, le=32)], ...], Field(min_length=1)] | None = None
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    seed: Annotated[int, Field(ge=0)] = 0
    at: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None

    @property
    def levels(self) -> tuple[int, ...]:
        """Every k, ascending, 1 among them."""
        powers = tuple(k for k in (2, 4, 8, 16, 32) if k <= self.samples)
        return tuple(sorted({1, *(powers if self.k is None else self.k)}))

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.levels[-1] > self.samples:
            raise ValueError(
                f"probes.coverage.k holds {self.levels[-1]}, but {self.samples} answers are drawn for a problem "
                "(probes.coverage.samples): draw as many as the largest k"
            )
        if self.temperature == 0:
            raise ValueError(
                "probes.coverage.temperature is 0, but several greedy answers are one answer, and that is what "
                "probes.lm_eval measures: use a temperature above 0"
            )
        return self


class HeldOutProbeSpec(Frozen):
    """``items`` of the target's own training pool that are kept out of the training batch, scored beside it."""

    items: Annotated[int, Field(ge=2)]


class ProbesSpec(Frozen):
    weights: WeightsProbeSpec | None = WeightsProbeSpec()
    rounding: RoundingProbeSpec | None = None
    kl: KlProbeSpec | None = None
    lm_eval: LmEvalProbeSpec | None = None
    floor: FloorProbeSpec | None = None
    coverage: CoverageProbeSpec | None = None
    held_out: HeldOutProbeSpec | None = None

    @model_validator(mode="after")
    def _coverage_of_something(self) -> Self:
        if self.coverage is not None and self.lm_eval is None:
            raise ValueError(
                "probes.coverage samples answers to the items of probes.lm_eval, which is absent: "
                "add it or leave coverage out"
            )
        return self

    @model_validator(mode="after")
    def _floor_of_something(self) -> Self:
        if self.floor is not None and self.lm_eval is None:
            raise ValueError(
                "probes.floor measures the noise of probes.lm_eval, which is absent: add it or leave the floor out"
            )
        return self
