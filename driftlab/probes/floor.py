"""The noise floor: the base model scored again under conditions that ought not to matter.

Padding, company in a batch and the layout of prompts change the order of floating-point sums, so an item whose two
best answers are close may flip though the weights are the same. What flips here is no effect of training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from driftlab.engines.base import Engine
from driftlab.errors import DriftlabError
from driftlab.probes.base import Checkpoint, Measured
from driftlab.probes.lm_eval import LmEvalProbe
from driftlab.probes.lm_eval_batches import choice_batches
from driftlab.probes.lm_eval_plan import Harness, Prepared, answer, judge_generated
from driftlab.probes.lm_eval_rows import Question, Verdict, mean_and_error
from driftlab.run.records import Measurement

PROBE = "floor"


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """How the second scoring differs from the first.

    Attributes:
        flips, difference, margin: names of its quantities.
        batch_size: rows per forward pass.
        shared: whether the choices of a question share its prompt.
        shuffled: whether the rows come in a random order.
        note: the difference in words.
    """

    flips: str
    difference: str
    margin: str
    batch_size: int
    shared: bool
    shuffled: bool = False
    note: str


def conditions(prepared: Prepared, batch_size: int) -> Iterator[Condition]:
    """The conditions that exist for a task; ``batch_size`` is that of its first scoring.

    A first scoring that did not fill one batch counts with the rows it had: half of those is another batch.
    """
    rows = len(prepared.batches[0].ids) if prepared.batches else min(batch_size, len(prepared.instances))
    half = 2 if rows == 1 else rows // 2
    yield Condition(
        flips="floor_flips_batch", difference="floor_difference_batch", margin="floor_margin_batch",
        batch_size=half, shared=prepared.shared, note=f"batches of {half} instead of {rows}",
    )  # fmt: skip
    yield Condition(
        flips="floor_flips_order", difference="floor_difference_order", margin="floor_margin_order",
        batch_size=batch_size, shared=prepared.shared, shuffled=True, note="in random order instead of by length",
    )  # fmt: skip
    if any(batch.segments is not None for batch in prepared.batches):
        yield Condition(
            flips="floor_flips_layout", difference="floor_difference_layout", margin="floor_margin_layout",
            batch_size=batch_size, shared=False, note="one row per choice instead of a shared prompt",
        )  # fmt: skip


class FloorProbe:
    """Compares second scorings of the base model with the first, item by item, at step 0 only.

    Args:
        scored: the lm_eval probe; it measures step 0 first.
        items: items per task, a seeded subset; None for all of them.
        seed: of the subsets and of the random orders.
        progress: told the name of each task once it is done.

    Measures, per task and condition, ``floor_flips_*``, the fraction of items whose verdict changed;
    ``floor_difference_*``, the change of accuracy, signed; and for choice tasks ``floor_margin_*``, the largest
    absolute change of an item's margin, in nats. The conditions are ``batch`` (half the batch size), ``order`` (random
    order, so that every item has other company) and ``layout`` (plain rows, where choices share prompts).
    """

    name = PROBE

    def __init__(
        self, scored: LmEvalProbe, *, items: int | None, seed: int, progress: Callable[[str], None] | None = None
    ) -> None:
        self.items, self.seed, self.progress = items, seed, progress
        self._scored = scored

    def prepare(self, engine: Engine) -> None:
        """Nothing to do: the requests are those of the lm_eval probe, and other batches are needed once only."""

    def measure(self, checkpoint: Checkpoint, engine: Engine) -> Measured:
        """Rows at step 0, none later; a condition that raises becomes a ``failed`` row with the reason."""
        rows: list[Measurement] = []
        if checkpoint.step == 0:
            for task, prepared in self._scored.prepared.items():
                rows += self._task(task, prepared, engine)
                if self.progress is not None:
                    self.progress(task)
        return Measured(measurements=tuple(rows))

    def _task(self, task: str, prepared: Prepared, engine: Engine) -> list[Measurement]:
        chosen = self._chosen(task, len(prepared.questions))
        part = prepared.part(chosen)
        rows: list[Measurement] = []
        for condition in conditions(prepared, self._scored.batch_size):
            shuffle = random.Random(f"floor order:{self.seed}:{task}") if condition.shuffled else None
            try:
                if task not in self._scored.base_verdicts:
                    raise DriftlabError("there is no first scoring of the base model to compare with")
                first = [self._scored.base_verdicts[task][index] for index in chosen]
                with self._scored.asking(engine, condition.batch_size) as harness:
                    second = _score(part, condition, harness, shuffle)
                rows += compare(task, condition, part.questions, first, second)
            except Exception as error:
                rows.append(_failed(task, condition, len(chosen), f"{type(error).__name__}: {error}"))
        return rows

    def _chosen(self, task: str, count: int) -> list[int]:
        if self.items is None or self.items >= count:
            return list(range(count))
        return sorted(random.Random(f"floor items:{self.seed}:{task}").sample(range(count), self.items))


def _score(part: Prepared, condition: Condition, harness: Harness, shuffle: random.Random | None) -> list[Verdict]:
    """Verdicts on the questions of ``part`` under ``condition``."""
    if part.questions[0].choices:
        pairs = [harness.pair(*instance.args) for instance in part.instances]
        batches = choice_batches(pairs, condition.batch_size, shared=condition.shared, shuffle=shuffle)
        return answer(replace(part, batches=batches), harness)[0]
    if shuffle is None:
        return answer(part, harness)[0]
    # lm-eval sorts the requests of one call by length: only separate calls keep another company.
    order = shuffle.sample(range(len(part.instances)), len(part.instances))
    found: dict[int, tuple[str, bool]] = {}
    for start in range(0, len(order), condition.batch_size):
        together = order[start : start + condition.batch_size]
        found.update(zip(together, harness.answers([part.instances[i] for i in together]), strict=True))
    return judge_generated(part, [found[i] for i in range(len(order))])[0]


def compare(
    task: str, condition: Condition, questions: Sequence[Question], first: Sequence[Verdict], second: Sequence[Verdict]
) -> list[Measurement]:
    """Rows of one task under one condition; an item without a finite score under both is counted as failed.

    Raises:
        DriftlabError: there is no item with a finite score under both.
    """
    changes, clusters, margins = [], [], []
    for question, before, after in zip(questions, first, second, strict=True):
        if before.correct is None or after.correct is None:
            continue
        changes.append(after.correct - before.correct)
        clusters.append(question.cluster)
        if question.choices and before.score is not None and after.score is not None:
            margins.append(abs(after.score - before.score))
    if not changes:
        raise DriftlabError("no item has a finite score under both conditions")

    def row(quantity: str, unit: str, value: float, error: float | None) -> Measurement:
        return Measurement(
            step=0, probe=PROBE, quantity=quantity, group=task, value=value, unit=unit, stderr=error,
            n=len(questions), n_failed=len(questions) - len(changes), note=condition.note,
        )  # fmt: skip

    rows = [
        row(condition.flips, "fraction", *mean_and_error([float(change != 0) for change in changes], clusters)),
        row(condition.difference, "fraction", *mean_and_error(changes, clusters)),
    ]
    return [*rows, row(condition.margin, "nats", max(margins), None)] if margins else rows


def _failed(task: str, condition: Condition, count: int, reason: str) -> Measurement:
    """The row of a condition under which the task could not be scored."""
    return Measurement(
        step=0, probe=PROBE, quantity=condition.flips, group=task, value=None, unit="fraction", stderr=None,
        n=count, n_failed=count, status="failed", note=f"{condition.note}: {reason}",
    )  # fmt: skip
