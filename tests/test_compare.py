"""Comparisons of runs whose matches and differences are known by hand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from driftlab.drift.ratios import geometric_ratio
from driftlab.errors import DriftlabError
from driftlab.report.compare import Comparison, build_comparison
from driftlab.report.compare_claims import FAILS, HOLDS, UNKNOWN, Number, claims, judge
from driftlab.report.compare_curves import curve_table, mean_curve
from driftlab.report.compare_figures import curve_figure, heat_figure, kl_figure
from driftlab.report.compare_page import all_tables, sentences, write_comparison
from driftlab.report.compare_weights import KL_PRIORS, KL_TARGET, NORM
from driftlab.report.frames import build_frames
from driftlab.report.matching import Track, match_runs
from driftlab.report.runs import RunData
from driftlab.report.verdicts import AVERAGE
from tests.comparison_runs import TARGET, TASKS, N, store_run
from tests.test_cli import driftlab

# Matching.


def track(run: str, steps: tuple[int, ...], per_step: float, accuracy: tuple[float, ...], **more: Any) -> Track:
    spent = tuple(per_step * step for step in steps)
    values: dict[str, Any] = {"rollouts": spent, "flops": tuple(10 * one for one in spent)}
    return Track(run=run, arm=run, seed=0, steps=steps, accuracy=accuracy, **values | more)


A = track("a", (0, 10, 20, 30), 5, (0.2, 0.5, 0.4, 0.6))
B = track("b", (0, 4, 8, 10, 12), 20, (0.2, 0.25, 0.3, 0.35, 0.3))


@pytest.mark.parametrize(
    ("kind", "value", "steps", "matched"),
    [
        ("step", None, (10, 10), 10),
        ("step", 20, (20, None), 20),
        ("rollouts", None, (30, 4), 150),  # a spent 150, b 240; b had spent 80 at step 4 and 160 at step 8
        ("rollouts", 100, (20, 4), 100),
        ("rollouts", 99.9, (10, 4), 99.9),
        ("rollouts", 200, (None, 10), 200),
        ("rollouts", 60, (10, None), 60),
        ("flops", 1000, (20, 4), 1000),
        ("target", None, (10, 10), 0.35),  # best 0.6 and 0.35
        ("target", 0.3, (10, 8), 0.3),
        ("target", 0.55, (30, None), 0.55),
        ("target", 0.9, (None, None), 0.9),
    ],
)
def test_matched_steps(kind: str, value: float | None, steps: tuple[int | None, ...], matched: float) -> None:
    match = match_runs([A, B], kind, value)
    assert tuple(row.step for row in match.rows) == steps
    assert match.value == matched
    assert match.given == (value is not None)
    assert all((row.step is None) == bool(row.note) for row in match.rows)


def test_what_is_said_of_a_run_that_never_gets_there() -> None:
    assert match_runs([A, B], "target", 0.55).rows[1].note == "never reached within 12 steps, best 35.0 % at step 10"
    assert match_runs([A, B], "rollouts", 200).rows[0].note == "never reached: ended at step 30 after 150 rollouts"
    assert (
        match_runs([A, B], "rollouts", 60).rows[1].note == "the first measured step, 4, had already spent 80 rollouts"
    )
    assert match_runs([A, B], "step", 20).rows[1].note == "ended at step 12"
    assert match_runs([A, B], "step", 4).rows[0].note == "step 4 was not measured"
    unknown = replace(B, flops=(0.0, math.nan, math.nan, math.nan, math.nan))
    assert match_runs([A, unknown], "flops").rows[1].note == "FLOPs not recorded"


def test_controls_choose_no_value() -> None:
    """A null control reaches nothing and spends nothing: it says so in its own row and lowers nobody else's match."""
    walk = track("walk", (0, 10), 0, (0.2, 0.15), control=True)
    by_target = match_runs([A, B, walk], "target")
    assert by_target.value == 0.35
    assert [row.step for row in by_target.rows] == [10, 10, None]
    assert match_runs([A, B, walk], "rollouts").value == 150


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("tokens", None, "step, rollouts, flops or target"),
        ("step", 7.5, "a step is a whole number"),
        ("step", 11, "no run measured step 11; steps measured in all of them: 10"),
        ("step", 0, "a number above 0"),
        ("rollouts", -5, "a number above 0"),
        ("rollouts", math.nan, "a number above 0"),
        ("rollouts", 1000, "no run spent more than 240"),
        ("flops", 1e9, "no run spent more than 2400"),
        ("target", 35, "at most 100 %"),
        ("target", 0.2, "the base has 20 % on the target already"),
    ],
)
def test_matches_that_are_refused(kind: str, value: float | None, sentence: str) -> None:
    with pytest.raises(DriftlabError, match=re.escape(sentence)):
        match_runs([A, B], kind, value)


