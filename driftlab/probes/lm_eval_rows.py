"""From answers to rows: what a question is, the verdict on it, and the measurements of a task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np

from driftlab.run.records import Example, Measurement
from driftlab.tasks.base import content_hash

PROBE = "lm_eval"
# Items that share a theory are not independent. A category of MMLU-Pro is a stratum, not a cluster: it was not sampled.
_CLUSTER_FIELDS = ("theory",)
_STRATUM_FIELD = "category"


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """One evaluation item, ready to be judged.

    Attributes:
        item, cluster, stratum: as in ``records.Example``.
        doc: the document as lm-eval's task processed it.
        task: the lm-eval task it belongs to (a group has several).
        requests: indices of its requests, one per choice; a single one for a generated answer.
        text: the document's own prompt, without few-shot examples; where the choices differ in their beginning and
            share their end (Winogrande), that end.
        right: text of the right answer; of several joined by `` | ``.
        choices: text of each choice; empty for a generated answer.
        gold: indices of the right choices; empty for a generated answer.
    """

    item: str
    cluster: str
    stratum: str | None
    doc: Mapping[str, Any]
    task: Any
    requests: range
    text: str
    right: str
    choices: tuple[str, ...]
    gold: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What one checkpoint did with one question; ``correct`` is None when the question could not be scored.

    ``chance`` is the probability that a blind guess is right, 0 for a free-form answer. ``raw`` is correctness without
    length normalisation, where the headline is normalised. ``flat``: the log-likelihoods tell no choice from another,
    or are exactly 0. ``answer`` is as in ``records.Example``. ``extra`` holds what else the task's own scorer returned.
    """

    correct: float | None
    chance: float
    score: float | None = None
    raw: float | None = None
    flat: bool = False
    answer: str | None = None
    output: str | None = None
    parsed: bool | None = None
    truncated: bool | None = None
    extra: Mapping[str, float] = field(default_factory=dict)


