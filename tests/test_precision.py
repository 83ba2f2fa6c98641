"""Number formats and rounded steps against NumPy, torch's own half-precision operators and hand-made numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driftlab.es.anchor import anchored, pull
from driftlab.es.noise import noise, private_generator
from driftlab.es.precision import Precision, rounded, spacing, stochastically_rounded
from driftlab.es.step import Step, Watch, move
from driftlab.es.update import apply_step, in_place_members, perturbed, restored

TORCH = {"float16": torch.float16, "bfloat16": torch.bfloat16}
HALVES = ["float16", "bfloat16"]


def numbers(n: int = 20_000) -> np.ndarray:
    """Float32 over sixteen decades within both formats, zeros of both signs among them."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal(n) * 10.0 ** generator.uniform(-12, 4, n)
    return np.concatenate([x, [0.0, -0.0, 2.0**-14, 2.0**-24, 2.0**-25, 1.0, 65504.0]]).astype(np.float32)


def neighbours(x: float, bits: int, lowest: int) -> tuple[float, float]:
    """Largest grid value not above |x| and the next one, from the definition of a floating format, in float64."""
    exponent = max(math.frexp(abs(x))[1] - 1, lowest) if x else lowest
    unit = 2.0 ** (exponent - bits + 1)
    below = math.floor(abs(x) / unit) * unit
    return below, below + unit


BITS = {"float16": (11, -14), "bfloat16": (8, -126)}


class TestRounding:
    @pytest.mark.parametrize("dtype", HALVES)
    def test_nearest_even_from_the_definition(self, dtype):
        for x in numbers(3000):
            below, above = neighbours(float(x), *BITS[dtype])
            got = abs(float(rounded(np.float32([x]), dtype)[0]))
            if abs(x) - below == above - abs(x):
                unit = above - below
                assert got == (below if round(below / unit) % 2 == 0 else above)
            else:
                assert got == min((below, above), key=lambda grid: abs(grid - abs(float(x))))

    def test_float16_is_numpys(self):
        x = numbers()
        assert rounded(x, "float16").tobytes() == x.astype(np.float16).astype(np.float32).tobytes()

    def test_float32_is_left_alone(self):
        x = numbers()
        assert rounded(x, "float32") is x

    @pytest.mark.parametrize("dtype", HALVES)
    def test_stochastic_rounding_takes_a_neighbour_and_is_right_on_average(self, dtype):
        """4000 draws: the mean lies within 5 of its standard errors, at most half a spacing each."""
        x, draws = numbers(500)[:-1], 4000
        generator = np.random.default_rng(1)
        total = np.zeros(x.size)
        for _ in range(draws):
            one = stochastically_rounded(x, dtype, generator)
            total += one
        ends = np.array([neighbours(float(value), *BITS[dtype]) for value in x])
        assert ((np.abs(one) == ends[:, 0]) | (np.abs(one) == ends[:, 1]) | (one == x)).all()
        error = (total / draws - x) / (ends[:, 1] - ends[:, 0])
        assert np.abs(error).max() < 5 * 0.5 / math.sqrt(draws)

    @pytest.mark.parametrize("dtype", HALVES)
    def test_spacing_is_the_gap_between_neighbours(self, dtype):
        x = numbers(500)
        ends = np.array([neighbours(float(value), *BITS[dtype]) for value in x])
        assert np.array_equal(spacing(x, dtype), ends[:, 1] - ends[:, 0])


def tensors(seed: int, scale: float = 0.02) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {
        # Multiples of 64: torch's scalar loop for the elements left over rounds products that its vector loop does not.
        "a.weight": (generator.standard_normal((32, 8)) * scale).astype(np.float32),
        "b.weight": (generator.standard_normal(70_016) * scale).astype(np.float32),  # more than one piece
    }


