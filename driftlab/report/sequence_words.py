"""What a page of sequences says in words, never more than its intervals do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from driftlab.report.formats import interval, points
from driftlab.report.sequences import BASE, MEAN, SequenceFrames, mean_norms

FORGETTING = (
    "Forgetting (largest accuracy after any earlier stage, minus that at the end) takes the largest of several noisy "
    "numbers, so it is biased upwards and has no interval: the change since a target's own stage is the one to trust."
)


def sentences(frames: SequenceFrames) -> list[str]:
    """What each stage taught, what was lost afterwards, what happened to the prior tasks, how far the weights went."""
    found = [_learned(frames), *_backward(frames), *_priors(frames), *_norm(frames), *_angles(frames)]
    return [*found, *_repeats(frames)]


def scope(frames: SequenceFrames) -> str:
    """What the intervals cover."""
    text = (
        "One seed: the intervals are over items only, and another seed can move the numbers further."
        if len(frames.seeds) == 1
        else f"{len(frames.seeds)} seeds: the seed is the unit, and no interval is narrower than the one over items."
    )
    return f"{text} Every interval is of one comparison at 95 %, not corrected for their number. {FORGETTING}"


def rows_of(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dictionaries, with None where there is no value."""
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")  # type: ignore[assignment]
    return rows


def told(row: Mapping[str, Any], name: str) -> str:
    """``+3.0 [+1.0, +5.0]`` in points; says so where there is no interval."""
    ends = (row[f"{name}_low"], row[f"{name}_high"])
    return f"{points(row[name])} [no interval]" if None in ends else interval(row[name], *ends)


def _learned(frames: SequenceFrames) -> str:
    rows = [row for row in rows_of(frames.transfer) if row["task"] != MEAN]
    if not rows:
        return "What the stages taught cannot be told: a target was never scored."
    parts = []
    for row in rows:
        if row["learned"] is None:
            parts.append(f"stage {row['stage']}, {row['task']}, not measured")
        else:
            parts.append(f"stage {row['stage']}, {row['task']}, {told(row, 'learned')}: {_side(row, 'learned')}")
    order = " → ".join(frames.targets)
    return f"{frames.arm}, trained on {order}. Change of each target over its own stage, in points: {'; '.join(parts)}."


def _side(row: Mapping[str, Any], name: str) -> str:
    if row[f"{name}_low"] is None:
        return "without an interval"
    if row[f"{name}_low"] > 0:
        return "up beyond its interval"
    return "down beyond its interval" if row[f"{name}_high"] < 0 else "not told from no change"


def _backward(frames: SequenceFrames) -> list[str]:
    mean = [row for row in rows_of(frames.transfer) if row["task"] == MEAN]
    if not mean:
        return []
    row, count = mean[0], len(frames.targets) - 1
    whose = "the first target" if count == 1 else f"the first {count} targets"
    if row["backward"] is None:
        return [f"Backward transfer is not known: {whose} was not measured at both of its checkpoints."]
    text = f"Backward transfer, the mean change of {whose} from the end of the own stage to the end of the sequence: "
    text += f"{told(row, 'backward')} points"
    low, high = row["backward_low"], row["backward_high"]
    if low is None:
        text += ", without an interval."
    elif high < 0:
        text += ", a loss beyond its interval."
    elif low > 0:
        text += ", a gain beyond its interval."
    elif low < 0:
        text += f": no loss is shown, and one of up to {points(-low, sign=False)} points is not excluded."
    else:
        text += "."
    own = [one for one in rows_of(frames.transfer) if one["backward_high"] is not None and one["task"] != MEAN]
    lost = [f"{one['task']} {told(one, 'backward')}" for one in own if one["backward_high"] < 0]
    if count > 1:
        text += f" Lost beyond its own interval: {', '.join(lost) or 'none'}."
    if row["forgetting"] is not None:
        text += f" Forgetting: {points(row['forgetting'])} points."
    return [text]


def _priors(frames: SequenceFrames) -> list[str]:
    if not frames.priors:
        return []
    last = frames.matrix[frames.matrix["checkpoint"] == len(frames.targets)]
    rows = [row for row in rows_of(last) if row["task"] in frames.priors]
    known = [row for row in rows if row["since_base_low"] is not None]
    fallen = [f"{row['task']} {told(row, 'since_base')}" for row in known if row["since_base_high"] < 0]
    risen = [f"{row['task']} {told(row, 'since_base')}" for row in known if row["since_base_low"] > 0]
    text = f"Prior tasks ({len(rows)}) at the end, against the base, in points: fell beyond the own interval: "
    text += f"{', '.join(fallen) or 'none'}; rose: {', '.join(risen) or 'none'}"
    rest = [row for row in known if not row["since_base_high"] < 0 and not row["since_base_low"] > 0]
    if rest:
        worst = min(row["since_base_low"] for row in rest)
        text += f"; not told from no change: {len(rest)}"
        if worst < 0:
            text += f" (a loss of up to {points(-worst, sign=False)} points is not excluded)"
    if len(known) < len(rows):
        text += f"; {len(rows) - len(known)} not measured"
    return [text + "."]


def _norm(frames: SequenceFrames) -> list[str]:
    table = rows_of(mean_norms(frames))
    listed = ", ".join(f"{row['norm']:#.4g}" for row in table)
    mean = "" if len(frames.seeds) == 1 else ", mean over seeds"
    text = f"Norm of the weights minus the original base after each stage{mean}: {listed}"
    if all(row["predicted"] is not None for row in table):
        walk = ", ".join(f"{row['predicted']:#.4g}" for row in table)
        ratios = ", ".join(f"{row['ratio']:.3f}" for row in table)
        sd = max(row["predicted_sd"] for row in table)
        return [
            f"{text}; a random walk with the applied coefficients expects {walk} (standard deviation of one walk at "
            f"most {sd:.2g}); measured over expected {ratios}."
        ]
    return [f"{text}; beside no random walk: {next(row['note'] for row in table if row['note'])}."]


def _angles(frames: SequenceFrames) -> list[str]:
    rows = [row for row in rows_of(frames.angles) if row["cosine"] is not None]
    if not rows:
        return []
    largest = max(rows, key=lambda row: abs(row["cosine"]))
    cosine = f"{largest['cosine']:.4f}".replace("-", "−")
    where = f"stages {largest['first']} and {largest['second']}"
    where += f", seed {largest['seed']}" if len(frames.seeds) > 1 else ""
    return [
        f"Largest cosine, in absolute value, between the displacements of two stages: {cosine} "
        f"({where}); random directions have 0 ± {largest['random_sd']:.2g}, so this one of {len(rows)} is "
        f"{abs(largest['z']):.1f} standard deviations from 0."
    ]


def _repeats(frames: SequenceFrames) -> list[str]:
    rows: Sequence[dict[str, Any]] = rows_of(frames.repeats)
    count, differing = (sum(int(row[name]) for row in rows) for name in ("results", "differing"))
    if not count:
        return []
    how = "all came out the same" if not differing else f"{differing:,} came out otherwise, which is noise of scoring"
    return [f"The same weights scored at the end of a stage and at the start of the next: of {count:,} results {how}."]


def checkpoint_name(frames: SequenceFrames, checkpoint: int) -> str:
    return BASE if checkpoint == 0 else f"{checkpoint}, {frames.targets[checkpoint - 1]}"
