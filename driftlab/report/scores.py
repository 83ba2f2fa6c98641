"""Examples as arrays: what every item of a task scored at every measured step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from driftlab.drift.stats import Array

NEARLY_ALL = 0.95
LOGLIK, GENERATIVE = "log-likelihood", "generative"
"""The two profiles: choices scored by log-likelihood are blind to format, generated answers are not."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskScores:
    """One task in one run.

    Attributes:
        steps: measured steps with stored items, ascending, shape [S].
        items: (content hash, occurrence) of each item, sorted, shape [n]; items of equal content are told apart by
            their order in the file, which is fixed.
        correct: headline metric, shape [S, n]; NaN where an item was not stored at a step.
        margin: log-likelihood margin in nats, shape [S, n]; NaN throughout for generated answers.
        clusters: label of each item, shape [n].
        strata: label of each item, or None when the task has none.
        parsed: whether the answer could be read, shape [S, n]; NaN for choices.
        generated: whether answers were generated rather than chosen by log-likelihood.
    """

    steps: tuple[int, ...]
    items: tuple[tuple[str, int], ...]
    correct: Array
    margin: Array
    parsed: Array
    clusters: list[str]
    strata: list[str] | None
    generated: bool

    def at(self, step: int) -> Array | None:
        """``correct`` at that step, None when no item was stored there."""
        return self.correct[self.steps.index(step)] if step in self.steps else None

    def aligned(self, other: TaskScores, step: int) -> Array:
        """``correct`` at a measured step, in the order of the items of ``other``; NaN where an item is absent."""
        row = self.correct[self.steps.index(step)]
        if self.items == other.items:
            return row
        place = {item: index for index, item in enumerate(self.items)}
        return np.array([row[place[item]] if item in place else np.nan for item in other.items])

    def choose(self, items: np.ndarray) -> tuple[list[str], list[str] | None]:
        """Clusters and strata of the items under the mask [n]."""
        chosen = np.flatnonzero(items)
        strata = None if self.strata is None else [self.strata[i] for i in chosen]
        return [self.clusters[i] for i in chosen], strata

    @property
    def curve_steps(self) -> tuple[int, ...]:
        """Steps that a curve is drawn through: base, final, and those that hold nearly all items that both hold.

        A step at which many items failed would take them from every other step.
        """
        ends = np.isfinite(self.correct[0]) & np.isfinite(self.correct[-1])
        inner = (
            [
                step
                for row, step in zip(self.correct[1:-1], self.steps[1:-1], strict=True)
                if np.isfinite(row[ends]).mean() >= NEARLY_ALL
            ]
            if ends.any()
            else []
        )
        return tuple(dict.fromkeys((self.steps[0], *inner, self.steps[-1])))

    def curve(self) -> tuple[Array, np.ndarray]:
        """``correct`` of the items stored at all ``curve_steps``, shape [S, m], and their mask [n]."""
        rows = self.correct[[self.steps.index(step) for step in self.curve_steps]]
        mask = np.asarray(np.isfinite(rows).all(axis=0))
        return rows[:, mask], mask

    @property
    def profile(self) -> str:
        return GENERATIVE if self.generated else LOGLIK


def named_profile(task: str) -> str:
    """Profile of a task none of whose items is stored, by its name."""
    return GENERATIVE if task.endswith(("_generative", "gsm8k", "countdown")) else LOGLIK


Scores = Mapping[tuple[str, str], TaskScores]
"""By (run, task)."""


def task_scores(examples: pd.DataFrame) -> dict[tuple[str, str], TaskScores]:
    """From the table of examples (columns of ``records.Example`` and ``run``)."""
    occurrence = examples.groupby(["run", "step", "task", "item"], sort=False).cumcount()
    table = examples.assign(occurrence=occurrence)
    return {(str(run), str(task)): _one(part) for (run, task), part in table.groupby(["run", "task"], sort=False)}


def _one(part: pd.DataFrame) -> TaskScores:
    steps, row = np.unique(part["step"].to_numpy(), return_inverse=True)
    keys = pd.MultiIndex.from_frame(part[["item", "occurrence"]])
    column, items = keys.factorize(sort=True)
    generated = bool(part["parsed"].notna().any())
    shape = (len(steps), len(items))
    correct, margin, parsed = (np.full(shape, np.nan) for _ in range(3))
    correct[row, column] = part["correct"].to_numpy(float)
    if generated:
        parsed[row, column] = part["parsed"].astype(float).to_numpy()
    else:
        margin[row, column] = part["score"].to_numpy(float)
    clusters, strata = [""] * len(items), [None] * len(items)
    for index, cluster, stratum in zip(column, part["cluster"], part["stratum"], strict=True):
        clusters[index], strata[index] = cluster, stratum
    return TaskScores(
        steps=tuple(int(step) for step in steps),
        items=tuple((str(item), int(number)) for item, number in items),
        correct=correct,
        margin=margin,
        parsed=parsed,
        clusters=clusters,
        strata=None if any(pd.isna(stratum) for stratum in strata) else [str(stratum) for stratum in strata],
        generated=generated,
    )
