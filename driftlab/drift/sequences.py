"""Training on several tasks one after the other: what each stage did to every task, and how far the weights went.

Checkpoint 0 is the base model, checkpoint i the end of stage i, and R[i, j] the accuracy of checkpoint i on task j, the
target of stage j. Sources: Lopez-Paz and Ranzato 2017, arXiv 1706.08840 (accuracy matrix, backward and forward
transfer); Chaudhry et al. 2018, arXiv 1801.10112 (forgetting); LIT-235 (norm along a sequence).

A statement over several training seeds takes the seed for its unit (``paired.over_seeds``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from driftlab.drift.paired import over_seeds
from driftlab.drift.stats import (
    HALF_COUNTS,
    Array,
    AverageDifference,
    Interval,
    PairedDifference,
    average_difference,
    clustered_mean,
    paired_difference,
)
from driftlab.drift.theory import Applied, CoordinateMoments, alpha_form, coordinate_moments, norm_sd

_SLICE = 1 << 20  # elements of each checkpoint widened to float64 at a time


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskRecord:
    """What every item of one task scored along the sequences of one arm.

    Attributes:
        correct: for each training seed an array [K + 1, n], checkpoint by item, items in the same order in all of them;
            NaN where an item was not scored.
        clusters: label of each item; ``strata`` likewise, None where the task has none.
    """

    correct: Sequence[Array]
    clusters: Sequence[str]
    strata: Sequence[str] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """An accuracy, or a change of one, with its 95 % interval.

    Attributes:
        mean: over seeds (fraction).
        low, high: with one seed the interval over items; with several the one over seeds, no narrower than that over
            items; None where items come in fewer than two clusters.
        values: one per seed.
        n, n_clusters: items behind every value, and independent groups of them; None for an average over tasks.
    """

    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]
    n: int
    n_clusters: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Checkpoint minus checkpoint on the same items: one value per seed, and the same over items, seeds averaged."""

    values: tuple[float, ...]
    items: PairedDifference | AverageDifference

    @property
    def estimate(self) -> Estimate:
        clusters = self.items.n_clusters if isinstance(self.items, PairedDifference) else None
        return _estimate(self.values, self.items.low, self.items.high, self.items.n, clusters)


@dataclass(frozen=True, kw_only=True, slots=True)
class Forgetting:
    """Best accuracy after any earlier stage minus that at the end; one value and one best stage per seed.

    The largest of several noisy accuracies lies above the true one, so this is biased upwards: above 0 on average where
    nothing was forgotten. It has no interval for that reason; the paired change since the task's own stage
    (``backward``) has one.
    """

    values: tuple[float, ...]
    stages: tuple[int, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))


def level(task: TaskRecord, checkpoint: int) -> Estimate | None:
    """R[checkpoint, task]; None where no item was scored in every seed.

    Half a right and half a wrong item is added to the variance, so that 0 and 1 keep an interval.
    """
    rows = np.stack([seed[checkpoint] for seed in task.correct])
    known = np.isfinite(rows).all(axis=0)
    if not known.any():
        return None
    items = clustered_mean(
        rows[:, known].mean(axis=0), *_labels(task, known), extra_variance=HALF_COUNTS / int(known.sum()) ** 2
    )
    values = tuple(float(row[known].mean()) for row in rows)
    return _estimate(values, items.low, items.high, items.n, items.n_clusters)


def change(task: TaskRecord, after: int, before: int) -> Change | None:
    """R[after, task] - R[before, task], over the items scored at both checkpoints in every seed; None without any."""
    pairs = [(seed[before], seed[after]) for seed in task.correct]
    known = np.all([np.isfinite(first) & np.isfinite(last) for first, last in pairs], axis=0)
    if not known.any():
        return None
    first, last = (np.mean([pair[side][known] for pair in pairs], axis=0) for side in (0, 1))
    values = tuple(float((later[known] - earlier[known]).mean()) for earlier, later in pairs)
    return Change(values=values, items=paired_difference(first, last, *_labels(task, known)))


def mean_change(changes: Sequence[Change | None]) -> Change | None:
    """Unweighted mean over tasks, seed by seed; None where one of them is missing, since fewer would be another mean.

    Tasks are taken as independent of each other.
    """
    known = [one for one in changes if one is not None]
    if not known or len(known) < len(changes):
        return None
    values = np.mean([one.values for one in known], axis=0)
    items = average_difference([one.items for one in known if isinstance(one.items, PairedDifference)])
    return Change(values=tuple(float(value) for value in values), items=items)


def learned(targets: Sequence[TaskRecord]) -> list[Change | None]:
    """R[j, j] - R[j-1, j] for every target: what its own stage taught."""
    return [change(task, j, j - 1) for j, task in enumerate(targets, start=1)]


def backward(targets: Sequence[TaskRecord]) -> list[Change | None]:
    """R[K, j] - R[j, j] for every target but the last; the mean is backward transfer (BWT, Lopez-Paz and Ranzato)."""
    return [change(task, len(targets), j) for j, task in enumerate(targets[:-1], start=1)]


def forward(targets: Sequence[TaskRecord]) -> list[Change | None]:
    """R[j-1, j] - R[0, j] for every target but the first: what earlier stages did to it before its own.

    The mean is forward transfer (Lopez-Paz and Ranzato), whose untrained model is the base model here.
    """
    return [change(task, j - 1, 0) for j, task in enumerate(targets[1:], start=2)]


