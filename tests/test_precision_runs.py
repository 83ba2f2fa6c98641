"""Runs whose master is half precision, on the embedded model: they replay, resume and say what rounding did."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from driftlab import loop
from driftlab.errors import SpecError
from driftlab.es.noise import noise
from driftlab.es.precision import rounded, spacing
from driftlab.models.base import load_base
from driftlab.models.checkpoints import rebuild
from driftlab.probes.base import Checkpoint
from driftlab.probes.weights import WeightsProbe
from driftlab.report.contents import all_tables
from driftlab.report.frames import build_frames
from driftlab.report.page import render
from driftlab.report.runs import read_run
from tests.helpers import tiny_llama, weights_of
from tests.test_loop import files, plan, quiet

RULES = [
    ("float16", "accumulate", 2),
    ("bfloat16", "members", 4),
    ("bfloat16", "single", 0),
    ("float16", "stochastic", 0),
    ("bfloat16", "error-feedback", 0),
]


def asked(dtype: str, update: str, in_place: int) -> tuple[str, ...]:
    return (
        f"precision.master={dtype}",
        f"precision.update={update}",
        f"precision.in_place_members={in_place}",
        "probes.rounding={}",
        "probes.lm_eval.items=4",
        "measure.every=1",
    )


@pytest.fixture(scope="module")
def base():
    return load_base("nano", dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module", params=RULES, ids=lambda rule: f"{rule[0]}-{rule[1]}")
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("half")
    return request.param, loop.run(plan(folder, *asked(*request.param)), folder / "run", resume=False, listen=quiet)


def values(store, step: int, group: str = "all") -> dict[str, float | None]:
    return {row.quantity: row.value for row in store.measurements() if (row.step, row.group) == (step, group)}


def test_every_step_is_rebuilt_to_the_trained_bits_and_lies_on_the_grid(run, base):
    """``rebuild`` compares with the stored hash, and raises."""
    (dtype, _, _), store = run
    for step in range(5):
        state = rebuild(store, base.weights, store.updates(), step)
        for weights in (state.base, state.weights):
            assert all(np.array_equal(w.numpy(), rounded(w.numpy(), dtype)) for w in weights.values())


def test_interrupted_and_resumed_ends_in_the_same_bytes(run, tmp_path):
    rule, store = run
    events = 0

    def stop(event) -> None:
        nonlocal events
        events += event.kind == "iteration"
        if events == 3:
            raise KeyboardInterrupt

    planned, path = plan(tmp_path, *asked(*rule)), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        loop.run(planned, path, resume=False, listen=stop)
    loop.run(planned, path, resume=True, listen=quiet)
    assert files(path) == files(store.path)


def test_the_base_of_a_half_precision_run_is_the_rounded_one(run):
    """Step 0 is the model that steps start from: nothing has moved, and its output is its own."""
    _, store = run
    at_base = values(store, 0)
    assert (at_base["update_norm"], at_base["step_norm"]) == (0.0, None)
    kl = [row.value for row in store.measurements() if row.step == 0 and row.quantity == "kl_base_to_step"]
    assert kl == [0.0, 0.0]


def test_survival_rows(run, base):
    """The last step again in float64 from the record: what was meant and, rounded to the grid, what arrived."""
    (dtype, rule, _), store = run
    last = values(store, 4)
    assert values(store, 0)["update_survival_master"] is None
    before = rebuild(store, base.weights, store.updates(), 3).weights
    theta = np.concatenate([w.numpy().reshape(-1) for w in before.values()])
    assert last["dead_zone_master"] == pytest.approx(0.5 * spacing(theta, dtype).mean(), rel=1e-12)
    # A member that has been on the master leaves nothing a second time: its residue is that of the first.
    last_update = store.updates()[3]
    eps = np.concatenate([noise(last_update.seeds[0], name, w.shape).reshape(-1) for name, w in before.items()])
    eps = rounded(eps, dtype) if rule in ("accumulate", "members") else eps
    there = rounded(theta + np.float32(0.02) * eps, dtype)
    left = rounded(there - np.float32(0.02) * eps, dtype).astype(float) - theta
    expected = np.linalg.norm(left) / np.linalg.norm(0.02 * eps.astype(float))
    assert last["restore_residue_master"] == pytest.approx(expected, rel=1e-6)
    groups = {row.group for row in store.measurements() if row.quantity == "decay_unmoved_served"}
    assert {"all", "embedding", "norm", "layer.0.attention", "layer.0.mlp"} <= groups
    if rule != "single":
        return
    update = store.updates()[3]
    meant = np.concatenate(
        [
            sum(
                c * noise(seed, name, w.shape).astype(np.float64)
                for seed, c in zip(update.seeds, update.coefficients, strict=True)
            ).reshape(-1)
            for name, w in before.items()
        ]
    ) * (update.alpha / update.population)
    stepped = rounded((theta + meant).astype(np.float32), dtype)
    arrived = stepped.astype(np.float64) - theta
    # The record's step is summed in float32: a value within 2^-24 of a tie may round the other way.
    assert last["update_survival_master"] == pytest.approx(np.linalg.norm(arrived) / np.linalg.norm(meant), rel=1e-4)
    assert last["update_unmoved_master"] == pytest.approx((arrived == 0).mean(), abs=1e-4)
    start = np.concatenate([rounded(base.weights[name].numpy(), dtype).reshape(-1) for name in before])
    taken = -update.decay * (theta + meant - start)
    after = rounded((theta + meant + taken).astype(np.float32), dtype).astype(np.float64) - stepped
    assert last["decay_survival_master"] == pytest.approx(np.linalg.norm(after) / np.linalg.norm(taken), rel=1e-3)
    assert last["decay_unmoved_master"] == pytest.approx((after == 0).mean(), abs=1e-3)


def test_the_report_shows_what_was_lost(run):
    """One row a format, the stored numbers; reports of runs that did not ask hold no such table."""
    _, store = run
    frames = build_frames([read_run(store.path)])
    table = {one.name: one for one in all_tables(frames)}["rounding"]
    assert [row[:3] for row in table.rows] == [("ES", "4", "served"), ("ES", "4", "master")]
    unmoved = 100 * values(store, 4)["update_unmoved_master"]
    assert table.rows[1][5] == f"{unmoved:.4g}"
    assert "What rounding left" in render(frames, [read_run(store.path)])["report.md"].decode()
    old = build_frames([read_run(Path(__file__).parent / "data" / "run_v2")])
    assert "rounding" not in {one.name for one in all_tables(old)}


def test_float32_loses_nothing_that_float32_can_hold(tmp_path):
    """The default: one format; sums near 0.1 err by 2^-28, a ten-thousandth of steps of 0.01 / sqrt(4)."""
    store = loop.run(
        plan(tmp_path, "probes.rounding={}", "probes.lm_eval.items=4", "es.iterations=1", "measure.every=1"),
        tmp_path / "run",
        resume=False,
        listen=quiet,
    )
    last = values(store, 1)
    assert last["update_survival_served"] == pytest.approx(1.0, abs=1e-5)
    assert last["decay_survival_cosine_served"] == pytest.approx(1.0, abs=1e-5)
    assert "update_survival_master" not in last


def test_serving_half_precision_hides_small_steps(tmp_path):
    """A float32 master served in bfloat16: what is served has not moved where the master has."""
    served = ("model.dtype=bfloat16", "es.alpha=1e-5", "probes.rounding={}", "probes.lm_eval.items=4")
    planned = plan(tmp_path, *served, "es.iterations=1", "es.rollouts=sequential")
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    last = values(store, 1)
    assert last["update_unmoved_served"] > 0.9
    assert last["zero_fraction"] < 0.1


def test_a_shuffled_arm_leaves_the_same_residue(tmp_path, base):
    planned = plan(tmp_path, *asked("float16", "accumulate", 4), "control=shuffled-reward", "es.mirrored=true")
    store = loop.run(planned, tmp_path / "run", resume=False, listen=quiet)
    rebuild(store, base.weights, store.updates(), 4)
    shutil.rmtree(store.path)


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("precision.master=float16",), "precision.update does not say"),
        (("precision.master=float16", "precision.update=sometimes"), "precision.update"),
        (
            ("precision.master=float16", "precision.update=single", "model.dtype=bfloat16"),
            "serve float16, or float32",
        ),
        (
            ("precision.master=float16", "precision.update=stochastic", "precision.in_place_members=1"),
            "in_place_members is 1 with precision.update stochastic",
        ),
        (
            ("precision.master=float16", "precision.update=single", "precision.in_place_members=5"),
            "in_place_members is 5, but es.population is 4",
        ),
        (
            ("precision.master=float16", "precision.update=error-feedback", "keyframes_every=1"),
            "a keyframe lacks the residual",
        ),
        (('anchor={penalty="huber", lambda=1.0}',), "delta"),
        (('anchor={penalty="l2", lambda=1.0, delta=0.1}',), "delta"),
        (('anchor={penalty="huber", lambda=200.0, delta=0.1}',), "Huber anchored weight decay needs"),
        (('anchor={penalty="hubert", lambda=1.0}',), "anchor.penalty"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path, overrides, sentence):
    with pytest.raises(SpecError, match=sentence):
        plan(tmp_path, *overrides)


class _Live:
    """The part of an engine that the weights probe looks at."""

    def __init__(self, model) -> None:
        self.model = model


class TestNormPitfalls:
    """Published norms were computed in three ways that this instrument does not use, and can be asked for one."""

    def rows(self, tied: bool, delta: float = 1e-4, **settings) -> dict[str, tuple[float | None, int]]:
        model = tiny_llama(tie_word_embeddings=tied)
        start = weights_of(model)
        moved = {name: w + delta for name, w in start.items()}
        probe = WeightsProbe(**settings)
        found = probe.measure(Checkpoint(step=0, weights=moved, base=start, updates=()), _Live(model))
        return {row.quantity: (row.value, row.n) for row in found.measurements if row.group == "all"}

    def test_small_changes_count_although_their_half_precision_squares_are_zero(self):
        """Every weight moves by 1e-4, whose square is below half of float16's smallest number."""
        assert np.float16(1e-4) ** 2 == 0
        value, n = self.rows(True)["update_norm"]
        # weights of order 0.3 hold 1e-4 to 2^-26 or better
        assert value == pytest.approx(1e-4 * math.sqrt(n), rel=2e-4)

    def test_tied_tensors_count_once_and_twice_when_asked(self):
        vocabulary, width = 20, 16
        once, twice = self.rows(True, tied_twice=True), self.rows(False, tied_twice=True)
        d = once["update_norm"][1]
        assert once["update_norm_state_dict"][1] == d + vocabulary * width == twice["update_norm"][1]
        expected = once["update_norm"][0] * math.sqrt((d + vocabulary * width) / d)
        assert once["update_norm_state_dict"][0] == pytest.approx(expected, rel=1e-3)
        assert twice["update_norm_state_dict"] == twice["update_norm"]
        assert "update_norm_state_dict" not in self.rows(True)
