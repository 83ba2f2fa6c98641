"""The facts a run stores, one line each: updates, measurements, examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from driftlab.es.anchor import Penalty

Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one iteration took, beside its tokens and seconds.

    Attributes:
        rollouts: completions generated for training; measurements are not training and are not counted.
        forward_flops, backward_flops: floating-point operations by the formula of ``driftlab.models.flops``; padding
            and recomputation are not counted.
        process_peak_bytes: largest resident memory of the process since training began; None where the system does not
            say.
        device_peak_bytes: largest allocated memory of the accelerator since then; None on a CPU.
        stored_bytes: weights that the iteration left in the run directory. Its own line is not counted, nor what
            another library keeps until the run is finished, to go on from.
    """

    rollouts: int
    forward_flops: float
    backward_flops: float
    process_peak_bytes: int | None
    device_peak_bytes: int | None
    stored_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """What every trainer records of one iteration.

    Attributes:
        step: updates applied, this one included; the first is 1, the base model is 0.
        rewards: mean reward of each member (ES; mirrored: all plus members, then all minus members) or reward of each
            rollout (GRPO); empty for a null control without rollouts.
        step_norm: L2 norm of this step in weight space, decay included; None where nobody computed it (a run of
            other code that was not replayed, a step of GRPO whose weights were not kept).
        step_cosine: cosine with the previous step; None for the first step or when a step is zero, and as above.
        weights_hash: hash of the master weights after this update; None as for ``step_norm``.
        prompt_tokens, generated_tokens: tokens of all rollouts, padding not counted.
        seconds: wall time. ES: ``rollout``, ``reward``, ``update`` (noise, step and hash) and ``total``. GRPO:
            ``model`` (generation, forward, backward), ``reward`` and ``total``.
        note: plain words, for example that all rewards were equal.
        cost: None in runs of schema 3 and older, and in runs of other code.
    """

    step: int
    rewards: tuple[float, ...]
    step_norm: float | None
    step_cosine: float | None
    weights_hash: str | None
    prompt_tokens: int
    generated_tokens: int
    seconds: Mapping[str, float]
    note: str | None = None
    cost: Cost | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Update(Iteration):
    """One ES iteration, enough to replay it: ``theta += (alpha / population) * sum(coefficient * noise(seed))``.

    Attributes:
        seeds: one per noise draw (half the population when mirrored).
        coefficients: one per seed, as applied, after shaping.
        population: number of members N; the divisor of the update.
        sigma: perturbation scale used for the rollouts.
        alpha: step scale.
        penalty, decay: anchored weight decay after the step; ``decay`` is alpha times lambda.
        delta: where Huber's pull stops growing; None for the other penalties.
    """

    seeds: tuple[int, ...]
    coefficients: tuple[float, ...]
    population: int
    sigma: float
    alpha: float
    penalty: Penalty
    decay: float
    delta: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientStep(Iteration):
    """One GRPO iteration. It cannot be replayed: the weights of measured steps are kept whole.

    Attributes:
        generations: rollouts per prompt, G.
        loss: as the trainer reports it.
        gradient_norm: L2 norm of the gradient before clipping.
        learning_rate: of this step.
        beta: weight of the KL penalty in the loss.
        kl_estimate: the trainer's own estimate of KL(policy || reference), its k3 estimator on its own rollouts
            (nats/token); None at beta 0, where it computes none.
    """

    generations: int
    loss: float | None
    gradient_norm: float | None
    learning_rate: float | None
    beta: float
    kl_estimate: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One number about one checkpoint.

    Attributes:
        step: updates applied to the base model when it was measured.
        probe: ``weights``, ``rounding``, ``kl``, ``lm_eval``, ``floor``, ``coverage`` or ``held_out``.
        quantity: the glossary's name for it, for example ``accuracy``.
        group: task, text set or layer group; ``all`` for the whole model.
        value: None exactly when ``status`` is not ``ok``.
        unit: ``l2``, ``fraction``, ``nats/token``, ...
        stderr: standard error; None where none is defined.
        n: items, sequences or parameters behind the value.
        n_failed, n_unparsed: items that failed, and answers that could not be read, among ``n``.
        status, note: ``failed`` and ``skipped`` rows say why in ``note``.
    """

    step: int
    probe: str
    quantity: str
    group: str
    value: float | None
    unit: str
    stderr: float | None
    n: int
    n_failed: int = 0
    n_unparsed: int = 0
    status: Status = "ok"
    note: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) != (self.status != "ok"):
            raise ValueError(f"measurement {self.quantity}/{self.group}: value {self.value} with status {self.status}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """One evaluation item at one checkpoint; pairs across checkpoints by ``item``.

    Attributes:
        task: lm-eval task name.
        item: content hash of the document.
        cluster: items that are not independent share it, such as questions on one theory; the item itself otherwise.
        stratum: the part of the benchmark that the item belongs to (a category), which was fixed and not sampled;
            None where there is none, and in runs of schema 1.
        correct: headline metric of the item, 0 or 1.
        score: log-likelihood margin (gold minus best other, nats) for choice tasks, reward for generated ones;
            None where undefined.
        output_length: generated characters; None for choice tasks.
        parsed, truncated: None for choice tasks.
        output: generated text; None for choice tasks.
        answer: text of the choice that was taken, or what the task's filter or scorer read in ``output``. None when
            nothing could be read or there is neither, and in runs of schema 1.
    """

    step: int
    task: str
    item: str
    cluster: str
    correct: float
    score: float | None
    output_length: int | None
    parsed: bool | None
    truncated: bool | None
    output: str | None
    stratum: str | None = None
    answer: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CoverageItem:
    """One problem at one checkpoint, answered several times by sampling.

    Attributes:
        task, item, cluster: as in ``Example``.
        samples: answers drawn.
        correct, parsed, truncated: how many of them are right, could be read, met the token limit.
        distinct, distinct_correct: different answers among those that could be read, and among the right ones.
        entropy: plug-in entropy of the answers that could be read, in nats; None where none could.
    """

    step: int
    task: str
    item: str
    cluster: str
    samples: int
    correct: int
    parsed: int
    truncated: int
    distinct: int
    distinct_correct: int
    entropy: float | None