def step(**changes) -> Step:
    settings = {
        "seeds": (3, 1, 4, 15),
        "coefficients": (1.25, -0.75, 1.0, -1.5),
        "population": 4,
        "alpha": 2.0**-8,
        "penalty": "none",
        "decay": 0.0,
        "scheme": "keyed",
    }
    return Step(**{**settings, **changes})


def published_code(theta, base, name, s: Step, half: torch.dtype) -> torch.Tensor:
    """One iteration as the code of LIT-238 (accumulate) or LIT-235 and LIT-237 (members) does it, in torch's own half
    arithmetic: members in place, update, decay."""
    w, w0 = torch.from_numpy(theta).to(half), torch.from_numpy(base).to(half)
    draws = {seed: torch.from_numpy(noise(seed, name, theta.shape)).to(half) for seed in s.seeds}
    scale = s.alpha / s.population
    if s.precision.update == "accumulate":
        for seed, sigma in s.in_place:
            w.add_(draws[seed], alpha=sigma)
            w.add_(draws[seed], alpha=-sigma)
        total = torch.zeros_like(w)
        for seed, c in zip(s.seeds, s.coefficients, strict=True):
            total.add_(draws[seed], alpha=c)
        w.add_(total, alpha=scale)
    else:
        for seed, sigma in s.in_place:
            w.add_(sigma * draws[seed])
            w.add_(-sigma * draws[seed])
        for seed, c in zip(s.seeds, s.coefficients, strict=True):
            w.add_(scale * c * draws[seed])
    if s.penalty != "none":
        w.sub_(w0)
        if s.penalty == "l2":
            w.mul_(1.0 - s.decay)
        else:
            w.copy_(torch.sign(w) * torch.clamp(torch.abs(w) - s.decay, min=0.0))
        w.add_(w0)
    return w.float()


