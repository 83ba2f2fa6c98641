"""The target's own curve: still rising, level, or past its peak, and where the peak may lie.

The interval of the peak holds every checkpoint that no other one beats beyond their common error (comparisons with the
best; Hsu 1981), with a Gaussian multiplier bootstrap for the critical values. Unlike the percentiles of a bootstrapped
argmax it covers the true peak of a flat curve too. The decay after a peak is what LIT-236 (arXiv 2602.00170) derives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from driftlab.drift.bands import Curve, normal_errors
from driftlab.drift.curves import MARGIN, Point, too_short
from driftlab.drift.stats import Array

TargetWord = Literal["still rising", "plateau", "peaked and decays", "cannot say"]

DRAWS = 4000
"""Monte-Carlo error of a 95 % quantile's level with that many draws: 0.0034."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Level:
    """Level of the target at successive checkpoints, base included.

    Attributes:
        steps: ascending, shape [K].
        value: shape [K]; with ``covariance`` [K, K] of their errors.
        freedom: degrees of freedom of the estimated variances.
    """

    steps: tuple[int, ...]
    value: Array
    covariance: Array
    freedom: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetVerdict:
    """What the target's curve does.

    Attributes:
        word, reason: the verdict and the numbers that decided.
        peak: step of the highest value (first of equals).
        low, high: first and last step at which the true peak may lie, 95 %.
        late: change over the last third of the checkpoints by a straight line, with its 95 % t interval.
        fallen: highest minus final value.
    """

    word: TargetWord
    reason: str
    peak: int
    low: int
    high: int
    late: Point
    fallen: float


def level_of(curve: Curve, steps: Sequence[int]) -> Level:
    """The level of a paired curve: 0 at the base, the change since then at the ``steps``."""
    k = len(steps)
    covariance = np.zeros((k + 1, k + 1))
    covariance[1:, 1:] = curve.covariance
    return Level(
        steps=(0, *steps),
        value=np.concatenate([[0.0], curve.change]),
        covariance=covariance,
        freedom=curve.freedom,
    )


FROM_THE_START = "no gain came first, as far as can be told"
"""How the reason begins for a curve that fell and whose peak may be its first checkpoint."""
MOST_POINTS = 100
"""Iterations of a longer run are averaged in groups: the comparisons grow with the square of their number."""


