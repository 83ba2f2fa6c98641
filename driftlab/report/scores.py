"""Examples as arrays: what every item of a task scored at every measured step of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from driftlab.drift.stats import Array

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
        generated: whether answers were generated rather than chosen by log-likelihood.
    """

    steps: tuple[int, ...]
    items: tuple[tuple[str, int], ...]
    correct: Array
    margin: Array
    clusters: list[str]
    strata: list[str] | None
    generated: bool

    def at(self, step: int) -> Array | None:
        """``correct`` at that step, None when no item was stored there."""
        return self.correct[self.steps.index(step)] if step in self.steps else None

    def choose(self, items: np.ndarray) -> tuple[list[str], list[str] | None]:
        """Clusters and strata of the items under the mask [n]."""
        chosen = np.flatnonzero(items)
        strata = None if self.strata is None else [self.strata[i] for i in chosen]
        return [self.clusters[i] for i in chosen], strata

    @property
    def complete(self) -> np.ndarray:
        """Mask [n] of the items stored at every step."""
        return np.asarray(np.isfinite(self.correct).all(axis=0))

    @property
    def profile(self) -> str:
        return GENERATIVE if self.generated else LOGLIK


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
    correct, margin = np.full(shape, np.nan), np.full(shape, np.nan)
    correct[row, column] = part["correct"].to_numpy(float)
    if not generated:
        margin[row, column] = part["score"].to_numpy(float)
    clusters, strata = [""] * len(items), [None] * len(items)
    for index, cluster, stratum in zip(column, part["cluster"], part["stratum"], strict=True):
        clusters[index], strata[index] = cluster, stratum
    return TaskScores(
        steps=tuple(int(step) for step in steps),
        items=tuple((str(item), int(number)) for item, number in items),
        correct=correct,
        margin=margin,
        clusters=clusters,
        strata=None if any(pd.isna(stratum) for stratum in strata) else [str(stratum) for stratum in strata],
        generated=generated,
    )