class TestPublishedArithmetic:
    @pytest.mark.parametrize("dtype", HALVES)
    @pytest.mark.parametrize("rule", ["accumulate", "members"])
    @pytest.mark.parametrize(("penalty", "decay"), [("none", 0.0), ("l2", 0.05), ("l1", 2.0**-12)])
    def test_equals_torchs_half_operators(self, dtype, rule, penalty, decay):
        """Three steps; torch may fuse a product and a sum that we round to float32 in between, which moves a value
        only where it lies within 2**-24 of a tie: no coordinate in a thousand, and then by one unit of the format."""
        precision = Precision(master=dtype, update=rule, in_place_members=2)
        ours = {name: rounded(w, dtype) for name, w in tensors(0).items()}
        base = {name: w.copy() for name, w in ours.items()}
        for number in range(3):
            seeds = tuple(seed + 100 * number for seed in (3, 1, 4, 15))
            places = in_place_members(seeds, 2.0**-7, mirrored=False, precision=precision)
            s = step(seeds=seeds, penalty=penalty, decay=decay, precision=precision, in_place=places)
            theirs = {name: published_code(w, base[name], name, s, TORCH[dtype]).numpy() for name, w in ours.items()}
            apply_step(ours, base, s, previous=None, threads=1)
            for name in ours:
                differ = ours[name] != theirs[name]
                assert differ.mean() < 1e-3
                unit = np.maximum(spacing(ours[name], dtype), spacing(theirs[name], dtype))
                assert (np.abs(ours[name] - theirs[name])[differ] <= unit[differ]).all()

    def test_single_rounds_once(self):
        """theta = 1, update 2^-9 three quarters of a float16 unit: single moves, two halves each rounded do not."""
        one = np.float32([1.0])
        ones = [np.float32([1.0]), np.float32([1.0])]
        half_unit = 2.0**-11
        settings = {"seeds": (1, 2), "coefficients": (1.0, 1.0), "population": 1, "alpha": 0.75 * half_unit}
        moved = {}
        for rule in ("single", "members"):
            s = step(**settings, precision=Precision(master="float16", update=rule))
            moved[rule] = float(move(one, one, None, [n.copy() for n in ones], s, private_generator("x")).theta[0])
        assert moved == {"single": 1.0 + 2.0**-10, "members": 1.0}

    def test_error_feedback_loses_nothing(self):
        """Steps of a tenth of a unit: after 25 of them rounding to nearest has moved nothing, feedback two units."""
        theta, base, residual = np.float32([1.0]), np.float32([1.0]), None
        s = step(seeds=(1,), coefficients=(1.0,), population=1, alpha=2.0**-10 / 10)
        for rule, expected in (("single", 1.0), ("error-feedback", 1.0 + 2 * 2.0**-10)):
            theta, residual = base, None
            for _ in range(25):
                one = step(
                    seeds=s.seeds,
                    coefficients=s.coefficients,
                    population=1,
                    alpha=s.alpha,
                    precision=Precision(master="float16", update=rule),
                )
                moved = move(theta, base, residual, [np.float32([1.0])], one, private_generator("x"))
                theta, residual = moved.theta, moved.residual
            assert float(theta[0]) == expected
        # 25 steps of 0.1 units; float32 sums near 1 err by 2^-24 each, 2^-14 of a unit.
        assert float(residual[0]) == pytest.approx(0.5 * 2.0**-10, rel=25 * 2.0**-13)

    def test_in_place_members_come_in_order_of_evaluation(self):
        precision = Precision(master="float16", update="accumulate", in_place_members=3)
        assert in_place_members((7, 8), 0.1, mirrored=True, precision=precision) == ((7, 0.1), (8, 0.1), (7, -0.1))

    @pytest.mark.parametrize("dtype", HALVES)
    def test_a_restored_member_is_not_the_master(self, dtype):
        """(a + b) - b in torch's arithmetic, bit for bit, and not a."""
        kept = Precision(master=dtype, update="accumulate", in_place_members=1)
        theta = rounded(tensors(0)["b.weight"], dtype)
        got = restored(theta, "b.weight", seed=5, sigma=2.0**-7, scheme="keyed", precision=kept)
        w = torch.from_numpy(theta).to(TORCH[dtype])
        eps = torch.from_numpy(noise(5, "b.weight", theta.shape)).to(TORCH[dtype])
        w.add_(eps, alpha=2.0**-7).add_(eps, alpha=-(2.0**-7))
        assert (got == w.float().numpy()).mean() > 0.999  # a fused product may decide a tie otherwise
        assert (got != theta).mean() > 0.1
        member = perturbed(theta, "b.weight", seed=5, sigma=0.01, scheme="keyed", precision=kept)
        assert np.array_equal(member, rounded(member, dtype))


class TestHuber:
    def test_by_hand(self):
        """delta 1, decay 1/4: within it three quarters stay, beyond it a quarter of delta goes."""
        theta, base = np.float32([1.5, 1.0, 3.0, -2.0, 1.0]), np.float32([1.0, 1.0, 1.0, 1.0, 2.0])
        got = anchored(theta, base, penalty="huber", decay=0.25, delta=1.0)
        assert got.tolist() == [1.375, 1.0, 2.75, -1.75, 1.25]

    def test_is_l2_within_a_wide_delta(self):
        theta, base = tensors(0)["b.weight"], tensors(1)["b.weight"]
        one = anchored(theta, base, penalty="huber", decay=0.25, delta=10.0)
        other = anchored(theta, base, penalty="l2", decay=0.25)
        np.testing.assert_allclose(one, other, rtol=0, atol=2**-24)  # one more rounding of numbers below 0.2

    def test_needs_delta(self):
        with pytest.raises(ValueError, match="delta"):
            anchored(np.float32([1.0]), np.float32([0.0]), penalty="huber", decay=0.25)