def forgetting(targets: Sequence[TaskRecord]) -> list[Forgetting | None]:
    """max over stages 1 <= i < K of R[i, j] - R[K, j] for every target but the last (Chaudhry et al. 2018).

    Over the items scored after every stage in every seed; None where there are none. The base is no stage.
    """
    found: list[Forgetting | None] = []
    for task in targets[:-1]:
        stacked = np.stack([seed[1:] for seed in task.correct])
        known = np.isfinite(stacked).all(axis=(0, 1))
        if not known.any():
            found.append(None)
            continue
        accuracy = stacked[:, :, known].mean(axis=2)
        best = accuracy[:, :-1].argmax(axis=1)
        lost = accuracy[np.arange(len(best)), best] - accuracy[:, -1]
        found.append(
            Forgetting(values=tuple(float(value) for value in lost), stages=tuple(int(stage) + 1 for stage in best))
        )
    return found


def _labels(task: TaskRecord, known: NDArray[np.bool_]) -> tuple[list[str], list[str] | None]:
    chosen = [int(index) for index in np.flatnonzero(known)]
    strata = None if task.strata is None else [task.strata[index] for index in chosen]
    return [task.clusters[index] for index in chosen], strata


def _estimate(
    values: tuple[float, ...], low: float | None, high: float | None, n: int, clusters: int | None
) -> Estimate:
    mean = float(np.mean(values))
    if len(values) > 1 and low is not None and high is not None:
        summary = over_seeds(values, Interval(low, high))
        low, high = summary.low, summary.high
    return Estimate(mean=mean, low=low, high=high, values=values, n=n, n_clusters=clusters)


# How far the weights went.


def stage_products(checkpoints: Sequence[NDArray[np.float32]]) -> Array:
    """Inner products [K, K] of the K stage displacements in one tensor, in float64; add them up over tensors.

    Args:
        checkpoints: the tensor at checkpoints 0 to K.

    Raises:
        ValueError: fewer than two checkpoints, or shapes that differ.
    """
    if len(checkpoints) < 2 or len({tensor.shape for tensor in checkpoints}) > 1:
        raise ValueError(f"checkpoints must be two or more of one shape, got {[one.shape for one in checkpoints]}")
    flat = [tensor.reshape(-1) for tensor in checkpoints]
    total = np.zeros((len(flat) - 1, len(flat) - 1))
    for begin in range(0, flat[0].size, _SLICE):
        moves = np.diff(np.stack([one[begin : begin + _SLICE].astype(np.float64) for one in flat]), axis=0)
        total += moves @ moves.T
    return total


def cumulative_norms(products: Array) -> list[float]:
    """||theta_i - theta_0|| after each stage i, from the products of the stage displacements that it is the sum of."""
    return [math.sqrt(max(float(products[:stage, :stage].sum()), 0.0)) for stage in range(1, len(products) + 1)]


def stage_cosine(products: Array, first: int, second: int) -> float | None:
    """Cosine of the displacements of two stages, counted from 1; None where one of them is 0."""
    a, b = first - 1, second - 1
    scale = math.sqrt(products[a, a]) * math.sqrt(products[b, b])
    return None if scale == 0.0 else float(products[a, b]) / scale


@dataclass(frozen=True, kw_only=True, slots=True)
class WalkNorm:
    """Norm of a random walk with the coefficients that some stages applied.

    Attributes:
        predicted: root of d times the second moment of a coordinate; None where there is no law, and ``note`` says why.
        sd: its standard deviation over the noise.
        alpha_form: sqrt(sum alpha^2 d T / N) of the same stages, which assumes z-scored rewards and no anchor.
    """

    predicted: float | None
    sd: float | None
    alpha_form: float | None
    note: str | None


def walk_norm(stages: Sequence[Sequence[Applied] | None], d: int) -> WalkNorm:
    """The random walk over ``stages``, one after the other: independent walks, whose variances add up.

    The anchor of a stage pulls towards where that stage began, so it takes nothing from earlier stages.

    Args:
        stages: updates of each; None for a stage that is no walk, such as one of another trainer.
        d: perturbed parameters.
    """
    if any(stage is None for stage in stages):
        note = "the law is that of evolution strategies, and a stage up to here was trained otherwise"
        return WalkNorm(predicted=None, sd=None, alpha_form=None, note=note)
    applied = [list(stage) for stage in stages if stage is not None]
    flat = [update for stage in applied for update in stage]
    form = math.hypot(*(alpha_form(u.alpha, d, 1, u.population) for u in flat))
    # Without an anchor the stages are one walk, whose law knows of noise seeds that repeat by chance.
    one_walk = all(u.penalty == "none" for u in flat)
    moments = [coordinate_moments(stage) for stage in ([flat] if one_walk else applied)]
    known = [one for one in moments if one is not None]
    if len(known) < len(moments):
        return WalkNorm(predicted=None, sd=None, alpha_form=form, note="no law for the anchor of a stage up to here")
    second = math.fsum(one.second for one in known)
    # Of a sum of independent coordinates with odd moments 0.
    fourth = math.fsum(one.fourth for one in known) + 3 * (second**2 - math.fsum(one.second**2 for one in known))
    total = CoordinateMoments(second=second, fourth=fourth)
    return WalkNorm(predicted=math.sqrt(d * second), sd=norm_sd(total, d), alpha_form=form, note=None)
