"""The report's sentences, made from its numbers and never saying more than the intervals do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from driftlab.drift.peaks import FROM_THE_START
from driftlab.report.formats import count_range, flat, interval, points
from driftlab.report.frames import Frames
from driftlab.report.pairing import accuracy_rows, each
from driftlab.report.tables import at_last_step
from driftlab.report.verdict_tables import average_name, profiles
from driftlab.report.verdicts import AVERAGE

SCOPE = (
    "Verdicts on prior tasks come from intervals that hold for all prior tasks and measured steps of a run together "
    "(95 %), so looking at many checkpoints makes no dip. Other intervals are 95 % for one comparison and say how far "
    "another draw of evaluation items could move a number; another training seed can move it further."
)
SEED_SCOPE = " Over several seeds the seed is the unit; those intervals are not corrected for the number of tasks."
ITEM_SCOPE = (
    " These runs store accuracies without their items: every interval and verdict here is unpaired (binomial errors, "
    "each step on its own), which is wider than the paired one that tables and captions speak of."
)


def main_sentences(frames: Frames) -> list[str]:
    """What each run (or arm, where arms have several) did to the target and to the prior tasks."""
    if frames.repeated:
        return [_arm(frames, arm) + "." for arm in frames.runs["arm"].unique()]
    parts = []
    for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
        if last == 0:
            parts.append(f"{run}: only the base model was measured, so nothing can be said about a change.")
            continue
        target = _moved(at_last_step(frames, frames.differences, run, task=frames.target))
        text = f"{run}: from step 0 to step {last} the target {frames.target} {target}"
        for profile in profiles(frames):
            average = _moved(at_last_step(frames, frames.averages, run, profile=profile))
            text += f" and the {average_name(frames, profile)} {average}"
        parts.append(text + _said(frames.verdicts[frames.verdicts["run"] == run]) + ".")
    return parts


def _said(verdicts: pd.DataFrame) -> str:
    """``; of 4 verdicts on prior tasks 3 stable, 1 declined (piqa)``; over several runs, in how many of them."""
    own = verdicts[verdicts["task"] != AVERAGE]
    if not len(own):
        return ""
    runs, parts = own["run"].nunique(), []
    for word, count in Counter(own["verdict"]).most_common():
        tasks = Counter(own.loc[own["verdict"] == word, "task"])
        named = ", ".join(task if runs == 1 else f"{task} in {times} of {runs} seeds" for task, times in tasks.items())
        parts.append(f"{count} {word}" + ("" if word in ("stable", "cannot say") else f" ({named})"))
    many = "" if runs == 1 else f" ({own['task'].nunique()} tasks, {runs} seeds)"
    return f"; of {len(own)} verdicts on prior tasks{many} {', '.join(parts)}"


def _arm(frames: Frames, arm: str) -> str:
    own = frames.runs[frames.runs["arm"] == arm]
    last = own["last_step"].min()
    label = f"{arm}, {len(own)} seed{'' if len(own) == 1 else 's'}"
    if last == 0:
        return f"{label}: only the base model was measured, so nothing can be said about a change"
    rows = frames.seeds[(frames.seeds["arm"] == arm) & (frames.seeds["step"] == last)]
    target = _over_seeds(rows[rows["task"] == frames.target])
    text = f"{label}: by step {last} the target {frames.target} {target}"
    for profile in profiles(frames):
        mean = _over_seeds(rows[(rows["task"] == AVERAGE) & (rows["profile"] == profile)])
        text += f" and the {average_name(frames, profile)} {mean}"
    moved = rows[rows["task"].isin(frames.priors) & ((rows["high"] < 0) | (rows["low"] > 0))]
    if len(own) > 1 and len(moved):
        told = [
            f"{row.task} {'fell' if row.high < 0 else 'rose'} ({interval(row.mean, row.low, row.high)})"
            for row in each(moved)
        ]
        text += f"; over seeds, not corrected for the number of tasks, {', '.join(told)}"
    return text + _said(frames.verdicts[frames.verdicts["arm"] == arm])


def _over_seeds(rows: pd.DataFrame) -> str:
    if not len(rows):
        return "was not measured in every seed"
    row = rows.iloc[0]
    size = points(row["mean"])
    if pd.isna(row["low"]):
        return f"changed by {size} points with no interval to judge it by"
    unit = "95 % interval" if row["seeds"] == 1 else "95 % interval over seeds"
    ends = f"{size} points, {unit} {points(row['low'])} to {points(row['high'])}"
    if row["low"] <= 0 <= row["high"]:
        return f"shows no change distinguishable from zero ({ends})"
    return f"{'rose' if row['low'] > 0 else 'fell'} ({ends})"


def diagnosis(frames: Frames) -> list[str]:
    """One sentence per arm on the training rewards of its runs, in LIT-236's terms (arXiv 2602.00170)."""
    found = []
    table = frames.targets[frames.targets["curve"] == "training reward"]
    trained = frames.runs[frames.runs["control"] == "none"]
    for arm, runs in trained.groupby("arm", sort=False):
        own = table[table["run"].isin(runs["run"])]
        said = Counter(own["verdict"])
        parts = []
        for word, count in said.most_common():
            rows = own[own["verdict"] == word]
            who = "" if len(own) == 1 else f"in {count} of {len(own)} seeds "
            parts.append(who + _reward_words(word, rows))
        found.append(f"{arm}: {'; '.join(parts)}.")
    return found