@pytest.mark.parametrize(
    ("penalty", "delta", "expected"), [("l1", None, [0.25, 0.1, -0.25]), ("l2", None, [0.5, 0.025, -0.5])]
)
def test_pull_is_what_the_anchor_takes(penalty, delta, expected):
    theta, base = np.float32([2.0, 0.1, -2.0]), np.zeros(3, dtype=np.float32)
    np.testing.assert_allclose(pull(theta, base, penalty=penalty, decay=0.25, delta=delta), np.float32(expected))
    np.testing.assert_allclose(
        theta - pull(theta, base, penalty=penalty, decay=0.25, delta=delta),
        anchored(theta, base, penalty=penalty, decay=0.25, delta=delta),
        atol=2**-24,
    )


class TestSurvival:
    def survival(self, theta, eps, **settings):
        s = step(seeds=(1,), coefficients=(1.0,), population=1, alpha=1.0, **settings)
        watch = Watch(served="bfloat16", sigma=0.25)
        return move(theta, np.ones_like(theta), None, [eps], s, private_generator("x"), watch).survival

    def test_update_by_hand(self):
        """At 1 bfloat16 has spacing 2^-7: of steps 2^-7, 2^-10, 0 and -2^-8 below 1 the second does not arrive."""
        theta, eps = np.ones(4, dtype=np.float32), np.float32([2**-7, 2**-10, 0.0, -(2**-8)])
        found = self.survival(theta, eps.copy())
        assert found.keys() == {"served"}
        update = found["served"].update
        assert (update.meant, update.still) == (3, 1)
        intended, applied = 2**-14 + 2**-20 + 2**-16, 2**-14 + 2**-16
        assert update.ratio == pytest.approx(math.sqrt(applied / intended), rel=1e-12)
        assert update.cosine == pytest.approx(math.sqrt(applied / intended), rel=1e-12)
        assert update.unmoved == 1 / 3
        assert found["served"].decay.ratio is None
        assert found["served"].half_spacing == 4 * 2**-8

    def test_decay_by_hand(self):
        """theta = 1 + 2^-5 beside base 1, decay 1/8: the pull of 2^-8 is half a unit, and the tie goes to even."""
        theta = np.float32([1 + 2**-5])
        found = self.survival(theta, np.zeros(1, dtype=np.float32), penalty="l2", decay=0.125)["served"]
        assert found.decay.intended == 2**-16
        assert found.decay.still == 1
        twice = self.survival(theta, np.zeros(1, dtype=np.float32), penalty="l2", decay=0.25)["served"]
        assert (twice.decay.ratio, twice.decay.cosine, twice.decay.unmoved) == (1.0, 1.0, 0.0)

    def test_residue_by_hand(self):
        """sigma eps = 3/8 at theta = 7/8 + 2^-8: the sum passes 1, where the spacing doubles, and 2^-8 is lost."""
        theta = np.float32([0.875 + 2**-8])
        found = self.survival(theta, np.float32([1.5]))["served"]
        assert found.residue == 2**-16
        assert found.noise == 0.375**2

    def test_a_half_precision_master_is_measured_too(self):
        theta = np.ones(2, dtype=np.float32)
        kept = Precision(master="float16", update="accumulate")
        found = self.survival(theta, np.float32([2**-10, 2**-12]), precision=kept)
        assert (found["master"].update.still, found["served"].update.still) == (1, 2)

    @pytest.mark.parametrize("rule", ["single", "accumulate", "members", "stochastic", "error-feedback"])
    def test_watching_changes_nothing(self, rule):
        kept = Precision(master="bfloat16", update=rule)
        base = {name: rounded(w, "bfloat16") for name, w in tensors(0).items()}
        results = []
        for watch in (None, Watch(served="bfloat16", sigma=0.01)):
            weights = {name: w.copy() for name, w in base.items()}
            residual = {} if rule == "error-feedback" else None
            for number in range(2):
                s = step(penalty="l2", decay=0.1, precision=kept, seeds=tuple(range(number, number + 4)))
                apply_step(weights, base, s, residual=residual, previous=None, threads=1, watch=watch)
            results.append(weights)
        for name in base:
            assert results[0][name].tobytes() == results[1][name].tobytes()
            assert np.array_equal(results[0][name], rounded(results[0][name], "bfloat16"))
