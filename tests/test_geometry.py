"""Geometry of two solutions: closed forms, exact ends of the path, and runs that cannot be compared."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from driftlab import loop
from driftlab.cli.geometry import geometry
from driftlab.drift import geometry as maths
from driftlab.drift.theory import CoordinateMoments
from driftlab.errors import DriftlabError, RunError, SpecError
from driftlab.geometry.lines import _against_both, default_distances, direction_table, path_table
from driftlab.geometry.measure import Settings, measure, sparsity_rows, tensor_part, tensor_sums
from driftlab.geometry.runs import two_sides, weights_along
from driftlab.geometry.scoring import Answers, Scorer, by_item, change
from driftlab.geometry.walk import Followed, growth_rows, levels, share_row
from driftlab.models.base import BaseModel, load_base
from driftlab.models.checkpoints import export, weights_at
from driftlab.probes.kl import KlProbe
from driftlab.report.geometry_frames import COLUMNS, Geometry, tidy
from driftlab.report.geometry_page import render, write_geometry
from driftlab.report.geometry_tables import largest_drop
from driftlab.report.geometry_words import sentences
from driftlab.run.plan import load_plan
from driftlab.run.records import Example, Update
from driftlab.run.store import RunStore
from driftlab.session import Event

TOML = """
name = "tiny"
[model]
source = "nano"
[target]
task = "embedded_countdown"
train_items = 8
max_new_tokens = 12
[es]
population = 4
iterations = 4
sigma = 0.02
rollouts = "stacked"
[measure]
every = 2
[probes.kl]
sequences = 3
max_new_tokens = 6
[probes.lm_eval]
tasks = ["embedded_rules"]
items = 12
batch_size = 64
"""


def quiet(event: Event) -> None:
    """Nobody watches."""


def unseen(share: float) -> None:
    """Nobody watches this either."""


def make(folder: Path, name: str, *overrides: str, text: str = TOML) -> Path:
    file = folder / "tiny.toml"
    file.write_text(text)
    (planned,) = load_plan(str(file), list(overrides))
    return loop.run(planned, folder / name, resume=False, listen=quiet).path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("geometry")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    return make(folder, "plain", "keyframes_every=3")


@pytest.fixture(scope="module")
def anchored(folder: Path) -> Path:
    return make(folder, "anchored", "arm='ES+AWD'", "seed=1", "anchor.penalty='l2'", "anchor.lambda=5.0")


@pytest.fixture(scope="module")
def elsewhere(folder: Path, anchored: Path) -> Path:
    """The checkpoints of ``anchored`` as folders that somebody else trained: nothing to replay, nothing of ES known."""
    for step in (2, 4):
        export(anchored, step, folder / "theirs" / f"checkpoint-{step}")
    path = f"folders.path='{folder / 'theirs'}'"
    return make(folder, "elsewhere", "arm='theirs'", "trainer='folders'", path)


@pytest.fixture(scope="module")
def base() -> BaseModel:
    return load_base("nano", dtype=torch.float32, device="cpu")


@pytest.fixture(scope="module")
def compared(plain: Path, elsewhere: Path) -> Geometry:
    settings = Settings(points=5, distances=(0.5, 2.0))
    return measure(plain, elsewhere, step_a=None, step_b=None, settings=settings, start=lambda label: unseen)


# Pure mathematics.


def test_cosines_of_constructed_displacements() -> None:
    base = np.array([10.0, 20.0, 30.0, 40.0], dtype=np.float32)
    a = base + np.array([3.0, 4.0, 0.0, 0.0], dtype=np.float32)
    for b, cosine, angle in (
        ([4.0, -3.0, 0.0, 0.0], 0.0, 90.0),
        ([6.0, 8.0, 0.0, 0.0], 1.0, 0.0),
        ([-3.0, -4.0, 0.0, 0.0], -1.0, 180.0),
        ([5.0, 0.0, 0.0, 0.0], 0.6, math.degrees(math.acos(0.6))),
    ):
        found = maths.alignment(maths.pair_sums(base, a, base + np.array(b, dtype=np.float32), 0.0))
        assert found.cosine == pytest.approx(cosine, abs=1e-15)
        assert found.angle == pytest.approx(angle, abs=1e-6)
        assert found.random_sd == 0.5
        assert found.z == pytest.approx(2 * cosine, abs=1e-14)


def test_sums_over_slices_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    base, a, b = (rng.standard_normal((7, 11)).astype(np.float32) for _ in range(3))
    x, y = (v.astype(np.float64) - base.astype(np.float64) for v in (a, b))
    monkeypatch.setattr(maths, "_SLICE", 10)
    found = maths.pair_sums(base, a, b, 0.3)
    assert found.n == 77
    # Other order of at most 77 float64 additions.
    assert found.dot == pytest.approx(float((x * y).sum()), rel=1e-12)
    assert found.squared_a == pytest.approx(float((x * x).sum()), rel=1e-13)
    assert found.squared_b == pytest.approx(float((y * y).sum()), rel=1e-13)
    assert (found.within_a, found.within_b) == (int((np.abs(x) <= 0.3).sum()), int((np.abs(y) <= 0.3).sum()))
    assert maths.squared_distance(base, a) == found.squared_a
    with pytest.raises(ValueError, match="shapes differ"):
        maths.pair_sums(base, a, b[:3], 0.3)


def test_a_displacement_of_zero_has_no_angle() -> None:
    found = maths.alignment(maths.pair_sums(np.ones(3), np.ones(3), np.zeros(3), 0.0))
    assert (found.cosine, found.angle, found.z) == (None, None, None)


def test_expected_absolute_cosine() -> None:
    assert maths.expected_abs_cosine(1) == pytest.approx(1.0, rel=1e-14)
    assert maths.expected_abs_cosine(2) == pytest.approx(2 / math.pi, rel=1e-14)
    assert maths.expected_abs_cosine(3) == pytest.approx(0.5, rel=1e-14)
    # The series sqrt(2/(pi d)) (1 + 1/(4d) + ...), whose next term is below 1e-18 here.
    d = 4_022_468_096
    assert maths.expected_abs_cosine(d) == pytest.approx(math.sqrt(2 / (math.pi * d)) * (1 + 1 / (4 * d)), rel=1e-14)
    with pytest.raises(ValueError, match="at least one dimension"):
        maths.expected_abs_cosine(0)


def test_random_directions_have_the_stated_cosines() -> None:
    """Monte Carlo: 40,000 random directions against one fixed one; tolerance five standard errors of each mean."""
    d, draws = 12, 40_000
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((draws, d))
    cosines = vectors[:, 0] / np.linalg.norm(vectors, axis=1)
    for values, expected in ((cosines, 0.0), (np.abs(cosines), maths.expected_abs_cosine(d)), (cosines**2, 1 / d)):
        assert abs(values.mean() - expected) < 5 * values.std() / math.sqrt(draws)


def test_lines_through_weights() -> None:
    rng = np.random.default_rng(2)
    a, b = ({"w": rng.standard_normal(1000).astype(np.float32)} for _ in range(2))
    assert np.array_equal(maths.straight(a, b, 0.0)["w"], a["w"])
    assert np.array_equal(maths.straight(a, b, 1.0)["w"], b["w"])
    middle = (a["w"].astype(np.float64) + b["w"].astype(np.float64)) / 2
    assert np.array_equal(maths.straight(a, b, 0.5)["w"], middle.astype(np.float32))
    length = math.sqrt(maths.squared_distance(a["w"], b["w"]))
    for point in (maths.straight(a, b, 3.0 / length), maths.straight(a, b, -3.0 / length)):
        # Each coordinate is rounded once, by at most 2^-24 of itself.
        assert math.sqrt(maths.squared_distance(a["w"], point["w"])) == pytest.approx(3.0, rel=1e-6)
    assert np.array_equal(maths.shifted(a, b, 0.0)["w"], a["w"])
    assert maths.shifted({"w": a["w"] * 0}, b, -2.0)["w"] == pytest.approx(-2.0 * b["w"])


def test_fitted_lines() -> None:
    found = maths.fit_line([0, 2, 4, 10], [1.0, 4.0, 7.0, 16.0])
    assert found is not None
    assert (found.slope, found.intercept) == pytest.approx((1.5, 1.0))
    assert found.r_squared == pytest.approx(1.0)
    # By hand: mean of y is 1, slope 0, nothing explained.
    flat = maths.fit_line([0, 1, 2], [0.0, 3.0, 0.0])
    assert flat is not None
    assert (flat.slope, flat.intercept, flat.r_squared) == pytest.approx((0.0, 1.0, 0.0))
    assert maths.fit_line([0, 1], [0.0, 1.0]) is None
    constant = maths.fit_line([0, 1, 2], [2.0, 2.0, 2.0])
    assert constant is not None
    assert constant.r_squared is None


def test_slope_and_cross_terms_scatter_as_stated() -> None:
    """Monte Carlo of 4,000 Gaussian walks; an estimated standard deviation is within 1.2 % of the true one, five of
    these are 6 %."""
    d, steps, walks = 200, [0, 1, 3, 4, 6], 4000
    sds = np.array([1.0, 0.5, 2.0, 1.0, 1.0, 0.7])
    rng = np.random.default_rng(3)
    moves = rng.standard_normal((walks, 6, d)) * sds[None, :, None]
    places = np.concatenate([np.zeros((walks, 1, d)), moves.cumsum(axis=1)], axis=1)
    squares = (places**2).sum(axis=2)
    lines = [maths.fit_line(steps, row[steps]) for row in squares]
    slopes = np.array([line.slope for line in lines if line is not None])
    variances = [0.0, *accumulate(sds**2)]
    expected = maths.walk_slope_sd(steps, [variances[step] for step in steps], d)
    assert slopes.std() == pytest.approx(expected, rel=0.06)
    norms = np.sqrt((moves**2).sum(axis=2))
    cross = np.array([maths.cross_terms(float(s[-1]), n.tolist()) for s, n in zip(squares, norms, strict=True)])
    assert cross.std() == pytest.approx(maths.walk_cross_sd((sds**2).tolist(), d), rel=0.06)
    assert abs(cross.mean()) < 5 * cross.std() / math.sqrt(walks)
    direct = 2 * sum(float(moves[0, t] @ moves[0, u]) for u in range(6) for t in range(u))
    assert cross[0] == pytest.approx(direct, rel=1e-9)


def test_share_of_a_walk() -> None:
    gaussian = CoordinateMoments(second=0.02, fourth=3 * 0.02**2)
    found = maths.walk_share(12.5, gaussian, 500)
    assert (found.predicted, found.share, found.excess) == pytest.approx((10.0, 0.8, 2.5))
    # Variance of a sum of 500 squared Gaussians of variance v: 500 * 2 v^2.
    assert found.predicted_sd == pytest.approx(0.02 * math.sqrt(1000))
    assert found.share_stderr == pytest.approx(0.8 * found.predicted_sd / 12.5)
    assert maths.walk_share(5.0, gaussian, 500).share == 2.0  # never clipped
    with pytest.raises(ValueError, match="above 0"):
        maths.walk_share(0.0, gaussian, 500)


def test_sparsity_by_hand() -> None:
    names = ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.input_layernorm.weight", "model.norm.weight")
    base = {name: torch.zeros(n) for name, n in zip(names, (4, 2, 2), strict=True)}
    a = {
        names[0]: torch.tensor([0.0, 1e-7, 1e-5, 1.0]),
        names[1]: torch.tensor([0.0, 0.0]),
        names[2]: torch.tensor([1.0, 1.0]),
    }
    sums = tensor_sums(base, [a, base], 1e-6)
    rows = {(row["layer"], row["part"]): row for row in sparsity_rows("A", 0, sums)}
    q, layer, whole = rows["0", "Q"], rows["0", "all"], rows["all", "all"]
    assert (q["sparsity"], q["zero_fraction"], q["n"]) == (0.5, 0.25, 4)
    # By elements 4 of 6 and 3 of 6; by tensors the means of 1/2 and 1, and of 1/4 and 1.
    assert (layer["sparsity"], layer["sparsity_tensor_mean"]) == (4 / 6, 0.75)
    assert (layer["zero_fraction"], layer["zero_fraction_tensor_mean"]) == (0.5, 0.625)
    assert (whole["sparsity"], whole["sparsity_tensor_mean"], whole["tensors"]) == (0.5, 0.5, 3)
    assert rows["none", "norm"]["sparsity"] == 0.0
    assert {row["sparsity"] for row in sparsity_rows("B", 1, sums)} == {1.0}


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("model.layers.3.self_attn.k_proj.weight", "K"),
        ("model.layers.3.self_attn.q_norm.weight", "norm"),
        ("model.layers.3.self_attn.v_proj.bias", "V"),
        ("model.layers.3.self_attn.o_proj.weight", "O"),
        ("model.layers.3.mlp.down_proj.weight", "MLP"),
        ("model.layers.3.post_attention_layernorm.weight", "norm"),
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("transformer.h.0.attn.c_attn.weight", "QKV"),
        ("transformer.h.0.attn.c_proj.weight", "O"),
        ("transformer.h.0.mlp.c_proj.weight", "MLP"),
        ("transformer.wte.weight", "embedding"),
        ("transformer.h.0.ln_1.weight", "norm"),
        ("gpt_neox.layers.0.attention.query_key_value.weight", "QKV"),
        ("gpt_neox.layers.0.attention.dense.weight", "O"),
        ("model.decoder.layers.1.fc1.weight", "MLP"),
        ("model.layers.0.mixer.A_log", "other"),
    ],
)
def test_parts_of_a_layer(name: str, part: str) -> None:
    assert tensor_part(name) == part


# Answers and verdicts.


def answers(correct: Sequence[float]) -> Answers:
    examples = [
        Example(
            step=1, task="t", item=f"i{n}", cluster=f"i{n}", correct=value, score=None,
            output_length=None, parsed=None, truncated=None, output=None,
        )
        for n, value in enumerate(correct)
    ]  # fmt: skip
    return Answers(items=by_item(examples), asked=len(examples))


def test_a_barrier_lies_below_both_ends_beyond_both_intervals() -> None:
    high, low = answers([1.0] * 36 + [0.0] * 4), answers([1.0] * 4 + [0.0] * 36)
    middle = answers([1.0] * 20 + [0.0] * 20)
    against = {name: [change(end, middle, 0.95) for end in ends] for name, ends in (
        ("below", (high, high)), ("above", (low, low)), ("not told apart", (low, high)),
    )}  # fmt: skip
    for verdict, pair in against.items():
        assert _against_both(pair) == verdict
    assert _against_both([change(high, middle, 0.95), None]) == "not measured"


def test_the_drop_left_open_is_the_smaller_of_the_two_at_each_point() -> None:
    rows = pd.DataFrame({"minus_a_low_corrected": [-0.1, -0.3], "minus_b_low_corrected": [-0.2, -0.05]})
    assert largest_drop(rows) == pytest.approx(0.1)
    assert largest_drop(rows + 1.0) == 0.0
    assert largest_drop(rows.assign(minus_b_low_corrected=None)) is None


def test_equal_items_are_told_apart_by_their_order() -> None:
    one = answers([1.0]).items["i0", 0]
    assert list(by_item([one, replace(one, correct=0.0)])) == [("i0", 0), ("i0", 1)]


def test_default_distances() -> None:
    assert default_distances([2.0, 4.0]) == (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
    assert default_distances([0.0, 0.0]) == ()


# Growth and share, from records.


def es_update(step: int) -> Update:
    """Standardised coefficients: their squares add up to N."""
    return Update(
        step=step, rewards=(), step_norm=None, step_cosine=None, weights_hash=None, prompt_tokens=0,
        generated_tokens=0, seconds={}, seeds=(4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3),
        coefficients=(1.0, -1.0, 1.0, -1.0), population=4, sigma=0.02, alpha=0.01, penalty="none", decay=0.0,
    )  # fmt: skip


def test_d_eff_of_an_exact_walk(plain: Path, anchored: Path) -> None:
    side = two_sides(plain, anchored, None, None)[0]
    side = replace(side, updates=[es_update(step) for step in (1, 2, 3, 4)])
    base = {"model.norm.weight": torch.zeros(30), "lm_head.weight": torch.zeros(70)}
    # A fraction of alpha^2 d / N a step: 0.96 of 30 coordinates, 1.1 of 70.
    per_step = {"model.norm.weight": 0.96 * 30 * 0.01**2 / 4, "lm_head.weight": 1.1 * 70 * 0.01**2 / 4}
    followed = Followed(squares={t: {name: t * v for name, v in per_step.items()} for t in (0, 1, 3, 4)})
    rows = {row["name"]: row for row in growth_rows(side, followed, levels(base))}
    for name, expected in (("model.norm.weight", 0.96), ("lm_head.weight", 1.1), ("all", 0.3 * 0.96 + 0.7 * 1.1)):
        for column in ("d_eff_fraction", "d_eff_fraction_applied"):
            assert rows[name][column] == pytest.approx(expected, rel=1e-12)
        assert rows[name]["r_squared"] == pytest.approx(1.0, abs=1e-12)
    assert rows["norm"]["d_eff_fraction"] == rows["model.norm.weight"]["d_eff_fraction"]
    share = share_row(side, followed, 100)
    assert share["share"] == pytest.approx(1 / (0.3 * 0.96 + 0.7 * 1.1))
    bent = replace(side, updates=[replace(es_update(step), penalty="l2", decay=0.1) for step in (1, 2, 3, 4)])
    (row, *_) = growth_rows(bent, followed, levels(base))
    assert row["slope"] is not None
    assert row["d_eff_fraction"] is None
    assert "anchor" in row["note"]


# The embedded model.


def test_the_weights_of_one_pass_are_those_of_single_replays(plain: Path, anchored: Path, base: BaseModel) -> None:
    for side in two_sides(plain, anchored, None, None):
        found = dict(weights_along(side, base.weights, [0, 1, 2, 4]))
        for step, weights in found.items():
            expected = weights_at(side.store, base.weights, step)
            assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_the_ends_of_the_path_are_the_stored_accuracies(compared: Geometry, plain: Path, elsewhere: Path) -> None:
    ends = compared.path[compared.path["verdict"] == "end"]
    assert len(ends) == 2 * len(compared.tasks) == 4
    assert (ends["stored_differs"] == 0).all()
    for run, s in ((plain, 0.0), (elsewhere, 1.0)):
        stored = {row.group: row.value for row in RunStore.open(run).measurements()
                  if (row.step, row.quantity, row.probe) == (4, "accuracy", "lm_eval")}  # fmt: skip
        mine = ends[ends["s"] == s].set_index("task")["accuracy"].to_dict()
        assert mine == {task: stored[task] for task in compared.tasks}
    inner = compared.path[compared.path["verdict"] != "end"]
    assert sorted(set(inner["s"])) == [0.25, 0.5, 0.75]
    assert inner[["minus_a_low_corrected", "minus_b_high_corrected"]].notna().all(axis=None)
    assert (inner["minus_a_low_corrected"] < inner["minus_a_low"]).all()


def test_directions_pass_through_the_base_and_the_solutions(plain: Path, anchored: Path, base: BaseModel) -> None:
    sides = two_sides(plain, anchored, None, None)
    ends = [dict(weights_along(side, base.weights, [4]))[4] for side in sides]
    scorer = Scorer(sides[0], base, items=None, seed=0, data=None, kl=None)
    norm = math.sqrt(sum(maths.squared_distance(base.weights[n].numpy(), ends[0][n].numpy()) for n in ends[0]))
    table = direction_table(["A", "B"], base.weights, ends, [norm, 0.0], scorer, [norm], 0, unseen)
    assert set(table["direction"]) == {"base", "A", "random"}  # a displacement of 0 has no direction
    path = path_table(sides, ends, scorer, 3, unseen)
    for task in scorer.tasks:
        own = table[table["task"] == task].set_index(["direction", "distance"])
        there = own.loc[("A", norm)]
        assert there["accuracy"] == path[(path["task"] == task) & (path["s"] == 0.0)]["accuracy"].iloc[0]
        stored = {row.group: row.value for row in RunStore.open(plain).measurements()
                  if (row.step, row.quantity, row.probe) == (0, "accuracy", "lm_eval")}  # fmt: skip
        assert own.loc[("base", 0.0)]["accuracy"] == stored[task]
        assert there["minus_base"] == pytest.approx(there["accuracy"] - stored[task])
        assert there["minus_random"] == pytest.approx(there["accuracy"] - own.loc[("random", norm)]["accuracy"])
    again = direction_table(["A", "B"], base.weights, ends, [norm, 0.0], scorer, [norm], 0, unseen)
    pd.testing.assert_frame_equal(table, again)


def test_weights_that_are_not_finite_are_no_accuracy_of_zero(plain: Path, anchored: Path, base: BaseModel) -> None:
    side = two_sides(plain, anchored, None, None)[0]
    scorer = Scorer(side, base, items=5, seed=0, data=None, kl=None)
    good = scorer.at(base.weights)
    assert {found.asked for found in good.values()} == {5}
    broken = scorer.at({name: torch.full_like(w, float("nan")) for name, w in base.weights.items()})
    assert broken["embedded_rules"].accuracy is None
    assert broken["embedded_rules"].note
    assert change(good["embedded_rules"], broken["embedded_rules"], 0.95) is None


def test_kl_is_that_of_after_from_before(plain: Path, anchored: Path, base: BaseModel) -> None:
    side = two_sides(plain, anchored, None, None)[0]
    assert side.spec.probes.kl is not None
    scorer = Scorer(side, base, items=None, seed=0, data=None, kl=side.spec.probes.kl)
    ((_, before), (_, after)) = weights_along(side, base.weights, [0, 4])
    assert {row.value for row in scorer.kl_rows(after, after).values()} == {0.0}
    found = scorer.kl_rows(after, before)
    # Again with the texts that the later model writes, one sequence at a time, enumerated in float64.
    scorer.engine.write(after)
    probe = KlProbe(scorer._prompts, max_new_tokens=6, seed=side.spec.probes.kl.seed)
    probe.prepare(scorer.engine)
    for task, references in probe.references.items():
        total, tokens = 0.0, 0
        for reference in references:
            ids = torch.tensor([reference["prompt"] + reference["continuation"]])
            rows = []
            for weights in (after, before):
                scorer.engine.write(weights)
                with torch.no_grad():
                    logits = scorer.engine.model(input_ids=ids).logits[0, len(reference["prompt"]) - 1 : -1]
                rows.append(torch.log_softmax(logits.double(), dim=-1).numpy())
            total += float((np.exp(rows[0]) * (rows[0] - rows[1])).sum())
            tokens += len(rows[0])
        # float32 activations in other batches: a KL of about 0.01 from logits good to 1e-6.
        assert found[task].value == pytest.approx(total / tokens, rel=1e-3)
        assert total > 0
    scorer.engine.write(base.weights)


def test_runs_of_any_trainer_stand_beside_each_other(compared: Geometry, plain: Path) -> None:
    es, theirs = (row for row in compared.shares.to_dict("records"))
    assert es["status"] == "ok"
    store = RunStore.open(plain)
    rows = {row.quantity: row.value for row in store.measurements() if row.step == 4 and row.group == "all"}
    # The probe sums float64 tensor by tensor, as is done here, in another order.
    assert math.sqrt(es["squared_norm"]) == pytest.approx(rows["update_norm"], rel=1e-12)
    assert math.sqrt(es["predicted"]) == pytest.approx(rows["predicted_norm"], rel=1e-12)
    assert (theirs["status"], math.isnan(theirs["share"])) == ("skipped", True)
    growth = compared.growth[compared.growth["level"] == "all"].to_dict("records")
    assert growth[0]["d_eff_fraction"] > 0
    assert math.isnan(growth[1]["d_eff_fraction"])
    assert growth[1]["slope"] > 0
    assert compared.shared_seeds == 0
    assert list(compared.kl.groupby("run", sort=False)["after"].unique().map(list)) == [[2, 4], [2, 4]]
    whole = compared.cosines[compared.cosines["level"] == "all"].iloc[0]
    assert whole["d"] == 157_696
    # Different noise seeds and random-walk steps: five standard deviations.
    assert abs(whole["z"]) < 5


def test_seeds_in_common_are_said(folder: Path, plain: Path) -> None:
    other = folder / "same-seed"
    make(folder, other.name, "arm='ES+AWD'", "anchor.penalty='l2'", "anchor.lambda=5.0")
    settings = Settings(points=3, distances=(1.0,), items=4, stages=(0, 4))
    found = measure(plain, other, step_a=4, step_b=4, settings=settings, start=lambda label: unseen)
    assert found.shared_seeds == 16
    assert "share 16 noise seeds" in sentences(found)[0]
    assert set(found.kl["after"]) == {4}


# The folder.


def test_every_number_has_a_meaning(compared: Geometry) -> None:
    for name, columns in COLUMNS.items():
        assert set(getattr(compared, name).columns) == set(columns), name
        assert all(columns.values())


def test_the_same_numbers_give_the_same_folder(compared: Geometry, tmp_path: Path) -> None:
    first = read(write_geometry(compared, tmp_path / "out"))
    assert first == render(compared)
    document = json.loads(first["geometry.json"])
    rows = document["tables"]["cosines"]["rows"]
    assert rows[0]["cosine"] == compared.cosines["cosine"].iloc[0]
    assert document["tables"]["growth"]["rows"][-1]["d_eff_fraction"] is None
    assert {f"figures/{name}.svg" for name in ("cosines", "path", "directions", "kl", "growth", "sparsity")} <= set(
        first
    )
    for name, table in tidy(compared).items():
        assert first[f"tables/{name}.csv"].decode().splitlines()[0] == ",".join(table.columns)
    page = first["page.html"].decode()
    assert str(tmp_path) not in page
    assert "nan" not in page.lower().replace("nano", "").split("<h2>figures")[0]
    assert page.count("data:image/svg+xml") == 6


def read(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_a_folder_of_something_else_is_left_alone(compared: Geometry, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DriftlabError, match="is not the geometry of two solutions"):
        write_geometry(compared, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_solution_that_did_not_move(plain: Path) -> None:
    found = measure(plain, plain, step_a=0, step_b=2, settings=Settings(points=3, items=4), start=lambda label: unseen)
    assert found.cosines["cosine"].isna().all()
    assert ("direction of ES, step 0", "its weights are those of the base") in found.missing
    assert set(found.directions["direction"]) == {"base", "random", "ES, step 2"}
    assert "have no angle" in sentences(found)[0]
    assert "figures/cosines.svg" not in render(found)


def test_runs_without_tasks_are_compared_by_their_weights(folder: Path) -> None:
    text = TOML[: TOML.index("[probes.kl]")]
    runs = [make(folder, f"bare-{seed}", f"seed={seed}", text=text) for seed in (0, 1)]
    found = measure(*runs, step_a=None, step_b=None, settings=Settings(), start=lambda label: unseen)
    assert [what for what, _ in found.missing] == [
        "accuracy on the path and along directions",
        "KL from stage to stage",
    ]
    assert (found.tasks, found.path.empty, found.directions.empty, found.kl.empty) == ((), True, True, True)
    files = render(found)
    figures = {name for name in files if name.endswith(".svg")}
    assert figures == {f"figures/{name}.svg" for name in ("cosines", "growth", "sparsity")}
    assert files["tables/path.csv"].decode() == ",".join(COLUMNS["path"]) + "\n"


def test_the_command(plain: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    geometry(plain, elsewhere, points=3, distances="1,0.5", items=4, stages="0,4", out_dir=out)
    printed = capsys.readouterr().out
    assert f"page: {out / 'page.html'}" in printed.replace("\n", "")
    document = json.loads((out / "geometry.json").read_text())
    assert document["settings"]["distances"] == [0.5, 1.0]
    assert {row["n"] for row in document["tables"]["path"]["rows"]} == {4}
    for option, text in (("distances", "1,far"), ("stages", "0,1.5")):
        with pytest.raises(SpecError, match=f"--{option} is '{text}', but it must be"):
            geometry(plain, elsewhere, out_dir=tmp_path / "other", **{option: text})
    assert not (tmp_path / "other").exists()


# Refusals.


def changed(run: Path, to: Path, **edits: Any) -> Path:
    """A copy of a run whose run.json differs: ``model__dtype`` is spec.model.dtype, ``tasks`` and ``hash`` are so."""
    shutil.copytree(run, to)
    document = json.loads((to / "run.json").read_text())
    for key, value in edits.items():
        if key == "tasks":
            document["tasks"] = value(document["tasks"])
        elif key == "hash":
            document["model"]["weights_hash"] = value
        elif key == "imported":
            document["spec"]["imported"] = value
        else:
            part, name = key.split("__")
            document["spec"][part][name] = value
    (to / "run.json").write_text(json.dumps(document))
    return to


@pytest.mark.parametrize(
    ("edits", "sentence"),
    [
        ({"hash": "0" * 64}, "must share the base weights"),
        ({"model__dtype": "bfloat16"}, "must share the served number format"),
        (
            {"tasks": lambda tasks: {**tasks, "piqa": "abc"}},
            "must share the measured tasks, but piqa is in .*other only",
        ),
        ({"tasks": lambda tasks: {"embedded_rules": tasks["embedded_rules"]}}, "but embedded_countdown is in .* only"),
        ({"tasks": lambda tasks: {**tasks, "embedded_rules": "abc"}}, "items and prompts, but those of embedded_rules"),
        ({"imported": {"format": "es-awd"}}, "is a run of other code"),
    ],
)
def test_unlike_runs_are_refused_by_name(plain: Path, tmp_path: Path, edits: dict[str, Any], sentence: str) -> None:
    other = changed(plain, tmp_path / "other", **edits)
    with pytest.raises(RunError, match=sentence):
        two_sides(plain, other, None, 2)


def test_steps_that_cannot_be_compared(plain: Path, elsewhere: Path, base: BaseModel) -> None:
    with pytest.raises(RunError, match="has steps 0 to 4, not 5"):
        two_sides(plain, elsewhere, 5, None)
    with pytest.raises(RunError, match="was given twice"):
        two_sides(plain, plain, 4, None)
    side = two_sides(plain, elsewhere, None, 3)[1]
    with pytest.raises(RunError, match="has steps 0, 2, 4, not 3"):
        list(weights_along(side, base.weights, [3]))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (Settings(points=2), "--points is 2"),
        (Settings(distances=(1.0, -1.0)), "--distances"),
        (Settings(distances=(math.nan,)), "--distances"),
        (Settings(items=1), "--items is 1"),
        (Settings(tau=-1.0), "--tau is -1.0"),
        (Settings(stages=(2, 2)), "--stages names one step"),
        (Settings(stages=(0, 9)), "--stages must lie within"),
    ],
)
def test_settings_that_cannot_be_measured(plain: Path, anchored: Path, settings: Settings, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        measure(plain, anchored, step_a=None, step_b=None, settings=settings, start=lambda label: unseen)