def reward_level(steps: Sequence[int], rewards: Sequence[Sequence[float]]) -> Level:
    """Training reward: mean over an iteration's members, the error from their scatter; iterations are independent.

    The batch of prompts is fixed, so the error is that of the mean reward around the current weights on this batch.
    Runs of more than ``MOST_POINTS`` iterations are averaged in equal groups, each standing at its middle step.
    """
    table = np.asarray(rewards, dtype=np.float64)
    members, size = table.shape[1], -(-len(table) // MOST_POINTS)
    groups = [slice(start, start + size) for start in range(0, len(table), size)]
    means, variances = table.mean(axis=1), table.var(axis=1, ddof=1) / members
    return Level(
        steps=tuple(steps[group][(len(steps[group]) - 1) // 2] for group in groups),
        value=np.array([means[group].mean() for group in groups]),
        covariance=np.diag([variances[group].mean() / len(variances[group]) for group in groups]),
        freedom=members - 1,
    )


def pooled(levels: Sequence[Level]) -> Level:
    """Mean accuracy of several seeds of one arm, with error over items and over seeds.

    Seeds share their evaluation items, so the items' errors do not average out: the mean covariance is kept whole. The
    scatter of the seeds over their number is added; it holds a part of the same errors again, which errs on the side of
    a wider interval.

    Args:
        levels: one per seed, at least two, over the same steps.
    """
    values = np.stack([level.value for level in levels])
    between = np.cov(values, rowvar=False, ddof=1) / len(levels)
    return Level(
        steps=levels[0].steps,
        value=values.mean(axis=0),
        covariance=np.mean([level.covariance for level in levels], axis=0) + between,
        freedom=len(levels) - 1,
    )


def peak_set(level: Level, *, seed: int, confidence: float = 0.95) -> tuple[int, ...]:
    """Indices of the checkpoints at which the true peak may lie.

    Checkpoint t is left out when some s has ``value_s - value_t > c_t * SE(s, t)``, where c_t is the quantile of the
    largest such studentised error over s; the true peak is left out with probability ``1 - confidence`` at most.
    """
    return _peak_sets(level, seed, (confidence,))[0]


def _peak_sets(level: Level, seed: int, confidences: tuple[float, ...]) -> list[tuple[int, ...]]:
    """``peak_set`` at several levels of confidence from one set of draws."""
    generator = np.random.default_rng(seed)
    noise = normal_errors(generator, DRAWS, level.covariance)
    scale = np.sqrt(level.freedom / generator.chisquare(level.freedom, DRAWS))
    own = np.diag(level.covariance)
    kept: list[list[int]] = [[] for _ in confidences]
    for t in range(len(level.value)):
        errors = np.sqrt(np.maximum(own + own[t] - 2 * level.covariance[:, t], 0.0))
        others = (np.arange(len(own)) != t) & (errors > 0)
        criticals = np.zeros(len(confidences))
        if others.any():
            drawn = (noise[:, others] - noise[:, [t]]) / errors[others]
            criticals = np.quantile(scale * drawn.max(axis=1), confidences)
        for critical, found in zip(criticals, kept, strict=True):
            if ((level.value[others] - level.value[t]) <= critical * errors[others]).all():
                found.append(t)
    # A value that beats its equals without any error at all still has a peak.
    return [tuple(found) or (int(np.argmax(level.value)),) for found in kept]


def target_verdict(level: Level, *, margin: float = MARGIN, seed: int = 0) -> TargetVerdict:
    """Verdict on the target's curve.

    *peaked and decays*: the final checkpoint cannot be the peak, and the end does not rise again. *still rising*: some
    checkpoint lies above the first, and a straight line through the last third of the checkpoints rises beyond its 95 %
    interval. *plateau*: some checkpoint lies above the first, and the change over the last third lies within
    ``± margin`` with its interval. Else *cannot say*. That the final or the first one cannot be the peak is asked at
    97.5 %, so a level curve is called anything else in at most 5 of 100 cases; the peak's interval is one of 95 %.

    Raises:
        ValueError: fewer checkpoints than a curve needs.
    """
    short = too_short(len(level.steps))
    if short is not None:
        raise ValueError(short)
    kept, surely = _peak_sets(level, seed, (0.95, 0.975))
    best, last = int(np.argmax(level.value)), len(level.steps) - 1
    late = _late_change(level)
    low, high = level.steps[kept[0]], level.steps[kept[-1]]
    fallen = float(level.value[best] - level.value[-1])
    where = f"the peak lies between steps {low} and {high}"
    word: TargetWord = "cannot say"
    risen, decayed = 0 not in surely, last not in surely
    if decayed and late.low > 0:
        reason = f"it lies below its best, and rose again over steps {late.step} to {level.steps[-1]}; {where}"
    elif decayed and 0 in kept:
        word, reason = "peaked and decays", f"{FROM_THE_START}: {where}, before the final step {level.steps[-1]}"
    elif decayed:
        word, reason = "peaked and decays", f"{where}, before the final step {level.steps[-1]}"
    elif last not in kept:
        reason = f"{where}, but that the final step {level.steps[-1]} lies below it is not sure enough to call a decay"
    elif not risen:
        reason = "no checkpoint lies surely above the first"
    elif late.low > 0:
        word, reason = "still rising", f"it rose over steps {late.step} to {level.steps[-1]} beyond the interval"
    elif -margin < late.low and late.high < margin:
        word, reason = "plateau", f"level over steps {late.step} to {level.steps[-1]}; {where}"
    else:
        reason = f"the change over steps {late.step} to {level.steps[-1]} is too uncertain; {where}"
    return TargetVerdict(word=word, reason=reason, peak=level.steps[best], low=low, high=high, late=late, fallen=fallen)


def _late_change(level: Level, confidence: float = 0.95) -> Point:
    """Change over the last third (three checkpoints at least) by a least-squares line; ``step`` is where it begins."""
    count = len(level.steps)
    start = count - min(count, max(3, round(count / 3)))
    times = np.array(level.steps[start:], dtype=np.float64)
    centred = times - times.mean()
    contrast = np.zeros(count)
    contrast[start:] = centred / (centred @ centred) * (times[-1] - times[0])
    change = float(contrast @ level.value)
    error = float(np.sqrt(contrast @ level.covariance @ contrast))
    half = float(stats.t.ppf((1 + confidence) / 2, level.freedom)) * error
    return Point(step=int(times[0]), change=change, low=change - half, high=change + half)