def test_matches_without_numbers_are_refused() -> None:
    late = replace(A, steps=(0, 11, 21, 31))
    with pytest.raises(DriftlabError, match="share no measured step"):
        match_runs([late, B], "step")
    blank = [replace(one, flops=(0.0, *[math.nan] * (len(one.steps) - 1))) for one in (A, B)]
    with pytest.raises(DriftlabError, match="none of these runs recorded FLOPs"):
        match_runs(blank, "flops")
    flat = replace(B, accuracy=(0.2, 0.1, 0.2, 0.1, 0.2))
    with pytest.raises(DriftlabError, match="b never measures above the base's 20 %"):
        match_runs([A, flat], "target")


# Differences.

HALF = tuple(range(20))


def right(target: dict[int, range], choice: dict[int, tuple[int, ...]] | None = None) -> dict[str, dict[int, Any]]:
    """Items right by task and step; the rules stay as they are but for two items that swap after the base."""
    steps = list(target)
    return {
        TARGET: target,
        "toy_choice": choice or dict.fromkeys(steps, HALF),
        "toy_rules": {step: HALF if step == 0 else (*HALF[1:], 30) for step in steps},
    }


ES = right({0: range(8), 10: range(12), 20: range(20)}, {0: HALF, 10: HALF[2:], 20: HALF[4:]})
GRPO = right({0: range(8), 2: range(20), 5: range(30)}, {0: HALF, 2: HALF, 5: (*HALF[1:], 21, 22)})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[RunData]:
    """ES: 20 rollouts an iteration, 400 in all. GRPO: 60 and 300, so that at 300 rollouts ES stands at step 10."""
    folder = tmp_path_factory.mktemp("pair")
    es = store_run(folder, "ES", ES, norm=90.0, kl={TARGET: 0.02, "toy_choice": 0.4, "toy_rules": 0.1})
    kl = {TARGET: 2.0, "toy_choice": 0.01, "toy_rules": 0.04}
    return [es, store_run(folder, "GRPO", GRPO, trainer="grpo", rollouts=60, norm=1.0, kl=kl)]


@pytest.fixture(scope="module")
def compared(pair: list[RunData]) -> Comparison:
    return build_comparison(pair, kind="rollouts")


def one(table: pd.DataFrame, **where: Any) -> Any:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def paired(change: np.ndarray) -> tuple[float, float]:
    """Mean and half width of the 95 % t interval over items; half a gained and half a lost item in the variance."""
    error = math.sqrt(change.var(ddof=1) / len(change) + 1 / len(change) ** 2)
    return float(change.mean()), float(stats.t.ppf(0.975, len(change) - 1)) * error


def indicator(items: Any) -> np.ndarray:
    return np.isin(np.arange(N), list(items)).astype(float)


