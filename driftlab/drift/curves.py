"""Verdicts on curves: what a run did to a prior task, and whether the target is still rising, level or past its peak.

Pure functions on estimates. All prior tasks of a run and their average are judged together. A run in which nothing
changes may be called changed in 5 of 100 cases: half of that goes to the final change, the comparison declared in
advance, over all tasks; half to the deepest and highest of all earlier checkpoints. Whether a checkpoint that moved was
left again is asked only where one moved, with intervals that hold for all such differences: a return takes yes to every
question, and to call one falsely the question whose answer is no must err (intersection-union test; Berger 1982), so
the questions need no correction for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from driftlab.drift.bands import (
    DRAWS,
    Band,
    Curve,
    against_base,
    against_final,
    band,
    contrast_errors,
    critical_values,
    normal_errors,
)
from driftlab.drift.stats import Array

PriorWord = Literal["stable", "dipped and recovered", "declined", "gained", "gained and settled back", "cannot say"]

MARGIN = 0.05
"""Largest change (fraction) that still counts as stable: the size of the effect in dispute (LIT-238's −5.2 points)."""
FEWEST_CHECKPOINTS = 3
"""Base included: with fewer there is no curve."""
DRAWDOWN_DRAWS = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A change at one step, with the ends of its interval (fractions)."""

    step: int
    change: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Critical:
    """Critical values of a run, over all its prior tasks and their average.

    Attributes:
        path: over the changes of all checkpoints before the final one since base.
        final: over the final changes since base.
        back: over the changes from every checkpoint to the final one.
    """

    path: float
    final: float
    back: float

    def along(self, checkpoints: int) -> Array:
        """Critical value of each change since base, shape [K]."""
        return np.array([self.path] * (checkpoints - 1) + [self.final])


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorVerdict:
    """What a run did to one prior task (or to their average).

    Attributes:
        word: the verdict.
        reason: why, in words, with the numbers that decided.
        final, lowest, highest: change since base there, with the corrected interval.
        came_back: final minus lowest, with an interval simultaneous over all such differences; None when the lowest
            is the final step.
        drawdown: largest fall from an earlier value, base included, to a later one.
        drawdown_noise: what 95 % of curves without any change stay below.
        average: time-averaged change over the run (trapezoids over steps, base included) with its own 95 % interval.
        items_needed: items at which every interval would fit the margin if the changes stayed; None where they do fit,
            and where a change itself exceeds the margin.
    """

    word: PriorWord
    reason: str
    final: Point
    lowest: Point
    highest: Point
    came_back: Point | None
    drawdown: float
    drawdown_noise: float
    average: Point
    items_needed: int | None


def too_short(checkpoints: int) -> str | None:
    """Why a curve of that many checkpoints, base included, gets no verdict; None when it is long enough."""
    if checkpoints >= FEWEST_CHECKPOINTS:
        return None
    return f"a curve verdict needs {FEWEST_CHECKPOINTS} checkpoints, base included, and {checkpoints} were measured"


def run_critical_values(
    curves: Sequence[Curve], *, averaged: Sequence[int], seed: int, level: float = 0.95, draws: int = DRAWS
) -> Critical:
    """Critical values for prior tasks that are judged together, and the mean of those in ``averaged`` (indices)."""
    checkpoints, half = len(curves[0].change), (1 + level) / 2
    since_base = against_base(checkpoints)
    families = [(since_base[:-1], half), (since_base[-1:], half), (against_final(checkpoints), level)]
    return Critical(*critical_values(curves, families, averaged=averaged, seed=seed, draws=draws))


def since_base(curve: Curve, critical: Critical) -> Band:
    """Change of every checkpoint since base with its corrected interval."""
    checkpoints = len(curve.change)
    return band(curve, against_base(checkpoints), critical.along(checkpoints))


def prior_verdict(
    curve: Curve, steps: Sequence[int], critical: Critical, *, margin: float = MARGIN, seed: int = 0
) -> PriorVerdict:
    """Verdict on one prior task, given the critical values of its run.

    A checkpoint has fallen (risen) when its corrected interval lies below (above) 0. *declined*, *gained*: the final
    one has. *dipped and recovered*: an earlier one fell, the final one lies above it beyond the interval of their
    difference, and the final change's interval stays above ``-margin``. *gained and settled back*: its mirror image.
    *stable*: every interval lies within ``± margin``. Everything else is *cannot say*.

    Raises:
        ValueError: fewer checkpoints than a curve needs (``too_short``).
    """
    short = too_short(len(steps) + 1)
    if short is not None:
        raise ValueError(short)
    based = since_base(curve, critical)
    back = band(curve, against_final(len(steps)), critical.back)
    points = [_point(step, based, index) for index, step in enumerate(steps)]
    returns = [_point(step, back, index) for index, step in enumerate(steps[:-1])]
    worst, best = int(np.argmin(based.estimate)), int(np.argmax(based.estimate))
    needed = _items_needed(curve, points, margin)
    word, reason = _word(points, returns, margin)
    if word == "cannot say":
        reason += _would_do(needed, curve.n)
    drawdown, noise = _drawdown(curve, seed)
    return PriorVerdict(
        word=word,
        reason=reason,
        final=points[-1],
        lowest=points[worst],
        highest=points[best],
        came_back=returns[worst] if worst < len(steps) - 1 else None,
        drawdown=drawdown,
        drawdown_noise=noise,
        average=_time_average(curve, steps),
        items_needed=needed,
    )


def _point(step: int, found: Band, index: int) -> Point:
    return Point(
        step=step,
        change=float(found.estimate[index]),
        low=float(found.low[index]),
        high=float(found.high[index]),
    )


def _word(points: Sequence[Point], returns: Sequence[Point], margin: float) -> tuple[PriorWord, str]:
    final, earlier = points[-1], list(zip(points[:-1], returns, strict=True))
    if final.high < 0:
        return "declined", f"the final change {_interval(final)} lies below 0"
    if final.low > 0:
        return "gained", f"the final change {_interval(final)} lies above 0"
    fell = [(point, back) for point, back in earlier if point.high < 0]
    rose = [(point, back) for point, back in earlier if point.low > 0]
    if any(back.low > 0 for _, back in fell) and final.low > -margin:
        dip = min((point for point, _ in fell), key=lambda point: point.change)
        return "dipped and recovered", f"{_interval(dip)} at step {dip.step}, {_interval(final)} at the end"
    if any(back.high < 0 for _, back in rose) and final.high < margin:
        top = max((point for point, _ in rose), key=lambda point: point.change)
        return "gained and settled back", f"{_interval(top)} at step {top.step}, {_interval(final)} at the end"
    if fell or rose:
        moved = (fell or rose)[0][0]
        return "cannot say", (
            f"it {'fell' if fell else 'rose'} at step {moved.step} ({_interval(moved)}), and the final change "
            f"{_interval(final)} leaves open whether that lasted"
        )
    if all(-margin < point.low and point.high < margin for point in points):
        return "stable", f"at every step the interval lies within ±{100 * margin:g} points"
    widest = max(points, key=lambda point: max(-point.low, point.high))
    return "cannot say", (
        f"no change is distinguishable from 0, but {_interval(widest)} at step {widest.step} leaves room for one of "
        f"more than {100 * margin:g} points"
    )


def _items_needed(curve: Curve, points: Sequence[Point], margin: float) -> int | None:
    """Half widths fall with the root of the number of items."""
    rooms = [margin - abs(point.change) for point in points]
    if min(rooms) <= 0:
        return None
    factor = max((point.high - point.change) / room for point, room in zip(points, rooms, strict=True))
    return int(np.ceil(curve.n * factor**2)) if factor > 1 else None


def _would_do(needed: int | None, n: int) -> str:
    """How many items would make it stable, if the estimates stayed where they are."""
    if needed is None:
        return "; a change as large as estimated is no stability at any number of items"
    if needed > 20 * n:
        return "; more than 20 times as many items would be needed"
    digits = 10 ** max(0, len(str(needed)) - 2)
    return f"; about {-(-needed // digits) * digits:,} items would do"


def _interval(point: Point) -> str:
    def text(value: float) -> str:
        rounded = f"{100 * value:+.1f}"
        # An end that would round to 0 keeps its side of it.
        exact = rounded if float(rounded) else f"{100 * value:+.2f}" if abs(value) >= 5e-5 else "0.0"
        return exact.replace("-", "−")

    return f"{text(point.change)} [{text(point.low)}, {text(point.high)}]"


def _drawdown(curve: Curve, seed: int) -> tuple[float, float]:
    """Observed maximum drawdown, and the 95 % quantile of that of curves which only jitter as this one's items do."""
    path = np.concatenate([[0.0], curve.change])
    noise = normal_errors(np.random.default_rng(seed), DRAWDOWN_DRAWS, curve.covariance)
    noise = np.concatenate([np.zeros((len(noise), 1)), noise], axis=1)
    falls = (np.maximum.accumulate(noise, axis=1) - noise).max(axis=1)
    return float((np.maximum.accumulate(path) - path).max()), float(np.quantile(falls, 0.95))


def _time_average(curve: Curve, steps: Sequence[int], level: float = 0.95) -> Point:
    """Mean of the change over the run's steps, piecewise linear between checkpoints, starting from 0 at the base."""
    times = np.array([0, *steps], dtype=np.float64)
    gaps = np.diff(times)
    weights = np.zeros(len(times))
    weights[:-1] += gaps / 2
    weights[1:] += gaps / 2
    contrast = (weights / times[-1])[1:]
    change = float(contrast @ curve.change)
    half = float(stats.t.ppf((1 + level) / 2, curve.freedom) * contrast_errors(curve, contrast[None, :])[0])
    return Point(step=steps[-1], change=change, low=change - half, high=change + half)
