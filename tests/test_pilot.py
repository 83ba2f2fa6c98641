"""Projections against closed forms, a second implementation and simulation; the pilot on the embedded model."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats
from typer.testing import CliRunner

from driftlab import loop
from driftlab.cli import app
from driftlab.drift.projection import Projection, Refusal, bent_interval, step_to_reach
from driftlab.drift.totals import mean_interval, ratio_interval, total_interval
from driftlab.errors import DriftlabError, SpecError
from driftlab.pilot.observe import Observed, shortened
from driftlab.pilot.project import Goal, Pilot, Quantity, project, run_pilot
from driftlab.pilot.words import check_file, shown
from driftlab.run.plan import PlannedRun, load_plan
from driftlab.run.records import Cost, Update
from driftlab.session import Event
from tests.test_loop import TOML, plan, quiet


def close(found: float | None, expected: float, rel: float = 1e-9) -> None:
    assert found == pytest.approx(expected, rel=rel)


# Means, totals, ratios.


def test_mean_interval_by_hand() -> None:
    """1 to 5: mean 3, variance 2.5; Student's 0.975 quantile at 4 degrees of freedom is 2.776445 in printed tables."""
    found = mean_interval([1, 2, 3, 4, 5])
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert (found.value, found.n) == (3.0, 5)
    close(found.low, 3 - half, 1e-6)
    close(found.high, 3 + half, 1e-6)


def test_a_total_of_nothing_is_nothing_and_a_single_value_has_no_interval() -> None:
    assert (total_interval([1, 2], 0).low, total_interval([1, 2], 0).high) == (0.0, 0.0)
    for found in (mean_interval([2.0]), total_interval([2.0], 3), ratio_interval([2.0])):
        assert (found.low, found.high, found.n) == (None, None, 1)
    with pytest.raises(ValueError, match="at least one"):
        mean_interval([])
    with pytest.raises(ValueError, match="not finite"):
        total_interval([1.0, math.inf], 2)
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval([1.0, 0.0])


@pytest.mark.parametrize(("n", "count"), [(4, 1), (4, 50), (10, 10)])
def test_the_interval_of_a_total_covers_the_total(n: int, count: int) -> None:
    """Normal values, 2,000 pilots: 95 % within three standard errors of the simulation, 0.005 each."""
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(2000):
        found = total_interval(rng.normal(10, 1, n), count)
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= rng.normal(10, 1, count).sum() <= found.high
    assert hits / 2000 == pytest.approx(0.95, abs=0.015)


def test_a_ratio_and_its_inverse_have_inverse_intervals() -> None:
    values = np.array([1.5, 2.5, 2.0, 3.1])
    found, inverse = ratio_interval(values), ratio_interval(1 / values)
    close(found.value, stats.gmean(values))
    assert found.low is not None
    assert found.high is not None
    assert inverse.low is not None
    close(found.low * (inverse.high or 0), 1.0)
    # Independently: scipy's t interval of the logarithms.
    logs = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95)
    close(found.high, math.exp(logs.high))


# The step at which a score is reached.


def crossings(rewards: np.ndarray, score: float, level: float) -> tuple[float, float]:
    """Ends of the steps at which "the line is at the score" is not rejected: scipy's regression, root by root."""
    steps = np.arange(1, rewards.size + 1)
    quantile = stats.t.ppf((1 + level) / 2, rewards.size - 2)

    def excess(step: float) -> float:
        line = stats.linregress(steps - step, rewards - score)
        return abs(line.intercept) / line.intercept_stderr - quantile

    line = stats.linregress(steps, rewards)
    centre = (score - line.intercept) / line.slope
    return optimize.brentq(excess, centre - 200, centre), optimize.brentq(excess, centre, centre + 200)


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("share", [0.5, 1.2, 1.9])
def test_fiellers_interval_is_the_set_of_steps_not_rejected(share: float, level: float) -> None:
    rewards = 0.2 + 0.03 * np.arange(1, 13) + np.random.default_rng(3).normal(0, 0.02, 12)
    score = 0.2 + 0.03 * share * 12
    found = step_to_reach(list(rewards), score, level)
    assert isinstance(found, Projection)
    low, high = crossings(rewards, score, level)
    close(found.low, low, 1e-8)
    close(found.high, high, 1e-8)
    line = stats.linregress(np.arange(1, 13), rewards)
    half = stats.t.ppf((1 + level) / 2, 10) * line.stderr
    assert (found.slope, found.slope_low) == pytest.approx((line.slope, line.slope - half))
    close(found.step, (score - line.intercept) / line.slope)