def test_each_run_is_read_at_its_own_step(compared: Comparison) -> None:
    found = compared.chosen
    assert found.runs["step"].tolist() == [10, 5]
    assert found.runs["rollouts"].tolist() == [200, 300]
    # Forward 100 a rollout, backward 200 for GRPO.
    assert found.runs["flops"].tolist() == [20_000, 90_000]
    assert found.runs["seconds"].tolist() == [40.0, 17.5]
    change = indicator(GRPO["toy_choice"][5]) - indicator(ES["toy_choice"][10])
    mean, half = paired(change)
    row = one(found.pairs, task="toy_choice")
    assert (row["arm"], row["against"]) == ("GRPO", "ES")
    # ES lost items 0 and 1; GRPO lost 0 and gained 21 and 22.
    assert (row["change"], row["other"], row["difference"]) == pytest.approx((1 / N, -2 / N, 3 / N))
    assert (row["low"], row["high"]) == pytest.approx((mean - half, mean + half))
    assert row["seeds"] == 1
    assert row["n"] == N
    p = 2 * stats.t.sf(mean / (half / stats.t.ppf(0.975, N - 1)), N - 1)
    assert row["p_value"] == pytest.approx(p)
    # Holm over two prior tasks: the smaller is doubled, the other is no smaller than that. The rules do not differ.
    assert row["p_holm"] == pytest.approx(min(1.0, 2 * p))
    assert one(found.pairs, task="toy_rules")["p_holm"] == 1.0
    assert math.isnan(one(found.pairs, task=TARGET)["p_holm"])
    average = one(found.pairs, task=AVERAGE)
    assert average["difference"] == pytest.approx((3 / N + 0) / 2)
    assert one(found.changes, arm="GRPO", task=TARGET)["change"] == pytest.approx(22 / N)


def test_at_a_common_step_it_is_the_report_s_comparison(tmp_path: Path) -> None:
    """The report compares every arm with the first at the last common step; a comparison there says the same."""
    later = right({0: range(8), 10: range(16), 20: range(25)}, {0: HALF, 10: HALF[1:], 20: HALF[3:]})
    runs = [store_run(tmp_path, arm, right_, seed=s) for s in (0, 1) for arm, right_ in (("ES", ES), ("B", later))]
    ours = build_comparison(runs).chosen.pairs.set_index("task")
    theirs = build_frames(runs).controls.set_index("task")
    assert (theirs["arm"] == "B").all()
    assert set(ours.index) == set(theirs.index) == {*TASKS, AVERAGE}
    for task in theirs.index:
        for column in ("difference", "low", "high", "n"):
            assert ours.loc[task, column] == theirs.loc[task, column]


def seeds(folder: Path, es: tuple[int, ...], grpo: tuple[int, ...]) -> list[RunData]:
    """Final target: 20 items and one more per seed for ES, 30 for every GRPO run."""
    runs = []
    for place, seed in enumerate(es):
        final = right({0: range(8), 10: range(12), 20: range(20 + place)})
        runs.append(store_run(folder, "ES", final, seed=seed, norm=90.0 + 10 * place))
    for seed in grpo:
        runs.append(store_run(folder, "GRPO", GRPO, seed=seed, trainer="grpo", rollouts=80, norm=1.0))
    return runs


def test_over_seeds_the_pair_is_the_unit(tmp_path: Path) -> None:
    found = build_comparison(seeds(tmp_path, (0, 1, 2), (0, 1, 2)), kind="rollouts").chosen
    assert found.runs["step"].tolist() == [20] * 3 + [5] * 3
    row = one(found.pairs, task=TARGET)
    values = np.array([10, 9, 8]) / N
    assert row["difference"] == pytest.approx(values.mean())
    assert row["seeds"] == 3
    over_seeds = stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    es = np.mean([indicator(range(20 + place)) for place in range(3)], axis=0)
    mean, over_items = paired(indicator(range(30)) - es)
    # Seeds share their items: the wider of the two intervals stands.
    assert row["high"] - row["difference"] == pytest.approx(max(over_seeds, over_items))
    assert over_items > over_seeds
    assert mean == pytest.approx(values.mean())
    p_items = 2 * stats.t.sf(mean / (over_items / stats.t.ppf(0.975, N - 1)), N - 1)
    p_seeds = 2 * stats.ttest_1samp(values, 0, alternative="greater").pvalue
    assert p_items != pytest.approx(p_seeds)
    assert row["p_value"] == pytest.approx(max(p_items, p_seeds))


def test_seeds_that_nobody_shares_are_paired_in_order(tmp_path: Path) -> None:
    found = build_comparison(seeds(tmp_path, (0, 1), (42, 43, 44)), kind="rollouts").chosen
    row = one(found.pairs, task=TARGET)
    assert row["seeds"] == 2
    assert row["difference"] == pytest.approx(np.mean([10, 9]) / N)


