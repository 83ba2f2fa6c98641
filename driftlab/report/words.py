"""The report's sentences, made from its numbers and never saying more than the intervals do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from driftlab.report.frames import Frames
from driftlab.report.pairing import accuracy_rows
from driftlab.report.tables import at_last_step, points

SCOPE = (
    "Intervals are 95 % and say how far another draw of evaluation items could move a number; another training seed "
    "can move it further. They are not corrected for the number of tasks and steps shown; the comparison that counts "
    "is the final step with the base."
)


def main_sentence(frames: Frames) -> str:
    """What each run did to the target and to the prior tasks, in one sentence."""
    parts = []
    for run, last in frames.runs[["run", "last_step"]].itertuples(index=False, name=None):
        if last == 0:
            parts.append(f"{run}: only the base model was measured, so nothing can be said about a change")
            continue
        target = _moved(at_last_step(frames, frames.differences, run, task=frames.target))
        text = f"{run}: from step 0 to step {last} the target {frames.target} {target}"
        if frames.priors:
            average = _moved(at_last_step(frames, frames.averages, run))
            text += f" and the average accuracy on {prior_tasks(frames)} {average}"
        parts.append(text)
    return "; ".join(parts) + "."


def _moved(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "was not measured"
    if row["status"] != "ok":
        return f"{'was not measured' if row['status'] == 'not measured' else row['status']} ({row['note']})"
    size = points(row["difference"])
    if row["gained"] + row["lost"] == 0:
        return "kept every item's result"
    if pd.isna(row["low"]) or row["low"] == row["high"]:
        # One cluster, or every cluster alike: an estimated error of 0 is not knowledge of the true change.
        return f"changed by {size} points with no interval to judge it by"
    interval = f"95 % interval {points(row['low'])} to {points(row['high'])}"
    if row["low"] > 0 or row["high"] < 0:
        verb = "rose" if row["low"] > 0 else "fell"
        return f"{verb} by {points(abs(row['difference']), sign=False)} points ({interval})"
    return f"shows no change distinguishable from zero ({size} points, {interval})"


def prior_tasks(frames: Frames) -> str:
    """``4 prior tasks``."""
    return f"{len(frames.priors)} prior task{'' if len(frames.priors) == 1 else 's'}"


def captions(frames: Frames) -> dict[str, str]:
    """One sentence per figure: what is drawn, n, and how the intervals were made."""
    accuracy = accuracy_rows(frames.measurements)
    ok = accuracy[accuracy["status"] == "ok"]
    target = _range(ok.loc[ok["group"] == frames.target, "n"])
    prior = _range(ok.loc[ok["group"].isin(frames.priors), "n"])
    kl = _range(frames.rows("kl_base_to_step", probe="kl")["n"])
    d = _range(frames.rows("update_norm", probe="weights").query("group == 'all'")["n"])
    members = _range(frames.updates["members"])
    return {
        "target": f"Training reward (mean over {members} members, drawn at iteration t around checkpoint t − 1) "
        f"and accuracy on {frames.target} ({target} items, Wilson 95 % intervals with items taken as "
        "independent); stars mark the highest value of each run.",
        "priors": f"Accuracy on each prior task ({prior} items); bars are the 95 % interval of the change since step "
        "0, paired by item with cluster-robust errors and drawn around the accuracy, so a bar that clears the dotted "
        "base line is a change beyond that interval.",
        "norms": f"L2 norm of the update over d = {d} parameters, with the random-walk law computed from the applied "
        "coefficients and the anchor; the band is the 95 % range of a norm of d Gaussian coordinates (relative half "
        "width about 1.96/√(2d), so it can be thinner than the line), and the two broken lines leave the anchor out.",
        "kl": f"Token-weighted KL divergence from base to step over the full vocabulary, on continuations of the base "
        f"model ({kl} sequences per text set); bars are 95 % t intervals over sequences.",
        "path": f"Average accuracy over {prior_tasks(frames)} ({prior} items each) against target accuracy ({target} "
        "items), one point per measured step, coloured by iteration and joined in order; no intervals are drawn here, "
        "figures a and b show them.",
    }


def _range(values: pd.Series) -> str:
    if not len(values):
        return "no"
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as ``{"es.sigma": "0.02"}``, sorted by key, folders of this machine left out."""
    found: dict[str, str] = {}
    for key in sorted(tree, key=str):
        value = tree[key]
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            text = (
                value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
            )
            found[f"{prefix}{key}"] = without_folders(text)
    return found


# An absolute path of two or more parts that is not the tail of a URL or of a name such as "and/or".
_FOLDERS = re.compile(r"(?<![\w.:/…])(?:/|[A-Za-z]:\\)(?:[^\s/\\'\",;:]+[/\\])+")


def without_folders(text: str) -> str:
    """``/some/folder/model.gguf`` to ``…/model.gguf``: where a file lay on one machine tells a reader nothing."""
    return _FOLDERS.sub("…/", text)


def settings(trees: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of key and one value per run; a key that a run lacks is ``–``."""
    flattened = [flat(tree) for tree in trees]
    keys = sorted({key for tree in flattened for key in tree})
    return [(key, *(tree.get(key, "–") for tree in flattened)) for key in keys]
