"""What a whole run would take, and where it would reach a score, by what its first iterations took and earned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from driftlab.drift.projection import Projection, Refusal, step_to_reach
from driftlab.drift.totals import Estimate, mean_interval, ratio_interval, total_interval
from driftlab.pilot.observe import Observed, observe, shortened
from driftlab.run.plan import PlannedRun
from driftlab.run.spec import RunSpec
from driftlab.session import Listener

LEVEL = 0.95
_HOUR = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """One number: ``n`` observations behind it, its 95 % interval None where they show no spread to take one from."""

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    n: int
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Where a projection ends: a step, with the interval that a score leaves it, each at ``level``."""

    step: int
    low: int
    high: int
    level: float
    words: str

    @classmethod
    def at(cls, step: int, words: str) -> Goal:
        return cls(step=step, low=step, high=step, level=LEVEL, words=words)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pilot:
    """One arm's pilot.

    Attributes:
        rewards: mean of each iteration; empty for a control that earns none.
        rollout: one rollout and how many run at a time, or why that was not measured.
        iteration: time of one iteration by parts, its tokens, memory.
        score: where a score is reached; None when a step was asked for.
        goal, projected: where the projection ends, and what the run takes up to there.
    """

    arm: str
    trainer: str
    iterations: int
    rewards: tuple[float, ...]
    rollout: tuple[Quantity, ...] | str
    iteration: tuple[Quantity, ...]
    score: Projection | Refusal | None
    goal: Goal
    projected: tuple[Quantity, ...]


def run_pilot(planned: PlannedRun, iterations: int, goal: Goal | float, listen: Listener) -> Pilot:
    """Run the first ``iterations`` of a run in a temporary folder, and project to ``goal``, a step or a score.

    Raises:
        SpecError: nothing is trained, or too few iterations for a spread.
        DriftlabError: as ``loop.run``.
    """
    short = shortened(planned, iterations)
    observed = observe(short, listen)
    rewards = tuple(sum(u.rewards) / len(u.rewards) for u in observed.updates if u.rewards)
    score: Projection | Refusal | None = None
    if not isinstance(goal, Goal):
        score, goal = _score(planned.spec, rewards, goal)
    return Pilot(
        arm=planned.spec.arm,
        trainer=planned.spec.trainer,
        iterations=iterations,
        rewards=rewards,
        rollout=_rollout(observed),
        iteration=_iteration(observed),
        score=score,
        goal=goal,
        projected=project(observed, planned.spec, goal),
    )


def project(observed: Observed, spec: RunSpec, goal: Goal) -> tuple[Quantity, ...]:
    """What the run would take up to ``goal``, in the order of a ledger."""
    costs, updates = observed.costs, observed.updates
    counted: Sequence[tuple[str, list[float], str]] = (
        ("rollouts", [cost.rollouts for cost in costs], "rollouts"),
        ("prompt tokens", [update.prompt_tokens for update in updates], "tokens"),
        ("generated tokens", [update.generated_tokens for update in updates], "tokens"),
        ("forward operations", [cost.forward_flops for cost in costs], "FLOP"),
        ("backward operations", [cost.backward_flops for cost in costs], "FLOP"),
    )
    found = [_quantity(name, _total(values, goal), unit) for name, values, unit in counted]
    rest, first, start = observed.seconds("total"), updates[0].seconds["total"], observed.start_seconds
    training = _sum(_total(rest, goal, skipped=1), Estimate(value=first, low=None, high=None, n=1), 0.0)
    checkpoints = [len(_measured(spec, step)) for step in (goal.step, goal.low, goal.high)]
    measuring = _each(checkpoints, observed.measured_seconds)
    whole = _sum(training, measuring, start)
    found += [
        _quantity("training", training, "h", "the first iteration once, as it was", _HOUR),
        _quantity("measuring", measuring, "h", f"checkpoints after the base: {checkpoints[0]}, as one took", _HOUR),
        _once("start", start / _HOUR, "h", "loading, preparing, measuring the base"),
        _quantity("all of it", whole, "h", "without the error of what was seen once", _HOUR),
    ]
    kept = [_kept(spec, step) for step in (goal.step, goal.low, goal.high)]
    weights = max(cost.stored_bytes for cost in costs)
    stored = _sum(_total(observed.line_bytes, goal), _each(checkpoints, observed.measured_bytes), observed.start_bytes)
    disk = _sum(stored, _each(kept, weights), observed.trainer_bytes)
    note = f"of it weights of {kept[0]} steps" if kept[0] else "no weights among it"
    return (*found, _quantity("disk", disk, "bytes", note))


def _rollout(observed: Observed) -> tuple[Quantity, ...] | str:
    pairs, members = observed.rollouts, observed.members
    if isinstance(pairs, str):
        return pairs
    alone, together = zip(*pairs, strict=True)
    each = members * observed.prompts
    return (
        _quantity("one member, all prompts", mean_interval(alone), "s"),
        _quantity("of it one rollout", mean_interval([one / observed.prompts for one in alone]), "s"),
        _quantity(f"{members} members, all prompts", mean_interval(together), "s"),
        _quantity("of them one rollout", mean_interval([all_ / each for all_ in together]), "s"),
        _quantity(
            "concurrency",
            ratio_interval([members * one / all_ for one, all_ in pairs]),
            "times",
            f"1: one after the other; {members}: all at once",
        ),
    )


