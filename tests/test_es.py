"""Noise, shaping, update and anchor against values computed outside the code under test."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch

from driftlab.es.anchor import anchored
from driftlab.es.noise import noise, noise_chunks
from driftlab.es.seeds import member_seeds
from driftlab.es.shaping import coefficients, z_scores
from driftlab.es.step import Step
from driftlab.es.update import apply_step, perturbed

GOLDEN = "05c8f134bef23e63"
"""First 16 hex digits of SHA-256 of noise(1, "x", (300, 1000)): runs stored today must replay for ever."""


def step(**changes) -> Step:
    settings = {
        "seeds": (3, 5, 8),
        "coefficients": (1.2, -0.7, -0.5),
        "population": 3,
        "alpha": 0.05,
        "penalty": "none",
        "decay": 0.0,
        "scheme": "keyed",
    }
    return Step(**{**settings, **changes})


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        "a.weight": generator.normal(size=(50, 70)).astype(np.float32),
        "b.bias": generator.normal(size=(11,)).astype(np.float32),
    }


class TestNoise:
    def test_golden_hash(self):
        assert hashlib.sha256(noise(1, "x", (300, 1000)).tobytes()).hexdigest()[:16] == GOLDEN

    def test_pieces_do_not_change_the_stream(self):
        whole = noise(9, "w", (123, 457)).reshape(-1)
        pieces = np.concatenate([chunk.copy() for _, chunk in noise_chunks(9, "w", (123, 457), chunk=1001)])
        assert np.array_equal(whole, pieces)

    def test_is_standard_normal(self):
        """Kolmogorov-Smirnov at one in a million, and the first two moments within 5 standard errors."""
        from scipy import stats

        sample = noise(4, "w", (1000, 1000)).reshape(-1).astype(np.float64)
        assert abs(sample.mean()) < 5e-3
        assert abs(sample.var() - 1) < 5 * np.sqrt(2 / sample.size)
        assert stats.kstest(sample[:100_000], "norm").pvalue > 1e-6

    def test_tensors_of_one_shape_are_independent(self):
        """|correlation| < 5/sqrt(n); shared-by-shape, kept for published runs, gives correlation 1."""
        n = 100_000
        one, other = noise(2, "layers.0.w", (n,)), noise(2, "layers.1.w", (n,))
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(n)
        shared = [noise(2, f"layers.{i}.w", (n,), "shared-by-shape") for i in (0, 1)]
        assert np.array_equal(*shared)

    def test_neighbouring_seeds_and_names_do_not_share_streams(self):
        heads = {noise(seed, name, (4,)).tobytes() for seed in range(100) for name in ("a", "b", "1|a")}
        assert len(heads) == 300

    def test_shared_by_shape_is_one_reseeded_torch_generator(self):
        expected = torch.randn(7, 9, generator=torch.Generator().manual_seed(5)).numpy()
        assert np.array_equal(noise(5, "any", (7, 9), "shared-by-shape"), expected)

    def test_leaves_global_generators_alone(self):
        before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
        noise(1, "x", (10,))
        noise(1, "x", (10,), "shared-by-shape")
        assert torch.equal(before[0], torch.get_rng_state())
        assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


class TestSeeds:
    def test_distinct_and_fixed_by_seed_and_step(self):
        seeds = member_seeds(0, 1, 5000)
        assert len(set(seeds)) == 5000
        assert seeds == member_seeds(0, 1, 5000)
        assert not set(seeds[:30]) & set(member_seeds(0, 2, 30))
        assert not set(seeds[:30]) & set(member_seeds(1, 1, 30))


class TestShaping:
    def test_z_scores_by_hand(self):
        """Rewards 0, 1, 1: mean 2/3, population standard deviation sqrt(2)/3."""
        expected = np.array([-2 / 3, 1 / 3, 1 / 3]) / (np.sqrt(2) / 3 + 1e-8)
        np.testing.assert_allclose(z_scores([0, 1, 1]), expected, rtol=1e-14)

    def test_equal_rewards_give_exactly_zero(self):
        assert z_scores([0.1] * 7) == (0.0,) * 7

    def test_mirrored_pairs(self):
        z = z_scores([1, 2, 3, 5])
        assert coefficients([1, 2, 3, 5], mirrored=True) == (z[0] - z[2], z[1] - z[3])


class TestUpdate:
    @pytest.mark.parametrize(("penalty", "decay"), [("none", 0.0), ("l2", 0.3), ("l1", 0.02)])
    def test_equals_float64_reference(self, penalty, decay):
        """Ten lines of float64. Tolerance: a handful of float32 roundings of numbers below 8, 2**-24 * 8 each."""
        weights, base, s = tensors(0), tensors(1), step(penalty=penalty, decay=decay)
        expected = {}
        for name, theta in weights.items():
            eps = [noise(seed, name, theta.shape).astype(np.float64) for seed in s.seeds]
            new = theta + s.alpha / s.population * sum(c * e for c, e in zip(s.coefficients, eps, strict=True))
            delta = new - base[name]
            if penalty == "l2":
                delta = (1 - decay) * delta
            if penalty == "l1":
                delta = np.sign(delta) * np.maximum(np.abs(delta) - decay, 0)
            expected[name] = base[name] + delta
        apply_step(weights, base, s, previous=None, threads=1)
        for name in weights:
            np.testing.assert_allclose(weights[name], expected[name], rtol=0, atol=6 * 8 * 2**-24)

    def test_geometry(self):
        """Norm and cosine against NumPy in float64 on the actual before and after."""
        weights, base = tensors(0), tensors(0)
        start = {name: w.copy() for name, w in weights.items()}
        first = apply_step(weights, base, step(), previous=None, threads=1)
        middle = {name: w.copy() for name, w in weights.items()}
        assert first.geometry.cosine is None
        later = apply_step(weights, base, step(seeds=(3, 6, 9)), previous=first.displacement, threads=2)
        flat = [np.concatenate([w.reshape(-1).astype(float) for w in d.values()]) for d in (start, middle, weights)]
        u, v = flat[1] - flat[0], flat[2] - flat[1]
        # The displacement is the float32 difference: relative error 2**-24 of weights of order one, on steps of 0.03.
        assert first.geometry.norm == pytest.approx(np.linalg.norm(u), rel=1e-5)
        assert later.geometry.cosine == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v), abs=1e-5)

    def test_does_not_depend_on_threads_or_tensor_order(self):
        one, other = tensors(0), dict(reversed(tensors(0).items()))
        apply_step(one, tensors(1), step(), previous=None, threads=1)
        apply_step(other, tensors(1), step(), previous=None, threads=3)
        assert all(np.array_equal(one[name], other[name]) for name in one)

    def test_zero_coefficients_move_nothing(self):
        weights = tensors(0)
        done = apply_step(weights, tensors(0), step(coefficients=(0.0, 0.0, 0.0)), previous=None, threads=1)
        assert done.geometry.norm == 0.0
        assert all(np.array_equal(weights[name], w) for name, w in tensors(0).items())

    def test_no_noise_is_no_change_of_any_bit(self):
        """Zero coefficients add +0.0 and so lose the sign of a -0.0; an update without seeds must not."""
        weights = {"a.weight": np.float32([-0.0, 0.0, 1.5, -2.0])}
        before = weights["a.weight"].tobytes()
        done = apply_step(weights, tensors(0) | weights, step(seeds=(), coefficients=()), previous=None, threads=1)
        assert weights["a.weight"].tobytes() == before
        assert (done.geometry.norm, done.geometry.cosine) == (0.0, None)

    def test_the_anchor_still_acts_without_noise(self):
        """theta = 3 beside base 1 keeps three quarters of the difference."""
        weights, base = {"w": np.float32([3.0])}, {"w": np.float32([1.0])}
        still = step(seeds=(), coefficients=(), penalty="l2", decay=0.25)
        apply_step(weights, base, still, previous=None, threads=1)
        assert weights["w"].tolist() == [2.5]

    def test_member_is_new_memory(self):
        theta = tensors()["a.weight"]
        before = theta.copy()
        plus = perturbed(theta, "a.weight", seed=1, sigma=0.5, scheme="keyed")
        minus = perturbed(theta, "a.weight", seed=1, sigma=-0.5, scheme="keyed")
        assert np.array_equal(theta, before)
        # Two float32 roundings of numbers below 8.
        np.testing.assert_allclose(plus + minus, 2 * theta, atol=2 * 8 * 2**-24)
        np.testing.assert_allclose(plus - theta, 0.5 * noise(1, "a.weight", theta.shape), atol=2 * 8 * 2**-24)


class TestAnchor:
    @pytest.mark.parametrize("penalty", ["none", "l1", "l2"])
    def test_no_decay_is_the_identity_bit_for_bit(self, penalty):
        theta = tensors(0)["a.weight"]
        assert np.array_equal(anchored(theta, tensors(1)["a.weight"], penalty=penalty, decay=0.0), theta)

    def test_l1_inside_the_threshold_is_exactly_the_base(self):
        base = np.linspace(-2, 2, 1001, dtype=np.float32)
        theta = base + np.float32(0.009) * np.resize(np.array([1, -1], np.float32), 1001)
        assert np.array_equal(anchored(theta, base, penalty="l1", decay=0.01), base)

    def test_l1_never_overshoots(self):
        base = np.zeros(5, np.float32)
        theta = np.array([-0.03, -0.01, 0.0, 0.01, 0.03], np.float32)
        # One float32 subtraction and one addition.
        expected = np.array([-0.01, 0, 0, 0, 0.01])
        np.testing.assert_allclose(anchored(theta, base, penalty="l1", decay=0.02), expected, atol=4e-9)

    def test_l2_keeps_one_minus_decay(self):
        base, theta = np.float32([1.0, -2.0]), np.float32([1.5, -1.0])
        assert anchored(theta, base, penalty="l2", decay=0.25).tolist() == [1.375, -1.25]