def test_a_line_without_scatter_is_crossed_without_error() -> None:
    found = step_to_reach([0.1, 0.2, 0.3, 0.4, 0.5], 0.75)
    assert isinstance(found, Projection)
    # Rounding of five sums of numbers below 1.
    assert (found.low, found.step, found.high) == pytest.approx((7.5, 7.5, 7.5), abs=1e-9)
    assert (found.bent_low, found.bent_high) == pytest.approx((7.5, 7.5), abs=1e-6)


def outcomes(n: int, slope: float, step: float, runs: int, *, correlation: float = 0.0, seed: int = 0) -> np.ndarray:
    """Of simulated pilots with normal errors of size 1: answers given, and answers that cover ``step``."""
    rng = np.random.default_rng(seed)
    given = covered = 0
    for _ in range(runs):
        errors = rng.normal(size=n)
        for i in range(1, n):
            errors[i] = correlation * errors[i - 1] + math.sqrt(1 - correlation**2) * errors[i]
        found = step_to_reach(list(slope * np.arange(1, n + 1) + errors), slope * step)
        if isinstance(found, Projection):
            given += 1
            covered += found.low <= step <= found.high
    return np.array([given, covered])


@pytest.mark.parametrize(("n", "step"), [(4, 5.0), (8, 5.5), (8, 13.0), (20, 36.0)])
def test_the_interval_of_the_step_covers_it(n: int, step: float) -> None:
    """Slopes that are always told from 0: 95 % of 2,000 simulated pilots, within four standard errors of 0.005.

    Four, since eight shares are looked at. One pilot in twenty of a straight line is refused for a bend (its test has
    that size), which is the only loss.
    """
    given, covered = outcomes(n, 20.0, step, 2000, seed=n)
    assert covered / given == pytest.approx(0.95, abs=0.02)
    assert given / 2000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize("slope", [0.1, 0.4])
def test_weak_slopes_give_few_answers_and_few_wrong_ones(slope: float) -> None:
    """Of all pilots at most 5 % print an interval that misses; three standard errors of 1,000 runs are 0.021."""
    given, covered = outcomes(6, slope, 9.0, 1000)
    assert 0 < given < 0.6 * 1000
    assert (given - covered) / 1000 < 0.05 + 0.021


@pytest.mark.parametrize(("n", "share"), [(5, 0.85), (20, 0.74)])
def test_what_correlated_errors_cost(n: int, share: float) -> None:
    """The shares that the output states, at correlation 0.5; simulated with other seeds before, 0.01 of error."""
    given, covered = outcomes(n, 20.0, 1.3 * n, 1500, correlation=0.5, seed=1)
    assert covered / given == pytest.approx(share, abs=0.04)


NOISY = (0.30, 0.34, 0.31, 0.35, 0.33)


@pytest.mark.parametrize(
    ("rewards", "score", "words"),
    [
        ((0.1, 0.2, 0.3), 0.4, "3 iterations are too few"),
        ((0.4, 0.4, 0.4, 0.4), 0.5, "does not rise"),
        ((0.50, 0.41, 0.32, 0.19, 0.11), 0.6, "does not rise"),
        ((0.50, 0.61, 0.72, 0.79, 0.91), 0.45, "nothing to wait for"),
        (NOISY, 0.36, "95 % interval holds 0"),
        ((0.1, 0.4, 0.6, 0.7, 0.7, 0.65), 0.9, "bend down beyond error within the 6 iterations"),
        ((0.1, 0.4, 0.6, 0.7, 0.7, 0.65), 0.6, "iteration 3 of the pilot itself was the first"),
        ((0.01, 0.02, 0.08, 0.2, 0.4, 0.7), 0.9, "bend up"),
    ],
)
def test_refusals_say_why(rewards: tuple[float, ...], score: float, words: str) -> None:
    found = step_to_reach(rewards, score)
    assert isinstance(found, Refusal)
    assert words in found.reason