def _reward_words(word: str, rows: pd.DataFrame) -> str:
    """What one verdict on the training reward means; ``rows`` are the runs that have it."""
    peaks = ", ".join(f"{row.peak:.0f} [{row.peak_low:.0f} to {row.peak_high:.0f}]" for row in each(rows))
    if word == "peaked and decays" and rows["reason"].str.startswith(FROM_THE_START).all():
        return (
            "the training reward fell, and no gain came first as far as can be told: not LIT-236's decay after a gain"
        )
    if word == "peaked and decays":
        return (
            f"the training reward peaked at iteration {peaks} and then fell. LIT-236 derives such a decay: directions "
            "of high curvature keep collecting noise of variance κ = σ²/N after the gain along slow directions has run "
            "out. Stop at the peak; a larger population or a smaller σ delays and lifts it"
        )
    if word == "still rising":
        return "the training reward still rises at the end: LIT-236's decay has not begun, a longer run may gain more"
    if word == "plateau":
        return (
            f"the training reward is level at the end and not surely past a peak (it lies at {peaks}): LIT-236's decay "
            "is not seen at this length"
        )
    return f"nothing can be said about a peak of the training reward ({'; '.join(dict.fromkeys(rows['reason']))})"


def explained(frames: Frames) -> list[str]:
    """What of the change of the prior tasks the random walk alone explains.

    One sentence per arm and control on the average, and one on every task whose change is clear.
    """
    own = {(row.arm, row.task, row.profile, row.step): row for row in each(frames.seeds)}
    found = []
    beside = frames.controls[frames.controls["kind"] == "control"]
    for row in each(beside[beside["task"] != frames.target]):
        change = own.get((row.arm, row.task, row.profile, row.step))
        clear = change is not None and (change.low > 0 or change.high < 0)
        if row.task != AVERAGE and not clear:
            continue
        name = f"the {average_name(frames, row.profile)}" if row.task == AVERAGE else str(row.task)
        control = f"the random walk ({row.against})"
        if pd.isna(row.low):
            found.append(f"{row.arm} beside {control}: nothing can be said about {name}.")
            continue
        ends = interval(row.difference, row.low, row.high)
        over = f"{row.n:.0f} seeds" if row.unit == "seeds" else f"{row.n:.0f} items of one seed"
        told = f"{name} changed by {points(row.change)} points, by {points(row.walk)} in {control}"
        if row.low > 0 or row.high < 0:
            verdict = f"the arm ended {'higher' if row.low > 0 else 'lower'} than the random walk"
        elif clear:
            verdict = "not distinguishable from zero, so the random walk alone may explain the change"
        else:
            verdict = "no change of the arm is clear, and none beyond the random walk"
        other = "" if row.alike else " This walk has other settings than the arm, so it goes another distance."
        found.append(f"{row.arm}: {told}; difference {ends} over {over}: {verdict}.{other}")
    return found


