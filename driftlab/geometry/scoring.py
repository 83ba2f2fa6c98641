"""Answers of the base model's architecture with any weights to the measured tasks of two runs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from driftlab.drift.stats import PairedDifference, paired_difference
from driftlab.engines.transformers import TransformersEngine
from driftlab.geometry.runs import Side
from driftlab.models.base import BaseModel
from driftlab.probes.base import Checkpoint
from driftlab.probes.kl import KlProbe
from driftlab.probes.lm_eval_batches import choice_batches
from driftlab.run.parts import KlProbeSpec
from driftlab.run.records import Example, Measurement
from driftlab.session import check_tasks, lm_eval_probe, measured_tasks, reference_prompts
from driftlab.tasks.targets import target as find_target

Weights = Mapping[str, torch.Tensor]
Item = tuple[str, int]
"""Content hash of an item, and its occurrence: parts of one task may hold equal items, in an order that is fixed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """One task at one point of weight space.

    ``items``: those with a finite score, by item, none where the task failed. ``asked``: all of them. ``note``: why it
    failed, or what else must be known.
    """

    items: Mapping[Item, Example]
    asked: int
    note: str | None = None

    @property
    def accuracy(self) -> float | None:
        """None where no item was scored."""
        return sum(one.correct for one in self.items.values()) / len(self.items) if self.items else None


class Scorer:
    """Asks every measured task of a run, target first, in the batches in which the run asked it.

    Args:
        side: whose settings are taken; the other side has the same items and prompts.
        base: the live model, whose weights are overwritten.
        items: of each task, a seeded subset of the run's own; None for all of them.
        seed: of the subset.
        data: folder of benchmark files; None for the one that the run had.
        kl: texts of ``kl_rows``; None for none.

    Raises:
        RunError: the tasks hold other items or prompts now than the run measured.
        DriftlabError: a task or its data cannot be had.
    """

    def __init__(
        self, side: Side, base: BaseModel, *, items: int | None, seed: int, data: Path | None, kl: KlProbeSpec | None
    ) -> None:
        spec = side.spec if data is None else side.spec.model_copy(update={"data": data})
        target = find_target(spec.target.task)
        self.engine = TransformersEngine(base.model, base.tokenizer, batch_size=spec.target.batch_size)
        self.target = target.lm_eval_task
        self.tasks: tuple[str, ...] = ()
        self._kl, self._prompts = kl, dict[str, Sequence[tuple[int, ...]]]()
        probe = lm_eval_probe(spec, target, self.engine, lambda event: None)
        if probe is None:
            return
        self._probe, self.tasks = probe, measured_tasks(spec, target)
        check_tasks(side.store, {task: probe.settings_hash(task) for task in self.tasks})
        if kl is not None:
            self._prompts = reference_prompts(probe, self.tasks, kl, self.engine)
        if items is not None:
            self._cut(items, seed)

    def _cut(self, items: int, seed: int) -> None:
        """Leave a subset of the prepared questions, their batches built anew."""
        with self._probe.asking(self.engine, self._probe.batch_size) as harness:
            for task, prepared in self._probe.prepared.items():
                count = len(prepared.questions)
                if items >= count:
                    continue
                part = prepared.part(sorted(random.Random(f"geometry items:{seed}:{task}").sample(range(count), items)))
                if part.questions[0].choices:
                    pairs = [harness.pair(*instance.args) for instance in part.instances]
                    part = replace(part, batches=choice_batches(pairs, self._probe.batch_size, shared=prepared.shared))
                self._probe.prepared[task] = part

    def at(self, weights: Weights) -> dict[str, Answers]:
        """Every task with these master weights, served in the runs' number format."""
        if not self.tasks:
            return {}
        self.engine.write(weights)
        found = self._probe.measure(Checkpoint(step=1, weights=weights, base={}, updates=()), self.engine)
        rows = {row.group: row for row in found.measurements if row.quantity == "accuracy"}
        return {
            task: Answers(
                items=by_item(one for one in found.examples if one.task == task),
                asked=rows[task].n,
                note=rows[task].note,
            )
            for task in self.tasks
        }

    @property
    def draws_texts(self) -> bool:
        """Whether ``kl_rows`` has anything to start its texts from."""
        return bool(self._prompts)

    def kl_rows(self, after: Weights, before: Weights) -> dict[str, Measurement]:
        """KL(after || before) by task, on texts that ``after`` continues: the KL probe with ``after`` for its base."""
        assert self._kl is not None
        probe = KlProbe(self._prompts, max_new_tokens=self._kl.max_new_tokens, seed=self._kl.seed)
        self.engine.write(after)
        probe.prepare(self.engine)
        self.engine.write(before)
        rows = probe.measure(Checkpoint(step=1, weights=before, base=after, updates=()), self.engine).measurements
        return {row.group: row for row in rows if row.quantity == "kl_base_to_step"}


def by_item(examples: Iterable[Example]) -> dict[Item, Example]:
    """The examples of one task by item."""
    seen: Counter[str] = Counter()
    found = {}
    for one in examples:
        found[one.item, seen[one.item]] = one
        seen[one.item] += 1
    return found


def change(before: Answers, after: Answers, level: float) -> PairedDifference | None:
    """After minus before on the items scored at both; None where there are none."""
    common = [item for item in before.items if item in after.items]
    if not common:
        return None
    first = [before.items[item] for item in common]
    strata = [one.stratum or "" for one in first]
    return paired_difference(
        [one.correct for one in first],
        [after.items[item].correct for item in common],
        [one.cluster for one in first],
        strata if any(strata) else None,
        level,
    )


def compared(prefix: str, found: PairedDifference | None, corrected: PairedDifference | None) -> dict[str, Any]:
    """Columns of one paired difference: its value, its 95 % interval, and the one corrected for all comparisons."""
    return {
        prefix: None if found is None else found.difference,
        f"{prefix}_stderr": None if found is None else found.stderr,
        f"{prefix}_low": None if found is None else found.low,
        f"{prefix}_high": None if found is None else found.high,
        f"{prefix}_low_corrected": None if corrected is None else corrected.low,
        f"{prefix}_high_corrected": None if corrected is None else corrected.high,
    }
