"""Every checkpoint beside the base model, item by item: tables of paired changes and of averages over tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from driftlab.drift.stats import PairedDifference, average_difference, paired_difference

NAN = float("nan")
_ESTIMATE = ["difference", "stderr", "low", "high", "n", "gained", "lost"]
_PAIRED = [*_ESTIMATE, "n_clusters"]
DIFFERENCE_COLUMNS = ["run", "arm", "task", "role", "step", *_PAIRED, "unpaired", "status", "note"]
AVERAGE_COLUMNS = ["run", "arm", "step", *_ESTIMATE, "n_tasks", "status", "note"]


def each(table: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table, read by column name: ``row.step``."""
    yield from table.itertuples(index=False)


def accuracy_rows(measurements: pd.DataFrame) -> pd.DataFrame:
    """Rows of lm-eval accuracy, whatever their status."""
    return measurements[(measurements["probe"] == "lm_eval") & (measurements["quantity"] == "accuracy")]


def difference_table(
    runs: pd.DataFrame, measurements: pd.DataFrame, examples: pd.DataFrame, target: str, priors: Sequence[str]
) -> pd.DataFrame:
    """Per (run, task, step > 0): mean change of ``correct`` since step 0 over the items stored at both steps.

    Differences are fractions; ``unpaired`` counts items stored at one of the two steps only. Where an accuracy row is
    absent or not ``ok``, or no item can be paired, the numbers are NaN and ``status`` and ``note`` say why.
    """
    # Items of equal content share a hash; their order in the file, which is fixed, tells them apart.
    occurrence = examples.groupby(["run", "step", "task", "item"]).cumcount()
    keyed = examples.assign(occurrence=occurrence).set_index(["item", "occurrence"])
    stored: dict[Any, pd.DataFrame] = dict(iter(keyed.groupby(["run", "task", "step"])))
    accuracies = {(row.run, row.group, row.step): row for row in each(accuracy_rows(measurements))}
    rows = []
    for run, arm in zip(runs["run"], runs["arm"], strict=True):
        steps = sorted(set(measurements.loc[measurements["run"] == run, "step"]) - {0})
        for step in steps:
            for task in (target, *priors):
                status, note = _unusable(accuracies, run, task, step)
                row: dict[str, Any] = {"run": run, "arm": arm, "task": task, "step": step}
                row |= {"role": "target" if task == target else "prior", "status": status, "note": note}
                if status == "ok":
                    row |= _pair(stored.get((run, task, 0)), stored.get((run, task, step)), step)
                rows.append(row)
    return pd.DataFrame(rows, columns=DIFFERENCE_COLUMNS).astype(dict.fromkeys(_PAIRED, "float64"))


def average_table(differences: pd.DataFrame, priors: Sequence[str]) -> pd.DataFrame:
    """Per (run, step > 0): unweighted mean change over the prior tasks, the target left out.

    An average over fewer tasks is another quantity, so one prior task without a difference makes the row NaN.
    """
    rows = []
    chosen = differences[differences["task"].isin(priors)]
    for (run, arm, step), part in chosen.groupby(["run", "arm", "step"], sort=False):
        row: dict[str, Any] = {"run": run, "arm": arm, "step": step}
        missing = part[part["status"] != "ok"]
        if len(missing):
            listed = ", ".join(
                f"{task} {status}" for task, status in missing[["task", "status"]].itertuples(index=False)
            )
            row |= {"n_tasks": len(part) - len(missing), "status": "not measured", "note": listed}
        else:
            row |= asdict(average_difference([_result(row._asdict()) for row in each(part)]))
            row |= {"gained": part["gained"].sum(), "lost": part["lost"].sum(), "status": "ok", "note": None}
        rows.append(row)
    return pd.DataFrame(rows, columns=AVERAGE_COLUMNS).astype(dict.fromkeys(_ESTIMATE, "float64"))


def prior_average_table(measurements: pd.DataFrame, target: str, priors: Sequence[str]) -> pd.DataFrame:
    """Per (run, step) where the target and every prior have an accuracy: the priors' unweighted mean, and the target's.

    Both are fractions.
    """
    ok = accuracy_rows(measurements)
    ok = ok[ok["status"] == "ok"]
    rows = []
    for (run, arm, step), part in ok.groupby(["run", "arm", "step"], sort=False):
        values = dict(zip(part["group"], part["value"], strict=True))
        if priors and all(task in values for task in (target, *priors)):
            mean = sum(values[task] for task in priors) / len(priors)
            rows.append((run, arm, step, mean, values[target], len(priors)))
    return pd.DataFrame(rows, columns=["run", "arm", "step", "prior_average", "target_accuracy", "n_tasks"])


def _unusable(accuracies: Mapping[Any, Any], run: str, task: str, step: int) -> tuple[str, str | None]:
    """Status and note of the first of the two accuracies that is not there; ``ok`` when both are."""
    for at in (0, step):
        row = accuracies.get((run, task, at))
        if row is None:
            return "not measured", f"no accuracy row at step {at}"
        if row.status != "ok":
            return row.status, f"step {at}: {row.note or 'no reason stored'}"
    return "ok", None


def _pair(base: pd.DataFrame | None, tuned: pd.DataFrame | None, step: int) -> dict[str, Any]:
    if base is None or tuned is None:
        return {"status": "not measured", "note": f"no items stored at step {0 if base is None else step}"}
    common = base.index.intersection(tuned.index)
    unpaired = len(base) + len(tuned) - 2 * len(common)
    if not len(common):
        return {"status": "failed", "note": f"steps 0 and {step} share no item", "unpaired": unpaired}
    before, after = base.loc[common], tuned.loc[common]
    result = paired_difference(before["correct"], after["correct"], before["cluster"].tolist())
    return asdict(result) | {"unpaired": unpaired}


def _result(record: Mapping[str, Any]) -> PairedDifference:
    values: dict[str, Any] = {name: None if pd.isna(record[name]) else float(record[name]) for name in _PAIRED}
    values |= {name: int(record[name]) for name in ("n", "n_clusters", "gained", "lost")}
    return PairedDifference(**values)
