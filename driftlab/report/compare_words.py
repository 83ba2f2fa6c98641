"""The sentences of a comparison, made from its numbers and never saying more than the intervals do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from driftlab.report.compare import Comparison
from driftlab.report.compare_changes import missing_note
from driftlab.report.compare_claims import FAILS, HOLDS, UNKNOWN, Claim
from driftlab.report.compare_tables import (
    ALIKE,
    NOT_RECORDED,
    SELECTED,
    count,
    ends,
    large,
    matched_at,
    name_of,
    p_text,
    prior_keys,
    profile_of,
)
from driftlab.report.compare_weights import KL_PRIORS, KL_TARGET, NORM
from driftlab.report.matching import Match
from driftlab.report.pairing import each
from driftlab.report.tables import digits

SCOPE = (
    f"Differences are paired on items. {ALIKE} Averages, the target, norms and KL are one comparison each and not "
    "corrected; single prior tasks are named only where they differ after Holm's correction over the prior tasks of "
    "the pair."
)
COARSE = 0.1
"""Budgets further apart than this share of the larger are no good match."""
NOTHING = "no difference can be claimed"


def match_sentence(c: Comparison) -> str:
    """Where the runs are compared, how far what they had spent really differs, and which runs never got there."""
    runs = c.chosen.runs[c.chosen.runs["step"].notna()]
    text = f"The runs are compared at {matched_at(c.chosen.match)}."
    if len(runs):
        known = 100 * runs["target_accuracy"].dropna()
        low, high = (f"{end:.1f}" for end in (known.min(), known.max()))
        accuracy = "" if known.empty else f"; target accuracy {low}{'' if low == high else f' to {high}'} %"
        text += (
            f" What they stand at there: step {_spread(runs['step'], count)}; rollouts "
            f"{_spread(runs['rollouts'], count)}; FLOPs {_spread(runs['flops'], large)}{accuracy}."
        )
        text += _coarse(c, runs)
    for arm in c.arms:
        missing = c.chosen.match.missing(arm)
        if missing:
            text += f" {arm} is compared there without {_how_many(c.chosen.match, arm)}: {missing_note(missing)}."
    return text


def _coarse(c: Comparison, runs: pd.DataFrame) -> str:
    """Says so where the runs really differ by much in what they were matched on; empty otherwise."""
    match = c.chosen.match
    if match.kind == "step":
        return ""
    values = runs["target_accuracy" if match.kind == "target" else match.kind]
    apart = values.max() - values.min()
    if apart <= (c.frames.margin if match.kind == "target" else COARSE * values.max()):
        return ""
    return " This match is coarse, because few steps were measured: part of any difference is that of the match."


def _how_many(match: Match, arm: str) -> str:
    lost, whole = len(match.missing(arm)), len(match.missing(arm)) + len(match.places(arm))
    return "its only run" if whole == 1 else f"{lost} of its {whole} runs"


def _spread(values: pd.Series, text: Any) -> str:
    """``9,600``, ``9,000 to 9,600 (6.3 % apart)``, the share of the larger, or ``1 to 4 (a factor of 4.00)``."""
    numbers = values.to_numpy(float)
    known = numbers[~np.isnan(numbers)]
    if not len(known):
        return NOT_RECORDED
    low, high = text(float(known.min())), text(float(known.max()))
    gap = 100 * (known.max() - known.min()) / known.max() if known.max() else 0.0
    wide = known.min() > 0 and known.max() > 1.5 * known.min()
    how = f"a factor of {digits(known.max() / known.min())}" if wide else f"{digits(gap)} % apart"
    told = low if low == high else f"{low} to {high} ({how})"
    return told if len(known) == len(numbers) else f"{told} (not recorded in {len(numbers) - len(known)} runs)"


def pair_sentences(c: Comparison) -> list[str]:
    """Every arm beside the first."""
    return [_pair(c, arm, c.arms[0]) for arm in c.arms[1:]]


def _pair(c: Comparison, arm: str, first: str) -> str:
    own = c.chosen.pairs[(c.chosen.pairs["arm"] == arm) & (c.chosen.pairs["against"] == first)]
    rows = {(row.task, profile_of(row)): row for row in each(own)}
    held = own["seeds"].max()
    if pd.isna(held):
        why = next((note for note in own["note"] if note), "not measured in both at the match")
        return f"{arm} beside {first}: nothing can be said ({why})."
    over = "one pair of runs" if held == 1 else f"{held:.0f} pairs of runs"
    ratios = c.chosen.ratios[(c.chosen.ratios["arm"] == arm) & (c.chosen.ratios["against"] == first)]
    by_name: Mapping[str, Any] = {row.quantity: row for row in each(ratios)}
    parts = [_ratio(by_name[NORM], "its update norm", first)]
    keys: list[tuple[str, str | None]] = [(c.frames.target, None), *prior_keys(c.frames)]
    parts += [f"{_the(c, *key)} {_difference(rows.get(key))}" for key in keys]
    parts.append(_tasks(own[own["task"].isin(c.frames.priors)]))
    for name, label in ((KL_TARGET, "its KL on the target's texts"), (KL_PRIORS, "its KL on the prior tasks' texts")):
        if pd.notna(by_name[name].value):
            parts.append(_ratio(by_name[name], label, first))
    return f"{arm} beside {first}, {over}: {'; '.join(parts)}."


def _the(c: Comparison, task: str, profile: str | None) -> str:
    name = name_of(c.frames, task, profile).removesuffix(" (target)")
    if task == c.frames.target:
        return f"the target {name}"
    return f"the {name}" if name.startswith("average") else name


def _ratio(row: Any, what: str, first: str) -> str:
    if pd.isna(row.value):
        return f"{what} is {row.note}"
    scale, unit = (100, "% of") if row.value < 1 else (1, "times")
    size = f"{digits(scale * row.value)} {unit} that of {first}"
    if pd.isna(row.low):
        return f"{what} is {size} (no interval, so nothing is claimed)"
    inside = row.low <= 1 <= row.high
    text = f"{what} is {size} [{digits(scale * row.low)}, {digits(scale * row.high)}]"
    return f"{text}: {NOTHING}" if inside else text


def _difference(row: Any) -> str:
    if row is None or pd.isna(row.difference):
        return "was not measured in both"
    told = f"differs by {ends(row.difference, row.low, row.high)} points"
    if pd.isna(row.low) or row.low <= 0 <= row.high:
        return f"{told}: {NOTHING}"
    return f"{told}: {'higher' if row.low > 0 else 'lower'}"


def _tasks(rows: pd.DataFrame) -> str:
    """Prior tasks that differ after the correction."""
    known = rows[rows["p_holm"].notna()]
    found = [
        f"{row.task} ({ends(row.difference, row.low, row.high)} points, p = {p_text(row.p_holm)})"
        for row in each(known[known["p_holm"] < 0.05])
    ]
    if not len(known):
        return "no prior task can be judged alone"
    after = f"after correction for {len(known)} prior tasks"
    return f"{after} {', '.join(found)} differ{'s' if len(found) == 1 else ''}" if found else f"{after} none differs"


def claim_sentence(found: Sequence[Claim]) -> str:
    """How many of the published claims hold; empty where no ES arm stands beside a GRPO arm."""
    if not found:
        return ""
    pairs, words = len({(one.es, one.grpo) for one in found}), Counter(one.word for one in found)
    beside = "one pair of arms" if pairs == 1 else f"{pairs} pairs of arms"
    holds, fails = ("s" if words[HOLDS] == 1 else "", "es" if words[FAILS] == 1 else "")
    return (
        f"Of {len(found)} published claims about ES beside GRPO, judged on {beside}, {words[HOLDS]} hold{holds}, "
        f"{words[FAILS]} do{fails} not hold, and of {words[UNKNOWN]} nothing can be said."
    )


def captions(c: Comparison) -> dict[str, str]:
    """One caption per figure."""
    runs = c.frames.runs.groupby("arm", sort=False).size()
    lines = "thin lines are runs, thick ones the mean of an arm" if runs.max() > 1 else "one line per arm"
    axes = (
        "against iteration, cumulated rollouts, cumulated FLOPs (forward and backward) and target accuracy, at every "
        f"measured step; {lines} at the steps that all its runs measured, placed at their mean on the axis; no "
        "intervals are drawn, the tables have them"
    )
    texts = c.chosen.kl["n"].max()
    unlike = "" if c.same_texts else " The runs drew their texts differently, so part of any difference is the texts'."
    base = "the base itself (0) has no place on a logarithmic axis"
    return {
        "curves": f"Update norm ‖θₜ − θ₀‖ (L2), target accuracy and mean accuracy over the prior tasks {axes}; {base}.",
        "kl-curves": f"Token-weighted KL(base ‖ step), nats per token, on every text set {axes}; {base}.{unlike}",
        "kl-map": f"KL(base ‖ step) of every arm on every text set at {matched_at(c.chosen.match)}, nats per token, on "
        f"a logarithmic colour scale, with its 95 % interval over {'' if pd.isna(texts) else f'{texts:.0f} '}texts "
        "(several runs: over seeds, and no narrower than over texts); grey: not measured or 0. Laid out as LIT-238's "
        f"Fig. 7.{unlike}" + (SELECTED if c.chosen.match.kind == "target" else ""),
    }