def test_an_undecided_slope_says_how_many_iterations_would_tell() -> None:
    """By direct search: the first length whose two quantiles together stay below slope over standard error."""
    found = step_to_reach(NOISY, 0.36)
    assert isinstance(found, Refusal)
    line = stats.linregress(np.arange(1, 6), NOISY)
    scatter = line.stderr * math.sqrt(10)  # the sum of squares of -2 to 2
    n = 6
    while (stats.t.ppf(0.975, n - 2) + stats.norm.ppf(0.8)) * scatter / math.sqrt(n * (n**2 - 1) / 12) >= line.slope:
        n += 1
    assert f"a pilot of about {n} iterations" in found.reason


def test_the_score_may_lie_one_rise_above_the_end_and_no_further() -> None:
    """1 to 6 in steps of 0.1: the line rose by 0.5, so 1.1 is the last score; step 2 n - 1 = 11."""
    rewards = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    last = step_to_reach(rewards, 1.1 - 1e-9)
    assert isinstance(last, Projection)
    assert last.step == pytest.approx(11, abs=1e-6)
    beyond = step_to_reach(rewards, 2.0)
    assert isinstance(beyond, Refusal)
    # Reached at 20: a pilot of n looks ahead to 2 n - 1, so 11 iterations would (10.5, rounded up).
    assert "a pilot of about 11 iterations would do" in beyond.reason


def test_the_bend_is_that_of_a_fitted_parabola() -> None:
    """Refused for a bend exactly where numpy's quadratic fit has a coefficient beyond its t interval."""
    rng, seen = np.random.default_rng(9), 0
    steps = np.arange(1, 10)
    for _ in range(200):
        rewards = 5.0 * steps + 0.08 * (steps - 5) ** 2 + rng.normal(size=9)
        found = step_to_reach(list(rewards), 46.0)
        coefficients, covariance = np.polyfit(steps, rewards, 2, cov=True)
        # numpy scales by n - 3 degrees of freedom too.
        bent = abs(coefficients[0]) > stats.t.ppf(0.975, 6) * math.sqrt(covariance[0, 0])
        assert bent == (isinstance(found, Refusal) and "bend" in found.reason)
        seen += bent
    assert 20 < seen < 180


@pytest.mark.parametrize("score", [0.5, 0.62, 0.66, 0.8])
def test_the_interval_of_a_parabola_is_the_set_of_steps_not_rejected(score: float) -> None:
    """numpy's quadratic fit around every hundredth step: its constant is the fit there, with its standard error."""
    steps = np.arange(1, 13)
    rewards = 0.3 + 0.05 * steps - 0.0016 * steps**2 + np.random.default_rng(2).normal(0, 0.003, 12)
    grid = np.arange(1, 23.001, 0.01)
    fits = [np.polyfit(steps - step, rewards, 2, cov=True) for step in grid]
    kept = [abs(fit[2] - score) <= stats.t.ppf(0.975, 9) * math.sqrt(covariance[2, 2]) for fit, covariance in fits]
    found = bent_interval(list(rewards), score)
    if not any(kept):
        assert found is None
        return
    assert found is not None
    assert found[0] == pytest.approx(grid[kept][0], abs=0.0101)
    if kept[-1]:
        assert found[1] is None
    else:
        assert found[1] == pytest.approx(grid[kept][-1], abs=0.0101)


def test_a_parabola_that_only_looks_like_a_line_is_covered() -> None:
    """A bend that a pilot of 8 finds in half the cases: 95 % of 1,500 within three standard errors, 0.017.

    The interval runs from the first to the last iteration not rejected, so it may hold a little more. The line's own
    interval misses the same step far more often.
    """
    rng, steps, step = np.random.default_rng(4), np.arange(1, 9), 12
    curve = 3.0 * steps - 0.1 * steps**2
    score, covered, open_ended, line_given, line_covered = 3.0 * step - 0.1 * step**2, 0, 0, 0, 0
    for _ in range(1500):
        rewards = list(curve + rng.normal(0, 0.5, 8))
        found = bent_interval(rewards, score)
        covered += found is not None and found[0] <= step <= (found[1] or math.inf)
        open_ended += found is not None and found[1] is None
        line = step_to_reach(rewards, score)
        if isinstance(line, Projection):
            line_given += 1
            line_covered += line.low <= step <= line.high
    assert 0.95 - 0.017 < covered / 1500 < 0.99
    assert open_ended < 1500
    assert line_covered / line_given < 0.6


# What a run takes, from what was seen.