def _iteration(observed: Observed) -> tuple[Quantity, ...]:
    """One iteration: its time by parts, the first apart, and what it makes and holds."""
    total, model, reward = observed.seconds("total"), observed.seconds("rollout", "model"), observed.seconds("reward")
    rest = [a - b - c for a, b, c in zip(total, model, reward, strict=True)]
    first = observed.updates[0].seconds["total"]
    tokens = [update.generated_tokens for update in observed.updates]
    last = observed.costs[-1]
    found = [
        _once("first iteration", first, "s", "warm-up, kept apart"),
        _quantity("iteration", mean_interval(total), "s"),
        _quantity("of it model", mean_interval(model), "s"),
        _quantity("of it reward", mean_interval(reward), "s"),
        _quantity("of it rest", mean_interval(rest), "s"),
        _quantity("generated tokens", mean_interval(tokens), "tokens"),
        _once("measuring a checkpoint", observed.measured_seconds, "s", "all probes but sampled answers"),
    ]
    # A system that does not say leaves no row.
    if last.process_peak_bytes is not None:
        found.append(_once("peak of the process", last.process_peak_bytes, "bytes", "so far, arms before included"))
    if last.device_peak_bytes is not None:
        found.append(_once("peak of the device", last.device_peak_bytes, "bytes", "so far, arms before included"))
    return tuple(found)


def _score(spec: RunSpec, rewards: Sequence[float], score: float) -> tuple[Projection | Refusal, Goal]:
    """Where the score is reached, and the step that costs are projected to: the spec's last where it is refused.

    What a step interval and an interval per iteration make together holds at ``LEVEL`` if each holds at half the error
    (Bonferroni), so the slope must be told from 0 at that level too.
    """
    level, end = 1 - (1 - LEVEL) / 2, Goal.at(spec.iterations, "the spec's last step")
    if spec.control != "none":
        return Refusal(f"a {spec.control} control does not learn, so no score is ahead of it"), end
    found, wide = step_to_reach(rewards, score, LEVEL), step_to_reach(rewards, score, level)
    if isinstance(found, Refusal):
        return found, end
    if isinstance(wide, Refusal):
        return wide, end
    step, low, high = (max(1, math.ceil(end)) for end in (wide.step, wide.low, wide.high))
    return found, Goal(step=step, low=low, high=high, level=level, words=f"where the mean training reward is {score:g}")


def _measured(spec: RunSpec, last: int) -> list[int]:
    """Steps after the base that a run up to ``last`` measures."""
    return [step for step in spec.measure.steps(last) if 0 < step <= last]


def _kept(spec: RunSpec, last: int) -> int:
    """Steps up to ``last`` whose weights are stored."""
    if spec.trainer == "grpo":
        return len(_measured(spec, last))
    return 0 if spec.keyframes_every is None else last // spec.keyframes_every


def _total(values: Sequence[float], goal: Goal, skipped: int = 0) -> Estimate:
    """Sum up to the goal, without the first ``skipped`` iterations; its ends at those of the goal."""
    best, low, high = (total_interval(values, step - skipped, goal.level) for step in (goal.step, goal.low, goal.high))
    # With 0 as the least that anything takes, the lower end grows with the count, as the upper one does.
    return Estimate(value=best.value, low=None if low.low is None else max(0.0, low.low), high=high.high, n=best.n)


def _each(counts: Sequence[int], size: float) -> Estimate:
    """``size``, seen once, for a count and the ends of its interval."""
    best, low, high = (count * size for count in counts)
    return Estimate(value=best, low=None if low == high else low, high=None if low == high else high, n=1)


def _sum(first: Estimate, second: Estimate, constant: float) -> Estimate:
    """Ends add up, which is never too narrow; what has none counts as it is."""
    low = [one.value if one.low is None else one.low for one in (first, second)]
    high = [one.value if one.high is None else one.high for one in (first, second)]
    unknown = first.low is None and second.low is None
    return Estimate(
        value=first.value + second.value + constant,
        low=None if unknown else sum(low) + constant,
        high=None if unknown else sum(high) + constant,
        n=max(first.n, second.n),
    )


def _quantity(name: str, found: Estimate, unit: str, note: str | None = None, scale: float = 1.0) -> Quantity:
    """Nothing here can be below 0, so no interval is. The unit is ``scale`` of the estimate's."""
    return Quantity(
        name=name,
        value=found.value / scale,
        low=None if found.low is None else max(0.0, found.low) / scale,
        high=None if found.high is None else found.high / scale,
        unit=unit,
        n=found.n,
        note=note,
    )


def _once(name: str, value: float, unit: str, note: str) -> Quantity:
    return Quantity(name=name, value=value, low=None, high=None, unit=unit, n=1, note=note)
