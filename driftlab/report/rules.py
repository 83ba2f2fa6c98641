"""Which step each stopping rule would have chosen, and what every task scored there.

The rule to use is the target reward's own peak (LIT-236, LIT-238): a prior task that dips may come back, so a prior
decline is no reason to stop. The other rules are shown beside it, not recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from driftlab.report.pairing import each

REWARD_PEAK, ACCURACY_PEAK = "peak of the training reward", "peak of the target accuracy"
LAST, DECLINE, BEST_PRIOR = "last step", "first clear prior decline", "highest prior average"
RULE_COLUMNS = ["run", "rule", "chosen_step", "measured_step", "note"]


def rule_table(
    runs: pd.DataFrame, peaks: pd.DataFrame, bands: pd.DataFrame, differences: pd.DataFrame, averages: pd.DataFrame
) -> pd.DataFrame:
    """Per (run that trains, rule): the step chosen, and the measured step at or nearest to it, where changes are read.

    ``chosen_step`` is empty when the rule never fires; ``note`` says why.
    """
    rows: list[dict[str, Any]] = []
    for run in each(runs[runs["control"] == "none"]):
        measured = sorted(set(differences.loc[differences["run"] == run.run, "step"]))
        if not measured:
            continue
        for rule, step, note in _choices(run.run, measured, peaks, bands, averages):
            nearest = None if step is None else min([0, *measured], key=lambda at: (abs(at - step), at))
            rows.append({"run": run.run, "rule": rule, "chosen_step": step, "measured_step": nearest, "note": note})
    return pd.DataFrame(rows, columns=RULE_COLUMNS).astype({"chosen_step": "Int64", "measured_step": "Int64"})


def _choices(
    run: str, measured: Sequence[int], peaks: pd.DataFrame, bands: pd.DataFrame, averages: pd.DataFrame
) -> list[tuple[str, int | None, str | None]]:
    found: list[tuple[str, int | None, str | None]] = []
    for rule, curve in ((REWARD_PEAK, "training reward"), (ACCURACY_PEAK, "target accuracy")):
        own = peaks[(peaks["run"] == run) & (peaks["quantity"] == curve)]
        found.append((rule, int(own["step"].iloc[0]), None) if len(own) else (rule, None, f"no {curve} is known"))
    found.append((LAST, measured[-1], None))
    judged = bands[bands["run"] == run]
    low = judged[judged["high"] < 0].sort_values("step", kind="stable")
    if len(low):
        first = low.iloc[0]
        found.append((DECLINE, int(first["step"]), str(first["task"]) or "average of the prior tasks"))
    else:
        note = "none fell beyond its interval" if len(judged) else "not known: no prior task was judged"
        found.append((DECLINE, None, note))
    mean = averages[(averages["run"] == run) & (averages["status"] == "ok")]
    if len(mean):
        first_profile = mean["profile"].iloc[0]
        mean = mean[mean["profile"] == first_profile]
        best = mean.loc[mean["difference"].idxmax()]
        # The base itself has change 0 and may be the best.
        found.append((BEST_PRIOR, int(best["step"]) if best["difference"] > 0 else 0, None))
    else:
        found.append((BEST_PRIOR, None, "not known: no average over prior tasks"))
    return found