def test_a_seed_that_never_reaches_the_target_is_named(tmp_path: Path) -> None:
    runs = seeds(tmp_path, (0, 1), (0, 1))
    found = build_comparison(runs, kind="target", value=20.5 / N)
    row = one(found.chosen.pairs, task=TARGET)
    why = "ES: seed 0: never reached within 20 steps, best 50.0 % at step 20"
    assert (row["seeds"], row["note"]) == (1, why)
    text = " ".join(sentences(found))
    assert "ES is compared there without 1 of its 2 runs: seed 0: never reached within 20 steps" in text
    none = build_comparison(runs, kind="target", value=0.99)
    assert none.chosen.pairs["difference"].isna().all()
    assert "GRPO beside ES: nothing can be said" in " ".join(sentences(none))
    for table in all_tables(none):
        assert all(len(cells) == len(table.columns) for cells in table.rows)


def test_verdicts_stop_at_the_match(tmp_path: Path) -> None:
    """A prior task that collapses later is not judged for it at an earlier match."""
    falls = {step: HALF if step < 40 else () for step in (0, 10, 20, 30, 40)}
    target = {step: range(8 + step) for step in (0, 10, 20, 30)} | {40: range(40)}
    runs = [store_run(tmp_path, arm, right(target, falls)) for arm in ("ES", "B")]
    early = build_comparison(runs, kind="step", value=30, margin=0.3).chosen.changes
    late = build_comparison(runs, kind="step", value=40, margin=0.3).chosen.changes
    assert one(early, arm="ES", task="toy_choice")["verdicts"] == "stable"
    assert one(late, arm="ES", task="toy_choice")["verdicts"] == "declined"
    assert one(early, arm="ES", task="toy_choice")["change"] == 0.0
    assert one(late, arm="ES", task="toy_choice")["change"] == -0.5


# Weights and KL.


def test_ratio_of_one_and_of_several_pairs() -> None:
    """LIT-235's Table 3 along its four tasks: 87.28, 122.76, 149.99, 173.00 over 1.00, 1.15, 1.65, 1.84."""
    logs = np.log(np.array([87.28, 122.76, 149.99, 173.00]) / np.array([1.00, 1.15, 1.65, 1.84]))
    found = geometric_ratio(list(logs), 0.0)
    half = stats.t.ppf(0.975, 3) * logs.std(ddof=1) / 2
    assert (found.value, found.n) == (pytest.approx(math.exp(logs.mean())), 4)
    assert (found.low, found.high) == pytest.approx(tuple(math.exp(logs.mean() + side * half) for side in (-1, 1)))
    alone = geometric_ratio([math.log(90)], 0.0)
    assert (alone.low, alone.high) == (None, None)
    shared = geometric_ratio([0.0, 0.0], 0.5)
    assert (shared.low, shared.high) == pytest.approx((math.exp(-0.5), math.exp(0.5)))
    assert geometric_ratio([0.1, 0.2], None).low is None
    with pytest.raises(ValueError, match="no seed"):
        geometric_ratio([], 0.0)


def test_norms_and_divergences_at_the_match(compared: Comparison) -> None:
    found = compared.chosen
    # ES stands at step 10 of 20, GRPO at its last.
    assert one(found.norms, arm="ES")["value"] == pytest.approx(45.0)
    row = one(found.kl, arm="ES", group="toy_choice")
    half = stats.t.ppf(0.975, 15) * 0.1 * 0.2
    assert (row["value"], row["low"], row["high"]) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    mean = one(found.kl, arm="ES", group=AVERAGE)
    assert mean["value"] == pytest.approx((0.2 + 0.05) / 2)
    error = stats.t.ppf(0.975, 15) * math.hypot(0.02, 0.005) / 2
    assert mean["high"] - mean["value"] == pytest.approx(error)
    norm = one(found.ratios, quantity=NORM)
    assert norm["value"] == pytest.approx(1 / 45)
    assert math.isnan(norm["low"])
    target = one(found.ratios, quantity=KL_TARGET)
    assert target["value"] == pytest.approx(2.0 / 0.01)
    # Both have a relative error of 0.1.
    spread = math.exp(stats.t.ppf(0.975, 15) * math.hypot(0.1, 0.1))
    assert (target["low"], target["high"]) == pytest.approx((200 / spread, 200 * spread))
    priors = one(found.ratios, quantity=KL_PRIORS)
    geometric = math.sqrt((0.01 / 0.2) * (0.04 / 0.05))
    # The mean of two logarithms, each with the error of two values: sqrt(4 * 0.1^2) / 2.
    spread = math.exp(stats.t.ppf(0.975, 15) * 0.1)
    ends = (geometric, geometric / spread, geometric * spread)
    assert (priors["value"], priors["low"], priors["high"]) == pytest.approx(ends)


