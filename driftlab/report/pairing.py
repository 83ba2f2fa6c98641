"""Every checkpoint beside the base model, item by item: tables of paired changes and of averages over tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from driftlab.drift.paired import bootstrap_intervals, mcnemar_midp, retention
from driftlab.drift.power import minimal_detectable_difference
from driftlab.drift.stats import PairedDifference, average_difference, clustered_mean, paired_difference
from driftlab.report.scores import Scores, TaskScores
from driftlab.report.unpaired import Accuracies

NAN = float("nan")
SEED = 0
"""Of every private generator of a report: the same runs give the same report."""
_ESTIMATE = ["difference", "stderr", "low", "high", "n", "gained", "lost"]
_PAIRED = [*_ESTIMATE, "n_clusters"]
_FURTHER = ["bootstrap_low", "bootstrap_high", "p_value", "detectable", "retention", "retention_low", "retention_high"]
_MARGIN = ["margin_difference", "margin_low", "margin_high"]
_PARSED = ["parsed_difference", "parsed_low", "parsed_high", "parsed_n"]
_NUMBERS = [*_PAIRED, *_FURTHER, *_MARGIN, *_PARSED]
DIFFERENCE_COLUMNS = ["run", "arm", "task", "role", "profile", "step", *_NUMBERS, "unpaired", "status", "note"]
AVERAGE_COLUMNS = ["run", "arm", "profile", "step", *_ESTIMATE, "n_tasks", "status", "note"]


def each(table: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table, read by column name: ``row.step``."""
    yield from table.itertuples(index=False)


def accuracy_rows(measurements: pd.DataFrame) -> pd.DataFrame:
    """Rows of lm-eval accuracy, whatever their status."""
    return measurements[(measurements["probe"] == "lm_eval") & (measurements["quantity"] == "accuracy")]


def difference_table(
    runs: pd.DataFrame,
    measurements: pd.DataFrame,
    scores: Scores,
    accuracies: Accuracies,
    target: str,
    priors: Sequence[str],
) -> pd.DataFrame:
    """Per (run, task, step > 0): mean change of ``correct`` since step 0 over the items stored at both steps.

    Differences are fractions; ``unpaired`` counts items stored at one of the two steps only. ``p_value`` is McNemar's
    mid-p, or the t test's where items share clusters; ``detectable`` the true change that this n and flip rate would
    show with 80 % power; ``retention`` is corrected for chance; margins are in nats; ``parsed_difference`` is the
    change among the ``parsed_n`` generated answers that could be read at both steps. Where an accuracy row is absent or
    not ``ok``, or no item can be paired, the numbers are NaN and ``status`` and ``note`` say why. A task in
    ``accuracies`` has no items: its changes are unpaired, its ``note`` says so, and what takes items is NaN.
    """
    stored = {(row.run, row.group, row.step): row for row in each(accuracy_rows(measurements))}
    chances = measurements[(measurements["quantity"] == "chance") & (measurements["step"] == 0)]
    chance = {(row.run, row.group): row.value for row in each(chances)}
    rows = []
    for run, arm in zip(runs["run"], runs["arm"], strict=True):
        steps = sorted(set(measurements.loc[measurements["run"] == run, "step"]) - {0})
        for task in (target, *priors):
            found, unpaired = scores.get((run, task)), accuracies.get((run, task))
            boots = {} if found is None else _bootstraps(found)
            for step in steps:
                status, note = _unusable(stored, run, task, step)
                row: dict[str, Any] = {"run": run, "arm": arm, "task": task, "step": step}
                row |= {"role": "target" if task == target else "prior", "status": status, "note": note}
                told = found or unpaired
                row["profile"] = None if told is None else told.profile
                if status == "ok" and unpaired is not None:
                    row |= unpaired.difference(step)
                elif status == "ok":
                    row |= _pair(found, step, chance.get((run, task)))
                    row |= boots.get(step, {}) if row["status"] == "ok" else {}
                rows.append(row)
    table = pd.DataFrame(rows, columns=DIFFERENCE_COLUMNS).astype(dict.fromkeys(_NUMBERS, "float64"))
    table = table.sort_values("step", kind="stable").sort_values("run", kind="stable", key=_as_listed(runs))
    return table.reset_index(drop=True)


def _as_listed(runs: pd.DataFrame) -> Any:
    order = {run: number for number, run in enumerate(runs["run"])}
    return lambda column: column.map(order)


def average_table(differences: pd.DataFrame, priors: Sequence[str], profiles: Mapping[str, str]) -> pd.DataFrame:
    """Per (run, profile, step > 0): unweighted mean change over ``priors``, the target left out.

    An average over fewer tasks is another quantity, so one prior task without a difference makes the row NaN.
    """
    rows = []
    chosen = differences[differences["task"].isin(priors)]
    chosen = chosen.assign(profile=chosen["task"].map(dict(profiles)))
    for (run, arm, profile, step), part in chosen.groupby(["run", "arm", "profile", "step"], sort=False):
        row: dict[str, Any] = {"run": run, "arm": arm, "profile": profile, "step": step}
        missing = part[part["status"] != "ok"]
        if len(missing):
            listed = ", ".join(
                f"{task} {status}" for task, status in missing[["task", "status"]].itertuples(index=False)
            )
            row |= {"n_tasks": len(part) - len(missing), "status": "not measured", "note": listed}
        else:
            row |= asdict(average_difference([_result(row._asdict()) for row in each(part)]))
            # Unknown in one task is unknown in the average.
            flips = {name: part[name].sum(skipna=False) for name in ("gained", "lost")}
            row |= flips | {"status": "ok", "note": None}
        rows.append(row)
    return pd.DataFrame(rows, columns=AVERAGE_COLUMNS).astype(dict.fromkeys(_ESTIMATE, "float64"))