def update(step: int, seconds: float, tokens: int, *, stored: int = 0) -> Update:
    return Update(
        step=step,
        rewards=(0.0, 1.0),
        step_norm=1.0,
        step_cosine=None,
        weights_hash="w",
        prompt_tokens=100,
        generated_tokens=tokens,
        seconds={"rollout": 0.6 * seconds, "reward": 0.1 * seconds, "update": 0.3 * seconds, "total": seconds},
        cost=Cost(
            rollouts=16,
            forward_flops=1e6,
            backward_flops=0.0,
            process_peak_bytes=1000,
            device_peak_bytes=None,
            stored_bytes=stored,
        ),
        seeds=(1, 2),
        coefficients=(1.0, -1.0),
        population=2,
        sigma=0.1,
        alpha=0.05,
        penalty="none",
        decay=0.0,
    )


SEEN = Observed(
    updates=(update(1, 50.0, 40), update(2, 10.0, 44), update(3, 12.0, 48), update(4, 11.0, 52, stored=5000)),
    rollouts=((1.0, 1.0), (1.0, 0.5)),
    members=2,
    prompts=8,
    start_seconds=100.0,
    start_bytes=10_000,
    line_bytes=(500, 500, 500, 500),
    measured_seconds=30.0,
    measured_bytes=2000,
    trainer_bytes=0,
)


def named(quantities: tuple[Quantity, ...] | str) -> dict[str, Quantity]:
    assert not isinstance(quantities, str)
    return {quantity.name: quantity for quantity in quantities}


def test_totals_of_a_run_by_hand(tmp_path: Path) -> None:
    """To step 20, measured every 5, keyframes every 10; iterations of 10, 12 and 11 s after one of 50 s."""
    spec = plan(tmp_path, "es.iterations=20", "measure.every=5", "keyframes_every=10").spec
    found = named(project(SEEN, spec, Goal.at(20, "")))
    assert found["rollouts"].value == found["rollouts"].low == found["rollouts"].high == 320
    assert (found["generated tokens"].value, found["forward operations"].value) == (20 * 46, 2e7)
    # Tokens: standard deviation sqrt(80/3) over 4, t = 3.182446 at 3 degrees of freedom.
    half = 3.182446 * math.sqrt(80 / 3) * math.sqrt(400 / 4 + 20)
    close(found["generated tokens"].high, 920 + half, 1e-6)
    # Time: standard deviation 1 over 3, t = 4.302653 at 2 degrees of freedom, 19 more iterations.
    half = 4.302653 * math.sqrt(19**2 / 3 + 19)
    close(found["training"].value, (50 + 19 * 11) / 3600)
    close(found["training"].low, (50 + 19 * 11 - half) / 3600, 1e-6)
    assert (found["measuring"].value, found["measuring"].low) == (4 * 30 / 3600, None)
    close(found["all of it"].value, (259 + 120 + 100) / 3600)
    close(found["all of it"].high, (259 + 120 + 100 + half) / 3600, 1e-6)
    assert found["disk"].value == 10_000 + 20 * 500 + 4 * 2000 + 2 * 5000


def test_an_uncertain_step_widens_everything(tmp_path: Path) -> None:
    """At steps 8 to 13 around 10, all at 97.5 %: t = 6.205347 at 2 degrees of freedom."""
    spec = plan(tmp_path, "es.iterations=20", "measure.every=5").spec
    goal = Goal(step=10, low=8, high=13, level=0.975, words="")
    found = named(project(SEEN, spec, goal))
    assert (found["rollouts"].low, found["rollouts"].value, found["rollouts"].high) == (128, 160, 208)
    close(found["training"].high, (50 + 12 * 11 + 6.205347 * math.sqrt(12**2 / 3 + 12)) / 3600, 1e-6)
    # Steps 5 and 8; 5 and 10; 5, 10 and 13.
    assert (found["measuring"].low, found["measuring"].high) == (60 / 3600, 90 / 3600)
    assert found["measuring"].value == 60 / 3600


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "n", "texts"),
    [
        (1.5, 1.0, 2.0, "h", 3, ("1.50 h", "[1.00, 2.00]")),
        (0.05, 0.0, 0.1, "h", 3, ("3.00 min", "[0, 6.00]")),
        (0.0321, None, None, "s", 1, ("32.1 ms", "none, seen once")),
        (96_000, 96_000, 96_000, "rollouts", 4, ("96,000 rollouts", "no spread")),
        (2.5e12, 2e12, 3e12, "FLOP", 4, ("2.50 TFLOP", "[2.00, 3.00]")),
        (0, 0, 0, "bytes", 4, ("0 B", "no spread")),
    ],
)  # fmt: skip
def test_numbers_are_shown_in_the_unit_of_their_size(
    value: float, low: float | None, high: float | None, unit: str, n: int, texts: tuple[str, str]
) -> None:
    assert shown(Quantity(name="", value=value, low=low, high=high, unit=unit, n=n)) == texts