def test_a_divergence_over_seeds_is_no_surer_than_over_texts(tmp_path: Path) -> None:
    """Two seeds with one KL: no scatter, so the error over the texts, which they share, is what remains."""
    kl = dict.fromkeys(TASKS, 0.3)
    runs = [store_run(tmp_path, arm, ES, seed=seed, kl=kl) for arm in ("ES", "B") for seed in (0, 1)]
    row = one(build_comparison(runs).chosen.kl, arm="ES", group=TARGET)
    assert row["seeds"] == 2
    assert row["high"] - row["value"] == pytest.approx(stats.t.ppf(0.975, 15) * 0.03)


def test_curves_and_their_means(tmp_path: Path) -> None:
    found = build_comparison(seeds(tmp_path, (0, 1), (0, 1)), kind="rollouts")
    curves = curve_table(found)
    norms = curves[(curves["quantity"] == "update norm") & (curves["arm"] == "ES")]
    mean = mean_curve(norms, "rollouts")
    assert mean["x"].tolist() == [0.0, 200.0, 400.0]
    assert mean["y"].tolist() == pytest.approx([0.0, 47.5, 95.0])
    # A step that one run lacks has no mean over the arm's runs.
    lacking = norms[~((norms["run"] == norms["run"].iloc[0]) & (norms["step"] == 10))]
    assert mean_curve(lacking, "step")["x"].tolist() == [0.0, 20.0]


def test_norms_far_apart_stand_on_a_logarithmic_axis(compared: Comparison) -> None:
    """Norms of 90 and 1 in one panel; a divergence of 0 after the base is marked on the edge and never drawn."""
    curves = curve_table(compared)
    panels = curve_figure(compared, curves).axes
    assert (panels[0].get_yscale(), panels[8].get_yscale()) == ("log", "linear")
    assert {axes.get_ylim() for axes in panels[:4]} == {panels[0].get_ylim()}
    still = curves.copy()
    zero = (still["quantity"] == "KL") & (still["group"] == TARGET) & (still["arm"] == "ES") & (still["step"] == 10)
    still.loc[zero, "value"] = 0.0
    first = kl_figure(compared, still).axes[0]
    edge = [line for line in first.lines if line.get_marker() == "v"]
    assert [list(line.get_xdata()) for line in edge] == [[10]]
    cells = [text.get_text() for text in heat_figure(compared).axes[0].texts]
    assert cells[0].startswith("0.0100\n[")
    assert len(cells) == 2 * (len(TASKS) + 1)


# Claims and words.


@pytest.mark.parametrize(
    ("ends", "word"),
    [((2, 3), HOLDS), ((1, 4), HOLDS), ((0.5, 3), UNKNOWN), ((0.1, 0.9), FAILS), ((5, 6), FAILS), (None, UNKNOWN)],
)
def test_a_claim_is_judged_by_its_whole_interval(ends: tuple[float, float] | None, word: str) -> None:
    low, high = (None, None) if ends is None else ends
    assert judge(Number(value=2.0, low=low, high=high, text=""), (1.0, 4.0)) == word


PUBLISHED = {
    "ES": {TARGET: 0.166622, "toy_choice": 1.117809, "toy_rules": 0.103369},
    "GRPO": {TARGET: 3.370662, "toy_choice": 0.044726, "toy_rules": 0.029000},
}
"""LIT-238 Fig. 7: Countdown, HellaSwag and ARC-Challenge."""


def said(c: Comparison) -> dict[str, str]:
    return {one.claim.split(" (")[0].split(",")[0]: one.word for one in claims(c)}


