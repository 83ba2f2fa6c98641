"""What training took: rollouts, tokens, operations, seconds and bytes, per iteration and cumulated.

Measurements are not training, and none of this counts them. Where a run did not record a number it is NaN, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.stats import Array
from driftlab.run.records import Iteration

TIMES = ["model_seconds", "environment_seconds", "rest_seconds", "total_seconds"]
ADDED = ["rollouts", "prompt_tokens", "generated_tokens", "forward_flops", "backward_flops", *TIMES, "stored_bytes"]
"""What adds up over iterations; the cumulated columns have ``cumulated_`` before these names."""
PEAKS = ["process_peak_bytes", "device_peak_bytes"]
"""Largest so far, as stored: cumulated already."""
LEDGER_COLUMNS = ["step", *ADDED, *PEAKS, *(f"cumulated_{name}" for name in ADDED), "derived"]


def ledger_rows(iterations: Sequence[Iteration], train_items: int | None) -> pd.DataFrame:
    """One row per iteration, columns ``LEDGER_COLUMNS``; once an iteration lacks a number, so does the sum from there.

    ``model_seconds`` are those of generation and, for a gradient step, of its two passes; ``environment_seconds`` those
    of the reward; ``rest_seconds`` what is left of the total. ``derived`` says that ``rollouts`` were computed as
    members times prompts, because a run of schema 3 or older stores no cost.

    Args:
        iterations: of one run, in order.
        train_items: prompts that each member of an ES population answers; None for a run of other code, which records
            neither rollouts nor tokens.
    """
    rows = [_row(one, train_items) for one in iterations]
    table = pd.DataFrame(rows, columns=LEDGER_COLUMNS).astype(dict.fromkeys([*ADDED, *PEAKS], "float64"))
    for name in ADDED:
        table[f"cumulated_{name}"] = table[name].cumsum(skipna=False)
    return table


def _row(one: Iteration, train_items: int | None) -> dict[str, Any]:
    row: dict[str, Any] = {"step": one.step, "derived": one.cost is None and train_items is not None}
    if one.cost is not None:
        names = ("rollouts", "forward_flops", "backward_flops", "stored_bytes", *PEAKS)
        row |= {name: getattr(one.cost, name) for name in names}
    elif train_items is not None:
        row["rollouts"] = len(one.rewards) * train_items
    if one.cost is not None or train_items is not None:
        row |= {"prompt_tokens": one.prompt_tokens, "generated_tokens": one.generated_tokens}
    return row | _seconds(one.seconds)


def _seconds(seconds: Mapping[str, float]) -> dict[str, float]:
    nan = float("nan")
    model, environment = seconds.get("rollout", seconds.get("model", nan)), seconds.get("reward", nan)
    total = seconds.get("total", nan)
    return dict(zip(TIMES, (model, environment, total - model - environment, total), strict=True))


def spent(ledger: pd.DataFrame, name: str, steps: Sequence[int]) -> Array:
    """The cumulated number at each of ``steps``: 0 before the first iteration, NaN where no iteration is stored."""
    by_step = {0: 0.0, **dict(zip(ledger["step"], ledger[f"cumulated_{name}"], strict=True))}
    return np.array([by_step.get(step, np.nan) for step in steps], dtype=np.float64)