def identify(docs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(item, cluster) of each document; a repeated document gets ``#2``, so that items pair across checkpoints."""
    seen: dict[str, int] = defaultdict(int)
    names = []
    for doc in docs:
        item = content_hash(doc)
        seen[item] += 1
        item = item if seen[item] == 1 else f"{item}#{seen[item]}"
        shared = next((content_hash({key: doc[key]}) for key in _CLUSTER_FIELDS if doc.get(key)), item)
        names.append((item, str(doc["cluster"]) if doc.get("cluster") is not None else shared))
    return names


def stratum(doc: Mapping[str, Any]) -> str | None:
    """The category of a document that has one: its set of categories is fixed, items are drawn within them."""
    return None if doc.get(_STRATUM_FIELD) is None else str(doc[_STRATUM_FIELD])


def judge_choice(question: Question, likelihood: np.ndarray, *, normalised: bool) -> Verdict:
    """Verdict from the log-likelihoods of all choices, shape [choices], in nats; ties go to the first choice.

    With ``normalised`` the headline divides by the characters of each choice (``acc_norm``).
    """
    chance = len(set(question.gold)) / len(question.choices)
    if not np.isfinite(likelihood).all():
        return Verdict(correct=None, chance=chance)
    plain = taken = int(np.argmax(likelihood))
    if normalised:
        taken = int(np.argmax(likelihood / [len(choice) for choice in question.choices]))
    right = np.zeros(len(likelihood), dtype=bool)
    right[list(question.gold)] = True
    margin = None if right.all() or not right.any() else float(likelihood[right].max() - likelihood[~right].max())
    alike = bool((likelihood == likelihood[0]).all())
    return Verdict(
        correct=float(right[taken]),
        chance=chance,
        raw=float(right[plain]) if normalised else None,
        score=margin,
        flat=alike and (len(likelihood) > 1 or likelihood[0] == 0),
        answer=question.choices[taken],
    )


def mean_and_error(values: Sequence[float], clusters: Sequence[str]) -> tuple[float, float | None]:
    """Mean and its cluster-robust standard error (Miller 2024, arXiv 2411.00640), with the factor G/(G-1).

    When every item is its own cluster this is SD/sqrt(n). None with fewer than two clusters.
    """
    scores = np.asarray(values, dtype=np.float64)
    mean = float(scores.mean())
    sums: dict[str, float] = defaultdict(float)
    for cluster, residual in zip(clusters, scores - mean, strict=True):
        sums[cluster] += float(residual)
    if len(sums) < 2:
        return mean, None
    total = sum(value**2 for value in sums.values()) * len(sums) / (len(sums) - 1)
    return mean, float(np.sqrt(total)) / len(scores)


def failed_row(step: int, task: str, count: int, reason: str) -> Measurement:
    """The row of a task that could not be scored at this checkpoint."""
    return Measurement(
        step=step, probe=PROBE, quantity="accuracy", group=task, value=None, unit="fraction", stderr=None,
        n=count, n_failed=count, status="failed", note=reason,
    )  # fmt: skip


def task_rows(
    step: int, task: str, questions: Sequence[Question], verdicts: Sequence[Verdict], *, note: str | None = None
) -> tuple[list[Measurement], list[Example]]:
    """Measurements and examples of one task at one checkpoint; questions that failed are counted, never scored 0."""
    scored = [(q, v) for q, v in zip(questions, verdicts, strict=True) if v.correct is not None]
    failed = len(questions) - len(scored)
    if not scored:
        reason = "no item has a finite log-likelihood: the weights or the activations are not finite"
        return [failed_row(step, task, len(questions), reason)], []
    unparsed, flat = sum(v.parsed is False for _, v in scored), sum(v.flat for _, v in scored)
    if flat == len(scored):
        # The first choice would win every time: a plausible accuracy, the same for ever, that measures nothing.
        reason = "every item gives every choice the same log-likelihood: the scores say nothing about the answers"
        return [failed_row(step, task, len(questions), reason)], []
    notes = [note] if note else []
    notes += [f"{flat} items give every choice the same log-likelihood; the first counts as the answer"] if flat else []
    notes += [f"{failed} items have a log-likelihood that is not finite"] if failed else []

    def row(quantity: str, unit: str, values: Sequence[float | bool | None]) -> list[Measurement]:
        known = [(float(x), q.cluster) for x, (q, _) in zip(values, scored, strict=True) if x is not None]
        if not known:
            return []
        mean, error = mean_and_error(*zip(*known, strict=True))
        return [
            Measurement(
                step=step, probe=PROBE, quantity=quantity, group=task, value=mean, unit=unit, stderr=error,
                n=len(known) + failed, n_failed=failed, n_unparsed=unparsed, note="; ".join(notes) or None,
            )
        ]  # fmt: skip

    generated = scored[0][1].output is not None
    rows = row("accuracy", "fraction", [v.correct for _, v in scored])
    rows += row("accuracy_raw", "fraction", [v.raw for _, v in scored])
    rows.append(_chance(rows[0], [v for _, v in scored]))
    if generated:
        rows.append(_accuracy_parsed(rows[0], scored))
        rows += row("unparsed_fraction", "fraction", [v.parsed is False for _, v in scored])
        rows += row("truncated_fraction", "fraction", [v.truncated for _, v in scored])
    else:
        rows += row("margin", "nats", [v.score for _, v in scored])
    for name in sorted({name for _, v in scored for name in v.extra}):
        rows += row(name, "fraction", [v.extra.get(name) for _, v in scored])
    return rows, [_example(step, task, q, v) for q, v in scored]


def _chance(accuracy: Measurement, verdicts: Sequence[Verdict]) -> Measurement:
    """What blind guessing would score on the items behind ``accuracy``; a property of the items, so without error."""
    value = fmean(verdict.chance for verdict in verdicts)
    note = None if value else "free-form answer"
    return replace(accuracy, quantity="chance", value=value, stderr=None, n_unparsed=0, note=note)


def _accuracy_parsed(accuracy: Measurement, scored: Sequence[tuple[Question, Verdict]]) -> Measurement:
    """Accuracy among the answers that could be read; beside ``accuracy`` it tells lost format from lost ability."""
    read = [(v.correct, q.cluster) for q, v in scored if v.parsed and v.correct is not None]
    row = replace(accuracy, quantity="accuracy_parsed", n=len(read), n_failed=0, n_unparsed=0)
    if not read:
        return replace(row, value=None, stderr=None, status="skipped", note="no answer could be read")
    mean, error = mean_and_error(*zip(*read, strict=True))
    return replace(row, value=mean, stderr=error)


def _example(step: int, task: str, question: Question, verdict: Verdict) -> Example:
    assert verdict.correct is not None
    return Example(
        step=step,
        task=task,
        item=question.item,
        cluster=question.cluster,
        stratum=question.stratum,
        correct=verdict.correct,
        score=verdict.score,
        output_length=None if verdict.output is None else len(verdict.output),
        parsed=verdict.parsed,
        truncated=verdict.truncated,
        answer=verdict.answer,
        output=verdict.output,
    )