def test_published_numbers_support_the_published_claims(tmp_path: Path) -> None:
    """Norms of LIT-235's first two tasks and LIT-238's KL, in two seeds of equal accuracy."""
    runs = []
    for seed, es, grpo in ((0, 87.28, 1.00), (1, 149.99, 1.65)):
        runs.append(store_run(tmp_path, "ES", ES, seed=seed, norm=es, kl=PUBLISHED["ES"]))
        runs.append(store_run(tmp_path, "GRPO", ES, seed=seed, trainer="grpo", norm=grpo, kl=PUBLISHED["GRPO"]))
    found = build_comparison(runs, margin=0.1)
    # Ratios 87.3 and 90.9 over two pairs: between 68 and 115, so larger than 1, and nobody knows whether 87 to 107.
    assert said(found) == {
        "both reach the same target accuracy": HOLDS,
        "ES moves the weights further": HOLDS,
        "ES moves them about 90 times as far": UNKNOWN,
        "off the target ES moves the output further": HOLDS,
        "on the target GRPO moves the output further": HOLDS,
        "no difference in what is lost": HOLDS,
    }
    tight = replace(found, frames=replace(found.frames, margin=0.01))
    assert said(tight)["both reach the same target accuracy"] == UNKNOWN
    matched = build_comparison(runs, kind="target", margin=0.1)
    assert said(matched)["both reach the same target accuracy"] == UNKNOWN


def test_claims_that_do_not_hold(tmp_path: Path) -> None:
    runs = [
        store_run(tmp_path, arm, GRPO, seed=seed, trainer=trainer, norm=norm * (1 + seed / 1000), kl=PUBLISHED[kl])
        for arm, trainer, norm, kl in (("ES", "es", 1.0, "GRPO"), ("GRPO", "grpo", 2.0, "ES"))
        for seed in (0, 1)
    ]
    words = said(build_comparison(runs, margin=0.1))
    assert words["ES moves the weights further"] == FAILS
    assert words["ES moves them about 90 times as far"] == FAILS
    assert words["off the target ES moves the output further"] == FAILS
    assert words["on the target GRPO moves the output further"] == FAILS


def test_no_claim_without_both_and_none_about_unlike_texts(
    pair: list[RunData], compared: Comparison, tmp_path: Path
) -> None:
    assert claims(build_comparison([store_run(tmp_path, arm, ES) for arm in ("ES", "B")])) == []
    stored, turned = one(compared.chosen.pairs, task=TARGET), claims(compared)[0].number
    # Stored is GRPO minus ES, a claim is about ES minus GRPO.
    assert (turned.value, turned.low, turned.high) == (-stored["difference"], -stored["high"], -stored["low"])
    spec = dict(pair[1].manifest.spec)
    spec["probes"] = spec["probes"] | {"kl": {"sequences": 16, "seed": 999}}
    other = replace(pair[1], manifest=replace(pair[1].manifest, spec=spec))
    words = said(build_comparison([pair[0], other], kind="rollouts"))
    assert words["on the target GRPO moves the output further"] == UNKNOWN
    assert said(compared)["on the target GRPO moves the output further"] == HOLDS


def test_sentences_claim_what_their_intervals_show(compared: Comparison) -> None:
    text = " ".join(sentences(compared))
    assert "compared at 300 rollouts" in text
    assert "rollouts 200 to 300 (33.3 % apart)" in text
    assert "This match is coarse" in text
    assert "update norm is 2.22 % of that of ES (no interval, so nothing is claimed)" in text
    # 30 items against 12 of 40.
    assert re.search(r"target toy_target differs by \+45\.0 \[[^]]*\] points: higher", text)
    assert re.search(
        r"average of 2 prior tasks differs by \+3\.8 \[−[^]]*\] points: no difference can be claimed", text
    )
    assert "after correction for 2 prior tasks none differs" in text
    assert "KL on the target's texts is 200 times that of ES [" in text