def _moved(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "was not measured"
    if row["status"] != "ok":
        return f"{'was not measured' if row['status'] == 'not measured' else row['status']} ({row['note']})"
    size = points(row["difference"])
    if row["gained"] + row["lost"] == 0:
        return "kept every item's result"
    if pd.isna(row["low"]):
        return f"changed by {size} points with no interval to judge it by"
    interval = f"95 % interval {points(row['low'])} to {points(row['high'])}"
    if row["low"] > 0 or row["high"] < 0:
        verb = "rose" if row["low"] > 0 else "fell"
        return f"{verb} by {points(abs(row['difference']), sign=False)} points ({interval})"
    return f"shows no change distinguishable from zero ({size} points, {interval})"


def captions(frames: Frames) -> dict[str, str]:
    """One sentence per figure: what is drawn, n, and how the intervals were made."""
    accuracy = accuracy_rows(frames.measurements)
    ok = accuracy[accuracy["status"] == "ok"]
    target = count_range(ok.loc[ok["group"] == frames.target, "n"])
    prior = count_range(ok.loc[ok["group"].isin(frames.priors), "n"])
    kl = count_range(frames.rows("kl_base_to_step", probe="kl")["n"])
    d = count_range(frames.rows("update_norm", probe="weights").query("group == 'all'")["n"])
    members = count_range(frames.updates.loc[frames.updates["members"] > 0, "members"])
    # One reward is that of a member, a mean over the batch, or of a single rollout where there are no members.
    who = "members" if frames.updates["population"].notna().all() else "members of ES or rollouts of GRPO"
    seeds = "thin lines are seeds, the thick line is their mean"
    ends = "the interval of the seed table (over seeds, no narrower than over items; not corrected)"
    alone = "Wilson 95 % intervals with items taken as independent; stars mark the highest value of each run"
    paired = (
        "bars are the 95 % interval of the change since step 0, paired by item with cluster-robust errors and drawn "
        "around the accuracy, so a bar that clears the dotted base line is a change beyond that interval"
    )
    return {
        "target": f"Training reward (mean over {members} {who}, drawn at iteration t around checkpoint t − 1) "
        f"and accuracy on {frames.target} ({target} items); "
        + (f"{seeds}, with {ends} drawn around it." if frames.repeated else f"{alone}."),
        "differences": f"Change since step 0 on each prior task ({prior} items) and on their average; "
        + (
            f"{seeds}, with {ends}"
            if frames.repeated
            else "the bands hold for all prior tasks and steps of a run together (95 %), so a band that leaves 0 "
            "anywhere is a change"
        )
        + f"; dotted lines at ±{100 * frames.margin:g} points bound what counts as stable, the grey band is the "
        "measured noise floor (no band: smaller than a line, or not measured).",
        "priors": f"Accuracy on each prior task ({prior} items); "
        + (f"{seeds}, with {ends} drawn around it." if frames.repeated else f"{paired}."),
        "norms": f"L2 norm of the update over d = {d} parameters, with the random-walk law computed from the applied "
        "coefficients and the anchor; the band is the 95 % range of a norm of d Gaussian coordinates (relative half "
        "width about 1.96/√(2d), so it can be thinner than the line), and the two broken lines leave the anchor out.",
        "kl": f"Token-weighted KL divergence from base to step over the full vocabulary, on continuations of the base "
        f"model ({kl} sequences per text set); "
        + (f"{seeds} with its" if frames.repeated else "bars are")
        + f" 95 % t interval{' over seeds' if frames.repeated else 's over sequences'}.",
        "path": f"Accuracy averaged over prior tasks ({prior} items each) against target accuracy ({target} "
        "items), one point per measured step, coloured by iteration and joined in order; no intervals are drawn here, "
        "figures a and b show them.",
    }


def settings(trees: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of key and one value per run; a key that a run lacks is ``–``."""
    flattened = [flat(tree) for tree in trees]
    keys = sorted({key for tree in flattened for key in tree})
    return [(key, *(tree.get(key, "–") for tree in flattened)) for key in keys]


def shared_and_own(rows: Sequence[tuple[str, ...]]) -> dict[str, list[tuple[str, ...]]]:
    """Rows on which all runs agree, with their value once, apart from those that tell the runs apart."""
    shared = [row[:2] for row in rows if len(set(row[1:])) == 1]
    return {"shared": shared, "own": [row for row in rows if len(set(row[1:])) > 1]}