def prior_average_table(
    measurements: pd.DataFrame, target: str, priors: Sequence[str], profiles: Mapping[str, str]
) -> pd.DataFrame:
    """Per (run, profile, step) where the target and every such prior have an accuracy: their unweighted mean.

    Accuracies are fractions.
    """
    ok = accuracy_rows(measurements)
    ok = ok[ok["status"] == "ok"]
    rows = []
    for (run, arm, step), part in ok.groupby(["run", "arm", "step"], sort=False):
        values = dict(zip(part["group"], part["value"], strict=True))
        for profile in dict.fromkeys(profiles[task] for task in priors):
            tasks = [task for task in priors if profiles[task] == profile]
            if all(task in values for task in (target, *tasks)):
                mean = sum(values[task] for task in tasks) / len(tasks)
                rows.append((run, arm, profile, step, mean, values[target], len(tasks)))
    return pd.DataFrame(rows, columns=["run", "arm", "profile", "step", "prior_average", "target_accuracy", "n_tasks"])


def _unusable(accuracies: Mapping[Any, Any], run: str, task: str, step: int) -> tuple[str, str | None]:
    """Status and note of the first of the two accuracies that is not there; ``ok`` when both are."""
    for at in (0, step):
        row = accuracies.get((run, task, at))
        if row is None:
            return "not measured", f"no accuracy row at step {at}"
        if row.status != "ok":
            return row.status, f"step {at}: {row.note or 'no reason stored'}"
    return "ok", None


def _pair(found: TaskScores | None, step: int, chance: float | None) -> dict[str, Any]:
    base, tuned = (None, None) if found is None else (found.at(0), found.at(step))
    if found is None or base is None or tuned is None:
        return {"status": "not measured", "note": f"no items stored at step {0 if base is None else step}"}
    common = np.isfinite(base) & np.isfinite(tuned)
    unpaired = int((np.isfinite(base) ^ np.isfinite(tuned)).sum())
    if not common.any():
        return {"status": "failed", "note": f"steps 0 and {step} share no item", "unpaired": unpaired}
    clusters, strata = found.choose(common)
    result = paired_difference(base[common], tuned[common], clusters, strata)
    row = asdict(result) | {"unpaired": unpaired}
    flips, independent = (result.gained + result.lost) / result.n, result.n_clusters == result.n
    if independent:
        row["p_value"] = mcnemar_midp(result.gained, result.lost)
    elif result.stderr is not None:
        row["p_value"] = 2 * float(stats.t.sf(abs(result.difference) / result.stderr, result.n_clusters - 1))
    # Clusters widen the error beyond that of independent items with the same flips.
    plain = flips - result.difference**2
    effect = 1.0 if result.stderr is None or plain <= 0 else max(1.0, result.stderr**2 * result.n / plain)
    if result.stderr is not None:
        row["detectable"] = minimal_detectable_difference(result.n, flips, design_effect=1.0 if independent else effect)
    if chance is not None and np.isfinite(chance):
        kept = retention(base[common], tuned[common], chance, clusters, strata)
        if kept is not None:
            row |= {"retention": kept.value, "retention_low": kept.low, "retention_high": kept.high}
    return row | (_among_parsed(found, step) if found.generated else _margins(found, step))


def _among_parsed(found: TaskScores, step: int) -> dict[str, Any]:
    """Change of the items whose answer could be read at both steps: what is lost there is not lost format."""
    rows = [found.steps.index(0), found.steps.index(step)]
    both = (found.parsed[rows] == 1.0).all(axis=0)
    if not both.any():
        return {"parsed_n": 0}
    base, tuned = found.correct[rows][:, both]
    result = paired_difference(base, tuned, *found.choose(both))
    ends = {"parsed_difference": result.difference, "parsed_low": result.low, "parsed_high": result.high}
    return ends | {"parsed_n": result.n}


def _margins(found: TaskScores, step: int) -> dict[str, Any]:
    """Mean change of the log-likelihood margin, which moves long before answers flip."""
    change = found.margin[found.steps.index(step)] - found.margin[found.steps.index(0)]
    finite = np.isfinite(change)
    if not finite.any():
        return {}
    mean = clustered_mean(change[finite], *found.choose(finite))
    return {"margin_difference": mean.mean, "margin_low": mean.low, "margin_high": mean.high}


def _bootstraps(found: TaskScores) -> dict[int, dict[str, float]]:
    """Percentile bootstrap interval of each step's change, over the items stored at the base and there."""
    base = found.at(0)
    if base is None:
        return {}
    ends: dict[int, dict[str, float]] = {}
    masks = {step: np.isfinite(base) & np.isfinite(found.correct[found.steps.index(step)]) for step in found.steps}
    # Steps with the same items, mostly all of them, share the draws.
    for key in {mask.tobytes(): mask for mask in masks.values()}.values():
        steps = [step for step in found.steps if step > 0 and np.array_equal(masks[step], key)]
        clusters, strata = found.choose(key)
        if not steps or len(set(clusters)) < 2:
            continue
        changes = np.stack([found.correct[found.steps.index(step)][key] - base[key] for step in steps], axis=1)
        for step, interval in zip(steps, bootstrap_intervals(changes, clusters, strata, seed=SEED), strict=True):
            ends[step] = {"bootstrap_low": interval.low, "bootstrap_high": interval.high}
    return ends


def _result(record: Mapping[str, Any]) -> PairedDifference:
    values: dict[str, Any] = {name: None if pd.isna(record[name]) else float(record[name]) for name in _PAIRED}
    values |= {name: int(record[name]) for name in ("n", "n_clusters")}
    return PairedDifference(**values)