# The folder and the command.


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_the_command_writes_a_whole_and_reproducible_folder(
    pair: list[RunData], compared: Comparison, tmp_path: Path
) -> None:
    """Bytes of two processes are the same, and a refusal leaves them as they are."""
    runs = str(pair[0].path.parent)
    done = driftlab("compare", runs, "--match", "rollouts", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    files = contents(out)
    assert {"README.md", "compare.html", "compare.json", "figures/kl-map.png", "tables/ledger.tex"} <= set(files)
    again = contents(write_comparison(compared, pair, tmp_path / "again"))
    assert [name for name in files if files[name] != again[name]] == []
    assert files.keys() == again.keys()
    document = json.loads(files["compare.json"], parse_constant=pytest.fail)
    assert document["chosen"]["value"] == 300
    assert document["sentences"] == sentences(compared)
    norm = next(row for row in document["chosen"]["ratios"] if row["quantity"] == NORM)
    assert norm["low"] is None
    readme, page = files["README.md"].decode(), files["compare.html"].decode()
    for sentence in sentences(compared):
        assert sentence.replace("_", "\\_") in readme
        assert sentence in " ".join(done.stdout.split())
    # ES: 0.5 of 4 s; GRPO: 0.25 of 3.5 s.
    assert '<th scope="row">share of the environment, %</th><td>12.5</td><td>7.14</td>' in page
    assert "nan" not in re.sub(r"data:image[^\"]*", "", page).lower().split()

    wrong = driftlab("compare", runs, "--match", "target", "--at", "101", "--out", "out", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "at most 100 %" in " ".join(wrong.stderr.split())
    assert contents(out) == files
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    refused = driftlab("compare", runs, "--out", "mine", cwd=tmp_path)
    assert refused.returncode == 2
    assert "is not a comparison" in " ".join(refused.stderr.split())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again", "mine", "out"]


def test_runs_of_an_older_schema_say_what_was_not_recorded(tmp_path: Path) -> None:
    runs = [store_run(tmp_path, arm, ES, rollouts=None) for arm in ("ES", "B")]
    found = build_comparison(runs, kind="rollouts")
    assert found.chosen.runs["rollouts"].tolist() == [400, 400]  # 4 members times 5 prompts, 20 iterations
    tables = {table.name: table for table in all_tables(found)}
    ledger = {row[0]: row[1:] for row in tables["ledger"].rows}
    assert ledger["rollouts"] == ("400 (derived)",) * 2
    for line in ("forward FLOPs", "backward FLOPs", "peak memory, process", "peak memory, accelerator", "stored"):
        assert ledger[line] == ("not recorded",) * 2
    assert "FLOPs not recorded" in sentences(found)[0]
    panels = curve_figure(found, curve_table(found)).axes
    assert ["not recorded" in [text.get_text() for text in axes.texts] for axes in panels[:4]] == [
        False,
        False,
        True,
        False,
    ]
    with pytest.raises(DriftlabError, match="none of these runs recorded FLOPs"):
        build_comparison(runs, kind="flops")


def test_runs_that_cannot_be_compared(pair: list[RunData], tmp_path: Path) -> None:
    es, grpo = pair
    with pytest.raises(DriftlabError, match="two or more arms, got only ES"):
        build_comparison([es, store_run(tmp_path, "ES", ES, seed=1)])
    other = store_run(tmp_path, "GRPO", GRPO, trainer="grpo", model="w1")
    with pytest.raises(DriftlabError, match="must share the base model: ES-s0 has w0, GRPO-s0 has w1"):
        build_comparison([es, other])
    kept = [row for row in grpo.measurements if row.group != "toy_rules"]
    fewer = replace(grpo, measurements=kept, examples=[row for row in grpo.examples if row.task != "toy_rules"])
    with pytest.raises(DriftlabError, match="same tasks, but GRPO-s0 lacks toy_rules, which ES-s0 has"):
        build_comparison([es, fewer])
    asked = [
        replace(run, manifest=replace(run.manifest, tasks={"toy_rules": tag}))
        for run, tag in zip(pair, "ab", strict=True)
    ]
    moved = [replace(row, item="else") if row.item == "toy_rules-000" else row for row in grpo.examples]
    with pytest.raises(DriftlabError, match="share the items and prompts of toy_rules"):
        build_comparison([asked[0], replace(asked[1], examples=moved)])
    itemless = replace(
        grpo, manifest=replace(grpo.manifest, tasks={TARGET: {"paired": False, "profile": "generative"}})
    )
    with pytest.raises(DriftlabError, match="accuracies without their items"):
        build_comparison([es, itemless])
