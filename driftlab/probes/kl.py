"""How far the output distribution moved: forward KL(base || step t), full vocabulary, on text the base model wrote.

The continuations are drawn once from the base model at temperature 1 and kept as token ids, so every checkpoint is
asked about the same states of the same distribution, the one the expectation is over. At each position the whole
next-token distribution is compared, not only the sampled token: unbiased like the sampled log-ratio (k1) and of
smaller variance (Amini, Vieira, Cotterell, arXiv 2504.10637). RL's Razor (arXiv 2509.04259) ties forgetting to this
divergence.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import torch

from driftlab.engines.base import Engine
from driftlab.errors import RunError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.run.records import Measurement

_UNIT = "nats/token"


class Reference(TypedDict):
    """One continuation of the base model as token ids, ready for JSON."""

    prompt: list[int]
    continuation: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean with its standard error; ``stderr`` is None for fewer than two sequences."""

    value: float
    stderr: float | None


def log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """Log-softmax over the last dimension in float32, whatever the dtype of ``logits``; shape kept."""
    return torch.log_softmax(logits.to(torch.float32), dim=-1)


def full_vocabulary_kl(base_logits: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """KL(base || other) in nats at each position: sum_v p(v) (log p(v) - log q(v)).

    Args:
        base_logits, logits: shape [positions, vocabulary], finite.

    Returns:
        float64, shape [positions]; exactly 0 where the two are equal bit for bit.

    Raises:
        ValueError: when the shapes differ.
    """
    return _kl(log_probabilities(base_logits), log_probabilities(logits))


def _kl(base: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Per-position KL from float32 log-probabilities of shape [positions, vocabulary]."""
    if base.shape != other.shape:
        raise ValueError(f"base log-probabilities have shape {tuple(base.shape)}, the others {tuple(other.shape)}")
    # In float32 the probabilities add up to 1 only within 1e-7, which is as much as the KL of an early checkpoint.
    # Normalised again in float64 both are distributions, and their KL is not negative beyond rounding.
    p, q = torch.log_softmax(base.to(torch.float64), dim=-1), torch.log_softmax(other.to(torch.float64), dim=-1)
    return (p.exp() * (p - q)).sum(dim=-1)


def token_weighted(totals: Sequence[float], tokens: Sequence[int]) -> Estimate:
    """Sum of KL over sum of tokens, with the linearised standard error of a ratio over sequences.

    With R = sum K_i / sum L_i and e_i = K_i - R L_i: variance = n / (n - 1) * sum e_i^2 / (sum L_i)^2 (Cochran,
    Sampling Techniques, section 6.4), sequences independent.

    Args:
        totals: KL of each sequence summed over its positions, nats.
        tokens: positions of each sequence, at least one.

    Raises:
        ValueError: without sequences or tokens, or when the two do not pair up.
    """
    if not totals or len(totals) != len(tokens) or min(tokens) < 1:
        raise ValueError("a token-weighted mean needs one total and at least one token for each sequence")
    n, length = len(totals), sum(tokens)
    ratio = math.fsum(totals) / length
    if n < 2:
        return Estimate(value=ratio, stderr=None)
    squares = math.fsum((k - ratio * t) ** 2 for k, t in zip(totals, tokens, strict=True))
    return Estimate(value=ratio, stderr=math.sqrt(n / (n - 1) * squares) / length)


def prompt_average(totals: Sequence[float], tokens: Sequence[int]) -> Estimate:
    """Mean over sequences of the mean KL per token, with SD / sqrt(n). Arguments and errors as ``token_weighted``."""
    if not totals or len(totals) != len(tokens) or min(tokens) < 1:
        raise ValueError("a prompt average needs one total and at least one token for each sequence")
    means = [k / t for k, t in zip(totals, tokens, strict=True)]
    n = len(means)
    mean = math.fsum(means) / n
    if n < 2:
        return Estimate(value=mean, stderr=None)
    return Estimate(value=mean, stderr=math.sqrt(math.fsum((m - mean) ** 2 for m in means) / (n - 1) / n))


class KlProbe:
    """Forward KL per token between the base model and a checkpoint, by text set.

    Rows: ``kl_base_to_step`` (token-weighted) and ``kl_base_to_step_prompt_average``, group = text set, unit
    nats/token, n = sequences, standard error over sequences; the note gives the tokens. Logits that are not finite
    make both rows of their text set ``failed``.

    Host memory: the base log-probabilities stay cached as float32, tokens x vocabulary x 4 bytes over all text sets
    (50 continuations of 256 tokens at a vocabulary of 49,152: 2.5 GB).
    """

    name = "kl"

    def __init__(
        self,
        prompts: Mapping[str, Sequence[tuple[int, ...]]],
        *,
        max_new_tokens: int,
        seed: int,
        references: Mapping[str, Sequence[Reference]] | None = None,
        sequences_per_call: int = 16,
    ) -> None:
        """Set up; nothing is drawn before ``prepare``.

        Args:
            prompts: text set to token-id prompts.
            max_new_tokens: longest continuation.
            seed: each text set draws with its own seed made from this one and its name, so that adding a set
                leaves the others as they were.
            references: continuations drawn before (resume); none are drawn then.
            sequences_per_call: sequences scored in one engine call, which bounds the logits held beside the cache.
                Fixed for a run: other batches round otherwise, and the KL to itself is exactly 0 only with the same.

        Raises:
            ValueError: for no text set, an empty text set or prompt, or a limit below 1.
            RunError: when ``references`` are not continuations of these prompts.
        """
        if not prompts or max_new_tokens < 1 or sequences_per_call < 1:
            raise ValueError("the KL probe needs a text set, max_new_tokens >= 1 and sequences_per_call >= 1")
        for text_set, sequences in prompts.items():
            if not sequences or not all(sequences):
                raise ValueError(f"text set {text_set} has no prompt or an empty one")
        self._prompts = {text_set: [tuple(p) for p in sequences] for text_set, sequences in prompts.items()}
        self._max_new_tokens = max_new_tokens
        self._seed = seed
        self._chunk = sequences_per_call
        self._references = None if references is None else self._checked(references)
        self._base: dict[str, list[torch.Tensor]] = {}

    def _checked(self, references: Mapping[str, Sequence[Reference]]) -> dict[str, list[Reference]]:
        if references.keys() != self._prompts.keys():
            raise RunError(
                f"stored KL references are for {sorted(references)}, this run asks for {sorted(self._prompts)}; "
                "measure into a new run directory"
            )
        for text_set, rows in references.items():
            if [tuple(r["prompt"]) for r in rows] != self._prompts[text_set] or not all(
                r["continuation"] for r in rows
            ):
                raise RunError(
                    f"stored KL references of {text_set} do not continue the prompts of this run; "
                    "measure into a new run directory"
                )
        return {
            text_set: [Reference(prompt=list(r["prompt"]), continuation=list(r["continuation"])) for r in rows]
            for text_set, rows in references.items()
        }

    @property
    def references(self) -> dict[str, list[Reference]]:
        """Continuations by text set, in prompt order, to be stored and given back on resume.

        Raises:
            RuntimeError: before ``prepare`` has drawn them.
        """
        if self._references is None:
            raise RuntimeError("KL references are drawn by prepare(), which has not run")
        return self._references

    def prepare(self, engine: Engine) -> None:
        """Draw the continuations unless given, and cache the base log-probabilities; ``engine`` serves the base."""
        if self._references is None:
            self._references = {
                text_set: self._draw(engine, text_set, prompts) for text_set, prompts in self._prompts.items()
            }
        self._base = {
            text_set: [
                log_probabilities(logits)
                for start in range(0, len(rows), self._chunk)
                for logits in _logits(engine, rows[start : start + self._chunk])
            ]
            for text_set, rows in self._references.items()
        }

    def _draw(self, engine: Engine, text_set: str, prompts: Sequence[tuple[int, ...]]) -> list[Reference]:
        digest = hashlib.sha256(f"kl/{self._seed}/{text_set}".encode()).digest()
        seed = int.from_bytes(digest[:7], "big")  # 56 bits: any generator takes it
        drawn = engine.sample(prompts, max_new_tokens=self._max_new_tokens, seed=seed)
        return [Reference(prompt=list(p), continuation=list(c)) for p, c in zip(prompts, drawn, strict=True)]

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Two rows for each text set; ``engine`` serves the checkpoint and is only asked for logits.

        Raises:
            RuntimeError: before ``prepare``.
        """
        if not self._base:
            raise RuntimeError("the KL probe measures against the base model; prepare() has not run")
        rows: list[Measurement] = []
        for text_set, references in self.references.items():
            rows.extend(self._measure_set(checkpoint.step, text_set, references, engine))
        return Measured(measurements=tuple(rows))

    def _measure_set(
        self, step: int, text_set: str, references: Sequence[Reference], engine: Engine
    ) -> list[Measurement]:
        base, tokens = self._base[text_set], [len(r["continuation"]) for r in references]
        totals: list[float] = []
        for start in range(0, len(references), self._chunk):
            logits = _logits(engine, references[start : start + self._chunk])
            for reference, live in zip(base[start : start + self._chunk], logits, strict=True):
                # One sequence at a time: its float64 copies are the only ones alive.
                totals.append(float(_kl(reference, log_probabilities(live)).sum()))
        failed = sum(not math.isfinite(total) for total in totals)
        estimates: dict[str, Estimate | None] = {
            "kl_base_to_step": None if failed else token_weighted(totals, tokens),
            "kl_base_to_step_prompt_average": None if failed else prompt_average(totals, tokens),
        }
        note = f"{sum(tokens)} tokens"
        if failed:
            note += f"; logits of {failed} of {len(totals)} sequences are not finite"
        return [
            Measurement(
                step=step,
                probe=self.name,
                quantity=quantity,
                group=text_set,
                value=None if estimate is None else estimate.value,
                unit=_UNIT,
                stderr=None if estimate is None else estimate.stderr,
                n=len(totals),
                n_failed=failed,
                status="failed" if estimate is None else "ok",
                note=note,
            )
            for quantity, estimate in estimates.items()
        ]


def _logits(engine: Engine, references: Sequence[Reference]) -> list[torch.Tensor]:
    """Logits of each continuation, [tokens, vocabulary], on the host where the cache lives."""
    continuations = [r["continuation"] for r in references]
    with torch.no_grad():
        logits = engine.continuation_logits([r["prompt"] for r in references], continuations)
    if [len(rows) for rows in logits] != [len(c) for c in continuations]:
        raise ValueError("the engine returned logits for another number of positions than the continuations have")
    return [rows.detach().to("cpu") for rows in logits]
