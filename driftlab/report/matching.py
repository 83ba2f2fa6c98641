"""At which measured step runs are compared: the same step, the same budget, or the same target accuracy.

Nothing is interpolated or extrapolated: a run is compared at a step that was measured, or not at all and it says why.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from driftlab.errors import DriftlabError

KINDS = ("step", "rollouts", "flops", "target")
_ROUNDING = 1e-9
"""A mean of zeros and ones and a percentage of the same size may differ in the last bit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """What one run had spent and reached at each of its measured steps; NaN where nobody knows.

    Attributes:
        run, arm, seed: whose it is.
        steps: measured steps, ascending, the base (0) included.
        rollouts, flops: cumulated.
        accuracy: on the target, fractions.
        control: whether it is a null control, which is expected to reach nothing and so chooses no accuracy to match.
    """

    run: str
    arm: str
    seed: int
    steps: tuple[int, ...]
    rollouts: tuple[float, ...]
    flops: tuple[float, ...]
    accuracy: tuple[float, ...]
    control: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Matched:
    """The step of one run; None with the reason in ``note`` where it has none."""

    run: str
    arm: str
    seed: int
    step: int | None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """A match of several runs.

    Attributes:
        kind: one of ``KINDS``.
        value: what was matched: a step, a number of rollouts or operations, or an accuracy (fraction).
        given: whether the user named the value.
        rows: one per run, in the order of the tracks.
    """

    kind: str
    value: float
    given: bool
    rows: tuple[Matched, ...]

    def places(self, arm: str) -> dict[int, tuple[str, int]]:
        """Run and step by seed, of the runs of an arm that have one."""
        return {row.seed: (row.run, row.step) for row in self.rows if row.arm == arm and row.step is not None}

    def missing(self, arm: str) -> list[Matched]:
        """Runs of an arm without a step."""
        return [row for row in self.rows if row.arm == arm and row.step is None]