# On the embedded model.

ITERATIONS = 4


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlannedRun, Pilot, list[Path]]:
    """A pilot of the tiny run, projected to its own end, and what it left where temporary folders are made."""
    folder = tmp_path_factory.mktemp("pilot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))
        planned = plan(tmp_path_factory.mktemp("spec"))
        found = run_pilot(planned, ITERATIONS, Goal.at(planned.spec.iterations, ""), quiet)
    return planned, found, list(folder.iterdir())


def test_a_pilot_is_the_start_of_the_run_and_leaves_nothing(
    tried: tuple[PlannedRun, Pilot, list[Path]], tmp_path: Path
) -> None:
    """Against the run itself: the same rewards, the same rollouts and tokens, and its size on disk."""
    planned, pilot, left = tried
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    updates = store.updates()
    assert left == []
    assert pilot.rewards == tuple(sum(u.rewards) / len(u.rewards) for u in updates)
    found = named(pilot.projected)
    assert found["rollouts"].value == 4 * 8 * 4
    close(found["generated tokens"].value, sum(u.generated_tokens for u in updates))
    close(found["forward operations"].value, sum(u.cost.forward_flops for u in updates if u.cost is not None))
    size = sum(file.stat().st_size for file in (tmp_path / "run").rglob("*") if file.is_file())
    # One checkpoint stands for two whose answers differ in length: a few hundred bytes of some 20 kB.
    assert found["disk"].value == pytest.approx(size, rel=0.05)


def test_parts_of_an_iteration_add_up(tried: tuple[PlannedRun, Pilot, list[Path]]) -> None:
    _, pilot, _ = tried
    found = named(pilot.iteration)
    parts = sum(found[name].value for name in ("of it model", "of it reward", "of it rest"))
    close(parts, found["iteration"].value)
    assert (found["first iteration"].n, found["iteration"].n, found["generated tokens"].n) == (1, 3, 4)
    assert found["peak of the process"].value > 4 * 157_696


def test_concurrency_is_what_one_member_takes_times_members_over_all_of_them(
    tried: tuple[PlannedRun, Pilot, list[Path]],
) -> None:
    _, pilot, _ = tried
    found = named(pilot.rollout)
    alone, together, rollout = (
        found["one member, all prompts"],
        found["4 members, all prompts"],
        found["of them one rollout"],
    )
    close(rollout.value, together.value / 32)
    # The geometric mean lies between the ratios' extremes, so near the ratio of means; times scatter by half at most.
    assert found["concurrency"].value == pytest.approx(4 * alone.value / together.value, rel=0.5)
    assert found["concurrency"].n >= 3


def test_nothing_is_left_when_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned, seen = plan(tmp_path), []
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))

    def stop(event: Event) -> None:
        if event.kind == "iteration" and event.step == 2:
            seen.extend(place.rglob("updates.jsonl"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_pilot(planned, ITERATIONS, Goal.at(4, ""), stop)
    assert len(seen) == 1
    assert list(place.iterdir()) == []


def test_a_shorter_copy_changes_length_and_measured_steps_alone(tmp_path: Path) -> None:
    planned = plan(tmp_path, "keyframes_every=1", "measure.at=[3]")
    short = shortened(planned, 3).spec
    assert short.measured_steps() == (0, 3)
    kept, given = short.as_dict(), planned.spec.as_dict()
    changed = {key for key in kept if kept[key] != given[key]}
    assert changed == {"es", "measure", "keyframes_every"}
    assert kept["es"] == {**given["es"], "iterations": 3}
    with pytest.raises(SpecError, match="needs 3"):
        shortened(planned, 2)


def test_controls_have_no_score_ahead_and_no_rollouts_to_time(tmp_path: Path) -> None:
    extra = ('control="random-direction"', "anchor={penalty='none',lambda=0.0}", "probes={}")
    found = run_pilot(plan(tmp_path, *extra), 3, 0.9, quiet)
    assert isinstance(found.rollout, str)
    assert "no rollouts" in found.rollout
    assert isinstance(found.score, Refusal)
    assert "does not learn" in found.score.reason
    assert found.rewards == ()
    assert (found.goal.step, named(found.projected)["rollouts"].value) == (4, 0)


def test_grpo_is_projected_from_its_iterations(tmp_path: Path) -> None:
    """Weights of 3 measured steps of 157,696 float32 weights, with a header each, and TRL's own state."""
    text = TOML.replace('penalty = "l2"\nlambda = 5.0', "").split("[measure]")[0]
    grpo = "[grpo]\niterations = 6\nbeta = 0.0\nlearning_rate = 1e-3\nprompts = 4\ngenerations = 4\n"
    (tmp_path / "g.toml").write_text(f'trainer = "grpo"\n{text}{grpo}[measure]\nevery = 2\n')
    (planned,) = load_plan(str(tmp_path / "g.toml"))
    found = run_pilot(planned, 3, Goal.at(6, ""), quiet)
    assert isinstance(found.rollout, str)
    assert "trainer grpo" in found.rollout
    projected = named(found.projected)
    assert projected["rollouts"].value == 6 * 16
    # The rollouts' own pass, and one for the gradient, whose backward takes twice a forward.
    close(projected["backward operations"].value, projected["forward operations"].value)
    assert projected["disk"].note == "of it weights of 3 steps"
    assert projected["disk"].value > 3 * 4 * 157_696 + 3 * 4 * 157_696


def test_the_command_prints_a_refusal_and_writes_every_number(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    file = tmp_path / "new" / "pilot.json"
    arguments = ["pilot", str(tmp_path / "tiny.toml"), "--iterations", "3", "--set", "probes={}", "--to-score", "0.9"]
    result = CliRunner().invoke(app, [*arguments, "--out", str(file)])
    assert result.exit_code == 0, result.exception
    assert "3 iterations are too few for a fit" in result.stdout
    assert "Projected to step 4, the spec's last step, from 3 iterations." in result.stdout
    written = json.loads(file.read_text())
    (arm,) = written["arms"]
    assert arm["score"]["status"] == "refused"
    quantities = [*arm["rollout"]["quantities"], *arm["iteration"], *arm["projected"]["quantities"]]
    assert len(quantities) == len(arm["rollout"]["quantities"]) + len(arm["iteration"]) + 10
    for one in quantities:
        assert one["unit"]
        assert one["n"] >= 1
        assert math.isfinite(one["value"])
        assert (one["low"] is None) == (one["high"] is None)
    assert [path.name for path in file.parent.iterdir()] == ["pilot.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "tiny.toml"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--to-score", "0.5", "--to-step", "3"], "both say where"),
        (["--to-score", "nan"], "must be a number"),
        (["--iterations", "2"], "a pilot needs 3"),
        (["--arm", "ESS"], "unknown arm"),
        (["--set", 'trainer="folders"', "--set", 'folders.path="x"', "--set", "anchor.lambda=0",
          "--set", 'anchor.penalty="none"'], "trains nothing"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_anything_runs(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "tiny.toml").write_text(TOML)
    result = CliRunner().invoke(app, ["pilot", str(tmp_path / "tiny.toml"), *arguments])
    assert isinstance(result.exception, DriftlabError)
    assert sentence in str(result.exception)


def test_files_of_others_are_not_written_over(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours.json", tmp_path / "other.json"
    ours.write_text('{"pilot": 1}')
    other.write_text("[1]")
    check_file(ours)
    check_file(tmp_path / "new" / "place.json")
    for file in (other, tmp_path, ours / "below.json"):
        with pytest.raises(DriftlabError, match="choose another file"):
            check_file(file)


def test_a_score_projects_costs_to_its_step(tmp_path: Path) -> None:
    """Rewards that rise by 0.1 an iteration: 0.75 is crossed at 7.5, so the eighth iteration is the first above."""
    from driftlab.pilot.project import _score

    rewards = [0.1, 0.2, 0.3, 0.4, 0.5]
    spec = plan(tmp_path).spec
    found, goal = _score(spec, rewards, 0.75)
    assert isinstance(found, Projection)
    assert (goal.step, goal.low, goal.high, goal.level) == (8, 8, 8, 0.975)
    refused, goal = _score(spec, rewards, 3.0)
    assert isinstance(refused, Refusal)
    assert (goal.step, goal.low) == (spec.iterations, spec.iterations)
    assert isinstance(_score(spec.model_copy(update={"control": "shuffled-reward"}), rewards, 0.75)[0], Refusal)
