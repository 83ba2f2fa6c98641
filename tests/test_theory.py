"""The random-walk laws: closed forms against the recursion, simulated reward-free ES and printed numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from driftlab.drift import theory
from driftlab.run.records import Penalty, Update

QWEN_3B = 3_085_938_688
QWEN_3B_TIED_TWICE = 3_397_103_616  # the tied embedding counted again, as a vLLM state_dict lists it


def make_update(
    step: int,
    coefficients: tuple[float, ...],
    *,
    population: int | None = None,
    alpha: float = 0.01,
    penalty: Penalty = "none",
    decay: float = 0.0,
    seeds: tuple[int, ...] | None = None,
) -> Update:
    """Without ``seeds`` no two updates with different steps share one."""
    return Update(
        step=step,
        seeds=seeds or tuple(range(1000 * step, 1000 * step + len(coefficients))),
        coefficients=coefficients,
        population=population or len(coefficients),
        sigma=2 * alpha,
        alpha=alpha,
        penalty=penalty,
        decay=decay,
        rewards=(),
        step_norm=0.0,
        step_cosine=None,
        weights_hash="",
        prompt_tokens=0,
        generated_tokens=0,
        seconds={},
    )


def z_scored(rng: np.random.Generator, population: int) -> tuple[float, ...]:
    rewards = rng.standard_normal(population)
    return tuple(((rewards - rewards.mean()) / rewards.std()).tolist())


def z_scored_run(
    steps: int, population: int, *, alpha: float = 0.01, penalty: Penalty = "none", decay: float = 0.0
) -> list[Update]:
    rng = np.random.default_rng(3)
    return [
        make_update(t, z_scored(rng, population), alpha=alpha, penalty=penalty, decay=decay)
        for t in range(1, steps + 1)
    ]


def simulate(
    coefficients: NDArray[np.float64],
    scales: Sequence[float],
    d: int,
    repetitions: int,
    rng: np.random.Generator,
    *,
    penalty: Penalty = "none",
    decay: float = 0.0,
) -> NDArray[np.float64]:
    """Squared norms after reward-free ES written out plainly.

    ``coefficients`` has shape [steps, repetitions or 1, draws]; ``scales`` is alpha / N of each step.
    """
    theta = np.zeros((repetitions, d))
    for c, scale in zip(coefficients, scales, strict=True):
        for draw in range(c.shape[1]):
            theta += scale * c[:, draw, None] * rng.standard_normal((repetitions, d))
        if penalty == "l2":
            theta *= 1.0 - decay
        elif penalty == "l1":
            theta = np.sign(theta) * np.maximum(np.abs(theta) - decay, 0.0)
    squares: NDArray[np.float64] = (theta**2).sum(axis=1)
    return squares


def assert_mean(sample: NDArray[np.float64], expected: float) -> None:
    """The mean is the expected one within 3 standard errors."""
    assert abs(sample.mean() - expected) < 3 * sample.std(ddof=1) / math.sqrt(sample.size)


@pytest.mark.parametrize("steps", [0, 1, 7, 200])
def test_alpha_form_is_the_recursion_for_z_scores(steps: int) -> None:
    predicted = theory.predicted_squared_norm(z_scored_run(steps, 6), 1000)
    assert predicted == pytest.approx(theory.alpha_form(0.01, 1000, steps, 6) ** 2, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 1e-15, 1e-9, 1e-4, 0.05, 0.9])
@pytest.mark.parametrize("steps", [1, 50, 400])
def test_anchored_form_is_the_recursion_also_as_q_tends_to_one(decay: float, steps: int) -> None:
    predicted = theory.predicted_squared_norm(z_scored_run(steps, 6, penalty="l2", decay=decay), 1000)
    assert predicted == pytest.approx(theory.anchored_form(0.01, decay, 1000, steps, 6) ** 2, rel=1e-11)


def test_anchored_form_without_decay_is_the_alpha_form() -> None:
    assert theory.anchored_form(0.01, 0.0, 1000, 17, 6) == pytest.approx(
        theory.alpha_form(0.01, 1000, 17, 6), rel=1e-15
    )
    # 1 - 1e-300 is 1 in floating point; the limit must not become 0 / 0.
    assert theory.anchored_form(0.01, 1e-300, 1000, 17, 6) == pytest.approx(theory.alpha_form(0.01, 1000, 17, 6))


def test_anchored_form_reaches_its_stationary_value() -> None:
    q2 = 0.95**2
    stationary = 0.01 * math.sqrt(1000 / 6 * q2 / (1 - q2))
    assert theory.anchored_form(0.01, 0.05, 1000, 10_000, 6) == pytest.approx(stationary, rel=1e-12)


def test_the_literal_sigma_form_doubles_the_norm_when_alpha_is_half_of_sigma() -> None:
    assert theory.sigma_form(1e-3, 1000, 5, 30) == pytest.approx(2 * theory.alpha_form(5e-4, 1000, 5, 30))


@pytest.mark.parametrize("population", [2, 6, 16])
@pytest.mark.parametrize("decay", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("mirrored", [False, True])
def test_reward_free_es_follows_the_law(population: int, decay: float, mirrored: bool) -> None:
    """Simulated runs agree with the closed form over all rewards, and with the recursion for given coefficients."""
    rng = np.random.default_rng([population, int(1000 * decay), mirrored])
    repetitions, steps, d, alpha = 20_000, 12, 5, 0.3
    penalty: Penalty = "l2" if decay else "none"
    rewards = rng.standard_normal((steps, repetitions, population))
    z = (rewards - rewards.mean(axis=2, keepdims=True)) / rewards.std(axis=2, keepdims=True)
    half = population // 2
    c = z[..., :half] - z[..., half:] if mirrored else z
    scales = [alpha / population] * steps
    measured = simulate(c, scales, d, repetitions, rng, penalty=penalty, decay=decay)
    # Standardised scores of unrelated rewards correlate by -1 / (N - 1), so a pair's c^2 averages 2 + 2 / (N - 1).
    factor = 1 + 1 / (population - 1) if mirrored else 1.0
    assert_mean(measured, factor * theory.anchored_form(alpha, decay, d, steps, population) ** 2)

    run = [
        make_update(t, tuple(c[t, 0].tolist()), population=population, alpha=alpha, penalty=penalty, decay=decay)
        for t in range(steps)
    ]
    applied = simulate(c[:, :1], scales, d, repetitions, rng, penalty=penalty, decay=decay)
    predicted = theory.predicted_squared_norm(run, d)
    assert predicted is not None
    assert_mean(applied, predicted)


def test_opposite_rewards_of_mirrored_pairs_double_the_square() -> None:
    z = np.array([1.0, 0.5, 2.0])
    z = np.concatenate([z, -z]) / math.sqrt((z**2).mean())
    update = make_update(1, tuple((z[:3] - z[3:]).tolist()), population=6)
    assert theory.step_variance(update) == pytest.approx(2 * 0.01**2 / 6, rel=1e-12)


def test_the_law_is_insensitive_to_reward_shape_but_not_to_shaping() -> None:
    ranks = np.arange(30) / 29 - 0.5
    ratio = theory.step_variance(make_update(1, tuple(ranks.tolist()))) / (0.01**2 / 30)
    assert ratio == pytest.approx(0.089, abs=0.0005)


def test_a_mixed_run_follows_each_updates_own_numbers() -> None:
    updates = [
        make_update(1, (1.0, -1.0), alpha=0.1),
        make_update(2, (0.0, 0.0), alpha=0.1, penalty="l2", decay=0.5),
        make_update(3, (2.0, 0.0, 1.0), alpha=0.3, penalty="l2", decay=0.1),
    ]
    by_hand = 0.9**2 * (0.5**2 * (10 * 0.01 / 4 * 2) + 10 * 0.09 / 9 * 5)
    assert theory.predicted_squared_norm(updates, 10) == pytest.approx(by_hand, rel=1e-14)


@pytest.mark.parametrize(("steps", "printed"), [(100, "86.85"), (200, "122.82"), (300, "150.42"), (400, "173.69")])
def test_prediction_beside_lit_235_table_3(steps: int, printed: str) -> None:
    assert f"{theory.alpha_form(7.5e-4, 4_022_468_096, steps, 30):.2f}" == printed


def test_exact_l2_norm_at_the_lit_238_setting() -> None:
    """52.8 belongs to d with the tied embedding counted twice; with each tensor once it is 50.4."""
    assert f"{theory.anchored_form(5e-4, 5e-3, QWEN_3B_TIED_TWICE, 500, 30):.1f}" == "52.8"
    assert f"{theory.anchored_form(5e-4, 5e-3, QWEN_3B, 500, 30):.1f}" == "50.4"
    assert f"{theory.alpha_form(5e-4, QWEN_3B, 500, 30):.2f}" == "113.39"
    assert f"{theory.alpha_form(5e-4, QWEN_3B_TIED_TWICE, 500, 30):.2f}" == "118.97"


def test_l1_density_agrees_with_the_exact_l1_norm_emulated_at_the_lit_238_setting() -> None:
    """An emulation with exact weights gave 60.5 (it draws a sample of Gaussian weights; the density gives 60.7)."""
    updates = z_scored_run(500, 30, alpha=5e-4, penalty="l1", decay=5e-6)
    predicted = theory.predicted_squared_norm(updates, QWEN_3B_TIED_TWICE)
    assert predicted is not None
    assert math.sqrt(predicted) == pytest.approx(60.5, rel=0.005)


@pytest.mark.parametrize("threshold", [0.01, 0.3, 1.0, 3.0])
def test_one_l1_step_is_a_soft_thresholded_gaussian(threshold: float) -> None:
    update = make_update(1, (1.0, -1.0), alpha=math.sqrt(2), penalty="l1", decay=threshold)  # step variance 1
    exact = 2 * ((1 + threshold**2) * norm.sf(threshold) - threshold * norm.pdf(threshold))
    assert theory.predicted_squared_norm([update], 7) == pytest.approx(7 * exact, rel=1e-8)


def test_l1_without_threshold_is_the_plain_walk() -> None:
    moments = theory.coordinate_moments(z_scored_run(100, 4, penalty="l1"))
    plain = theory.coordinate_moments(z_scored_run(100, 4))
    assert moments is not None
    assert plain is not None
    assert moments.second == pytest.approx(plain.second, rel=1e-8)
    assert moments.fourth == pytest.approx(plain.fourth, rel=1e-7)


@pytest.mark.parametrize("decay", [0.02, 0.1, 0.5])
def test_reward_free_es_with_l1_follows_the_density(decay: float) -> None:
    rng = np.random.default_rng(int(100 * decay))
    run = []
    for t in range(1, 16):
        # Unequal steps, and two that move nothing: the threshold still acts on them.
        c = (0.0,) * 4 if t in (1, 9) else tuple((np.array(z_scored(rng, 4)) * rng.uniform(0.5, 1.5)).tolist())
        run.append(make_update(t, c, alpha=0.5, penalty="l1", decay=decay))
    d = 10
    applied = np.array([u.coefficients for u in run])[:, None, :]
    measured = simulate(applied, [0.5 / 4] * len(run), d, 20_000, rng, penalty="l1", decay=decay)
    predicted = theory.predicted_squared_norm(run, d)
    moments = theory.coordinate_moments(run)
    assert predicted is not None
    assert moments is not None
    assert_mean(measured, predicted)
    variance = d * (moments.fourth - moments.second**2)
    assert measured.var(ddof=1) == pytest.approx(variance, rel=0.06)


def test_no_law_is_none_and_never_a_number() -> None:
    l1, l2 = make_update(1, (1.0, -1.0), penalty="l1", decay=0.1), make_update(2, (1.0, -1.0), penalty="l2", decay=0.1)
    assert theory.predicted_squared_norm([l1, l2], 10) is None
    tiny = make_update(2, (1.0, -1.0), alpha=0.0001, penalty="l1", decay=0.1)
    assert theory.predicted_squared_norm([l1, tiny], 10) is None
    again = make_update(2, (1.0, -1.0), penalty="l1", decay=0.1, seeds=(l1.seeds[0], 5))
    assert theory.predicted_squared_norm([l1, again], 10) is None


@pytest.mark.parametrize("decay", [0.0, 0.05, 0.4])
def test_noise_that_comes_back_adds_up_coherently(decay: float) -> None:
    """Runs of 12 steps whose three seeds a step come from a pool of six, simulated with one noise per seed: mean within
    3 standard errors; variance of the squared norm of d Gaussians, 2 v^2 / d (20,000 runs know it to about 1 %)."""
    rng = np.random.default_rng(int(100 * decay))
    d, repetitions = 8, 20_000
    eps = rng.standard_normal((6, repetitions, d))
    theta, run = np.zeros((repetitions, d)), []
    for t in range(1, 13):
        seeds, c = rng.choice(6, size=3, replace=False), rng.standard_normal(3)
        theta = (1 - decay) * (theta + 0.3 / 3 * np.einsum("i,ird->rd", c, eps[seeds]))
        penalty: Penalty = "l2" if decay else "none"
        run.append(
            make_update(t, tuple(c.tolist()), alpha=0.3, penalty=penalty, decay=decay, seeds=tuple(seeds.tolist()))
        )
    predicted = theory.predicted_squared_norm(run, d)
    assert predicted is not None
    assert theory.repeats_noise(run)
    squares = (theta**2).sum(axis=1)
    assert_mean(squares, predicted)
    assert squares.var(ddof=1) == pytest.approx(2 * predicted**2 / d, rel=0.06)
    independent = sum(
        (1 - decay) ** (2 * (12 - t)) * (1 - decay) ** 2 * d * theory.step_variance(run[t]) for t in range(12)
    )
    assert abs(squares.mean() - independent) > 10 * squares.std(ddof=1) / math.sqrt(repetitions)


def test_one_direction_is_as_long_as_the_walk_at_every_step() -> None:
    """Coefficients sqrt(N) (sqrt(t) - sqrt(t-1)) of one seed: alpha sqrt(d t / N); rounding only."""
    run = [
        make_update(t, (math.sqrt(6) * (math.sqrt(t) - math.sqrt(t - 1)),), population=6, seeds=(7,))
        for t in range(1, 51)
    ]
    for t in (1, 2, 17, 50):
        predicted = theory.predicted_squared_norm(run[:t], 1000)
        assert predicted == pytest.approx(theory.alpha_form(0.01, 1000, t, 6) ** 2, rel=1e-12)


def test_a_step_taken_back_is_no_displacement() -> None:
    there, back = make_update(1, (1.5, -0.5), seeds=(1, 2)), make_update(2, (-1.5, 0.5), seeds=(1, 2))
    assert theory.predicted_squared_norm([there, back], 10) == 0.0


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_without_repeated_noise_the_plain_recursion_is_kept_to_the_last_bit(decay: float) -> None:
    """Stored runs must get the numbers they have: the recursion written out, compared exactly."""
    run = z_scored_run(40, 6, penalty="l2", decay=decay)
    v, q = 0.0, 1.0 - decay
    for u in run:
        v = q * q * (v + (u.alpha / u.population) ** 2 * math.fsum(c * c for c in u.coefficients))
    moments = theory.coordinate_moments(run)
    assert not theory.repeats_noise(run)
    assert moments == theory.CoordinateMoments(second=v, fourth=3.0 * v * v)


def test_an_update_without_noise_moves_nothing() -> None:
    nothing = [make_update(t, (), population=4) for t in (1, 2)]
    moments = theory.coordinate_moments(nothing)
    assert moments == theory.CoordinateMoments(second=0.0, fourth=0.0)
    assert theory.norm_sd(moments, 10) == 0.0


def test_norm_sd_is_the_spread_of_the_norm() -> None:
    rng = np.random.default_rng(5)
    moments = theory.CoordinateMoments(second=0.49, fourth=3 * 0.49**2)
    norms = np.linalg.norm(rng.standard_normal((20_000, 60)) * 0.7, axis=1)
    assert theory.norm_sd(moments, 60) == pytest.approx(norms.std(ddof=1), rel=0.02)
    assert theory.norm_sd(theory.CoordinateMoments(second=0.0, fourth=0.0), 60) == 0.0


def test_fit_constant_recovers_slope_and_error() -> None:
    rng = np.random.default_rng(8)
    x = np.arange(1.0, 11.0)
    slopes, errors = [], []
    for _ in range(2000):
        fit = theory.fit_constant((1.2 * x + rng.normal(0, 0.5, x.size)).tolist(), x.tolist())
        assert fit is not None
        assert fit.stderr is not None
        slopes.append(fit.constant)
        errors.append(fit.stderr**2)
    assert np.mean(slopes) == pytest.approx(1.2, abs=3 * float(np.std(slopes)) / math.sqrt(2000))
    assert math.sqrt(np.mean(errors)) == pytest.approx(np.std(slopes), rel=0.06)


def test_fit_constant_says_what_it_cannot_know() -> None:
    assert theory.fit_constant([], []) is None
    assert theory.fit_constant([0.0], [0.0]) is None
    assert theory.fit_constant([0.0, 3.0], [0.0, 2.0]) == theory.FittedConstant(constant=1.5, stderr=None, n=1)
    with pytest.raises(ValueError, match="not finite"):
        theory.fit_constant([math.nan, 1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="pair up"):
        theory.fit_constant([1.0], [1.0, 1.0])


def test_impossible_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="population"):
        theory.alpha_form(0.1, 10, 1, 0)
    with pytest.raises(ValueError, match="lambda"):
        theory.anchored_form(0.1, 1.0, 10, 1, 2)
    with pytest.raises(ValueError, match="parameter"):
        theory.predicted_squared_norm([], -1)