def match_runs(tracks: Sequence[Track], kind: str, value: float | None = None) -> Match:
    """The step of every run at which they match.

    ``step``: the same in all; without a value the last one that all measured. ``rollouts``, ``flops``: the last
    measured step that had spent no more than the value, in runs whose whole budget is as large; without a value the
    smallest budget of all runs that have one. ``target``: the first measured step whose target accuracy is at least
    the value; without a value the highest accuracy that every run reached, controls aside: the smallest of their best.

    Args:
        value: in the unit of ``Match.value``.

    Raises:
        DriftlabError: unknown kind, a value that no run can have, or one that cannot be chosen for lack of numbers.
    """
    rules: dict[str, Callable[[Sequence[Track], float | None], Match]]
    rules = {"step": _by_step, "rollouts": _by_budget("rollouts"), "flops": _by_budget("flops"), "target": _by_target}
    if kind not in rules:
        raise DriftlabError(f"--match is '{kind}', but runs are matched by {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if value is not None and not (math.isfinite(value) and value > 0):
        raise DriftlabError(f"--at is {value:g}, but a match needs a number above 0")
    return rules[kind](tracks, value)


def _by_step(tracks: Sequence[Track], value: float | None) -> Match:
    common = sorted(set.intersection(*({step for step in track.steps if step > 0} for track in tracks)))
    if value is None and not common:
        raise DriftlabError("these runs share no measured step after the base; match them by rollouts, flops or target")
    if value is not None and value != int(value):
        raise DriftlabError(f"--at is {value:g} with --match step, but a step is a whole number")
    wanted = common[-1] if value is None else int(value)
    if not any(wanted in track.steps for track in tracks):
        listed = ", ".join(map(str, common)) or "none"
        raise DriftlabError(f"no run measured step {wanted}; steps measured in all of them: {listed}")
    rows = []
    for track in tracks:
        last = track.steps[-1]
        why = f"ended at step {last}" if last < wanted else f"step {wanted} was not measured"
        has = wanted in track.steps
        rows.append(_matched(track, wanted if has else None, "" if has else why))
    return Match(kind="step", value=float(wanted), given=value is not None, rows=tuple(rows))


def _by_budget(kind: str) -> Callable[[Sequence[Track], float | None], Match]:
    unit = {"rollouts": "rollouts", "flops": "FLOPs"}[kind]

    def rule(tracks: Sequence[Track], value: float | None) -> Match:
        whole = {track.run: getattr(track, kind)[-1] for track in tracks}
        known = [budget for budget in whole.values() if math.isfinite(budget) and budget > 0]
        if not known:
            raise DriftlabError(f"none of these runs recorded {unit}; match them by step or target")
        if value is not None and value > max(known):
            raise DriftlabError(f"--at is {value:g} {unit}, but no run spent more than {max(known):g}: lower it")
        budget = min(known) if value is None else value
        rows = [_within(track, getattr(track, kind), budget, unit) for track in tracks]
        return Match(kind=kind, value=budget, given=value is not None, rows=tuple(rows))

    return rule


def _within(track: Track, spent: Sequence[float], budget: float, unit: str) -> Matched:
    if not math.isfinite(spent[-1]):
        return _matched(track, None, f"{unit} not recorded")
    if spent[-1] < budget:
        return _matched(track, None, f"never reached: ended at step {track.steps[-1]} after {spent[-1]:,.6g} {unit}")
    inside = [step for step, one in zip(track.steps, spent, strict=True) if step > 0 and one <= budget]
    if not inside:
        first = next(place for place, step in enumerate(track.steps) if step > 0)
        note = f"the first measured step, {track.steps[first]}, had already spent {spent[first]:,.6g} {unit}"
        return _matched(track, None, note)
    return _matched(track, inside[-1])


def _by_target(tracks: Sequence[Track], value: float | None) -> Match:
    bases = [track.accuracy[0] for track in tracks if track.steps[0] == 0 and math.isfinite(track.accuracy[0])]
    if not bases:
        raise DriftlabError("no run measured the target's accuracy at the base; match them by step, rollouts or flops")
    if value is not None and value > 1:
        raise DriftlabError(f"--at is {100 * value:g} with --match target, but an accuracy is at most 100 %")
    best = {track.run: _best(track) for track in tracks}
    # A run without any accuracy cannot choose the value; its row says that it was not measured.
    trained = [track for track in tracks if not track.control] or tracks
    tops = [best[track.run][0] for track in trained if math.isfinite(best[track.run][0])]
    if not tops:
        raise DriftlabError("no run measured the target's accuracy after the base; match them by step or rollouts")
    wanted = min(tops) if value is None else value
    if wanted <= max(bases):
        if value is not None:
            raise DriftlabError(
                f"--at is {100 * value:g} %, but the base has {100 * max(bases):.4g} % on the target already: raise it"
            )
        least = next(track.run for track in trained if best[track.run][0] == wanted)
        raise DriftlabError(
            f"{least} never measures above the base's {100 * max(bases):.4g} % on the target, so there is no accuracy "
            "that every run reached: name one with --at, or leave that run out"
        )
    rows = []
    for track in tracks:
        reached = [
            step
            for step, one in zip(track.steps, track.accuracy, strict=True)
            if step > 0 and one >= wanted - _ROUNDING
        ]
        top, where = best[track.run]
        never = f"never reached within {track.steps[-1]} steps, best {100 * top:.1f} % at step {where}"
        why = never if math.isfinite(top) else "target accuracy was not measured"
        rows.append(_matched(track, reached[0] if reached else None, "" if reached else why))
    return Match(kind="target", value=wanted, given=value is not None, rows=tuple(rows))


def _best(track: Track) -> tuple[float, int]:
    """Highest measured target accuracy after the base, and its step; NaN when there is none."""
    later = [(one, -step) for step, one in zip(track.steps, track.accuracy, strict=True) if step > 0 and one == one]
    top, step = max(later, default=(math.nan, 0))
    return top, -step


def _matched(track: Track, step: int | None, note: str = "") -> Matched:
    return Matched(run=track.run, arm=track.arm, seed=track.seed, step=step, note=note)
