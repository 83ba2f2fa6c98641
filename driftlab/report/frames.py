"""Runs to tidy pandas tables. The only module of the report that reads runs.

In every table ``run`` is the label a reader sees and ``arm`` decides the colour. A number that is missing is NaN beside
a ``status`` that is not ``ok`` and a ``note`` that says why; it is never 0 and never left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from driftlab.errors import DriftlabError
from driftlab.report.pairing import average_table, difference_table, prior_average_table
from driftlab.report.problems import problem_table
from driftlab.run.records import Example, Measurement, Update
from driftlab.run.store import Manifest, RunStore
from driftlab.tasks.targets import TARGETS


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """Everything a report uses of one run; ``notices`` says in words what was repaired while reading."""

    path: Path
    manifest: Manifest
    updates: Sequence[Update]
    measurements: Sequence[Measurement]
    examples: Sequence[Example]
    notices: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Frames:
    """The tidy tables of one report; runs keep the order given.

    Attributes:
        target: lm-eval name of the task trained on.
        priors: names of the other tasks.
        runs: one row per run: run, arm, run_id, name, seed, status, error, last_step (last measured),
            updates, notices.
        measurements: the stored rows, with run and arm.
        updates: per iteration: reward (mean over members), reward_low, reward_high, step_norm, step_cosine, note, ...
        examples: the stored rows, with run and arm.
        differences: per (run, task, step > 0): paired change since step 0 as a fraction, and what could not be paired.
        averages: per (run, step > 0): unweighted mean change over ``priors``; only when every prior could be paired.
        prior_averages: per (run, step): mean accuracy over ``priors`` and ``target_accuracy``; same rule.
        peaks: per run: highest training reward and highest target accuracy, and the step (first of equals).
        problems: what failed, was skipped, was not measured, or does not agree with itself.
    """

    target: str
    priors: tuple[str, ...]
    runs: pd.DataFrame
    measurements: pd.DataFrame
    updates: pd.DataFrame
    examples: pd.DataFrame
    differences: pd.DataFrame
    averages: pd.DataFrame
    prior_averages: pd.DataFrame
    peaks: pd.DataFrame
    problems: pd.DataFrame

    def rows(self, quantity: str, *, probe: str, ok: bool = True) -> pd.DataFrame:
        """Measurements of one quantity; only those with status ``ok`` unless told otherwise."""
        table = self.measurements
        chosen = (table["probe"] == probe) & (table["quantity"] == quantity)
        return table[chosen & (table["status"] == "ok")] if ok else table[chosen]


def read_run(path: Path) -> RunData:
    """Read a stored run. Raises RunError when it cannot be read."""
    store = RunStore.open(path)
    examples = [example for step in store.example_steps() for example in store.examples(step)]
    return RunData(
        path=path,
        manifest=store.manifest,
        updates=store.updates(),
        measurements=store.measurements(),
        examples=examples,
        notices=tuple(store.notices),
    )


def build_frames(runs: Sequence[RunData]) -> Frames:
    """Tidy tables of runs that share base model and target.

    Raises:
        DriftlabError: no run, a run without measurements, or runs that cannot stand in one report.
    """
    _check(runs)
    labels = run_labels(runs)
    target = target_task(runs[0].manifest)
    pairs = list(zip(labels, runs, strict=True))
    measurements = _table(pairs, "measurements", Measurement)
    priors = _priors(runs, measurements, target)
    examples = _table(pairs, "examples", Example)
    updates = _updates(pairs)
    table = pd.DataFrame([_run_row(label, run) for label, run in pairs])
    differences = difference_table(table, measurements, examples, target, priors)
    return Frames(
        target=target,
        priors=priors,
        runs=table,
        measurements=measurements,
        updates=updates,
        examples=examples,
        differences=differences,
        averages=average_table(differences, priors),
        prior_averages=prior_average_table(measurements, target, priors),
        peaks=_peaks(labels, target, measurements, updates),
        problems=problem_table(table, measurements, updates, examples, (target, *priors)),
    )


def target_task(manifest: Manifest) -> str:
    """lm-eval name of the task trained on; a target of somebody else's is taken to be named as its lm-eval task."""
    name = str(manifest.spec["target"]["task"])
    return TARGETS[name].lm_eval_task if name in TARGETS else name


def run_labels(runs: Sequence[RunData]) -> list[str]:
    """What a reader calls each run: its arm; with the seed, then the name or a number, where arms repeat."""
    specs = [run.manifest.spec for run in runs]
    labels = [str(spec["arm"]) for spec in specs]
    for detail in ("seed", "name"):
        counts = Counter(labels)
        labels = [
            label if counts[label] == 1 else f"{label}, {detail} {spec[detail]}"
            for label, spec in zip(labels, specs, strict=True)
        ]
    counts = Counter(labels)
    return [label if counts[label] == 1 else f"{label}, run {i}" for i, label in enumerate(labels, start=1)]


def _check(runs: Sequence[RunData]) -> None:
    if not runs:
        raise DriftlabError("a report needs at least one run")
    for run in runs:
        if not run.measurements:
            raise DriftlabError(
                f"run {run.manifest.run_id} holds no measurement (status {run.manifest.status}); "
                "finish it with --resume, or leave it out"
            )
    for what, read in (
        ("target task", lambda manifest: target_task(manifest)),
        ("base model", lambda manifest: manifest.model["weights_hash"]),
        ("served dtype", lambda manifest: manifest.spec["model"]["dtype"]),
        *((f"items and prompts of {task}", _tasks_hash(task)) for task in _common_tasks(runs)),
    ):
        seen = {read(run.manifest): run.manifest.run_id for run in reversed(runs)}
        if len(seen) > 1:
            listed = ", ".join(f"{run_id} has {value}" for value, run_id in sorted(seen.items()))
            raise DriftlabError(f"runs in one report must share the {what}: {listed}; report them apart")


def _common_tasks(runs: Sequence[RunData]) -> list[str]:
    return sorted(set.intersection(*(set(run.manifest.tasks) for run in runs)))


def _tasks_hash(task: str) -> Callable[[Manifest], str]:
    return lambda manifest: str(manifest.tasks[task])


def _table(pairs: Sequence[tuple[str, RunData]], name: str, kind: type[Any]) -> pd.DataFrame:
    columns = [field.name for field in fields(kind)]
    records = [
        (label, run.manifest.spec["arm"], *(getattr(record, column) for column in columns))
        for label, run in pairs
        for record in getattr(run, name)
    ]
    table = pd.DataFrame(records, columns=["run", "arm", *columns])
    numbers = [column for column in ("value", "stderr", "score", "correct") if column in table]
    return table.astype(dict.fromkeys(numbers, "float64"))


def _updates(pairs: Sequence[tuple[str, RunData]]) -> pd.DataFrame:
    rows = [
        {
            "run": label,
            "arm": run.manifest.spec["arm"],
            "step": update.step,
            "reward": float(np.mean(update.rewards)),
            "reward_low": min(update.rewards),
            "reward_high": max(update.rewards),
            "members": len(update.rewards),
            "population": update.population,
            "sigma": update.sigma,
            "alpha": update.alpha,
            "penalty": update.penalty,
            "decay": update.decay,
            "step_norm": update.step_norm,
            "step_cosine": float("nan") if update.step_cosine is None else update.step_cosine,
            "seconds": update.seconds["total"],
            "note": update.note,
        }
        for label, run in pairs
        for update in run.updates
    ]
    columns = "run arm step reward reward_low reward_high members population sigma alpha penalty decay step_norm"
    return pd.DataFrame(rows, columns=[*columns.split(), "step_cosine", "seconds", "note"])


def _run_row(label: str, run: RunData) -> dict[str, Any]:
    manifest = run.manifest
    return {
        "run": label,
        "arm": manifest.spec["arm"],
        "run_id": manifest.run_id,
        "name": manifest.spec["name"],
        "seed": manifest.spec["seed"],
        "status": manifest.status,
        "error": manifest.error,
        "last_step": max(row.step for row in run.measurements),
        "updates": len(run.updates),
        "notices": tuple(run.notices),
    }


def _priors(runs: Sequence[RunData], measurements: pd.DataFrame, target: str) -> tuple[str, ...]:
    """Tasks other than the target: as the specs list them, then any other that was measured."""
    listed = [task for run in runs for task in ((run.manifest.spec["probes"].get("lm_eval") or {}).get("tasks") or ())]
    measured = sorted(set(measurements.loc[measurements["probe"] == "lm_eval", "group"]))
    return tuple(task for task in dict.fromkeys([*listed, *measured]) if task != target)


def _peaks(labels: Sequence[str], target: str, measurements: pd.DataFrame, updates: pd.DataFrame) -> pd.DataFrame:
    accuracy = measurements[
        (measurements["probe"] == "lm_eval")
        & (measurements["quantity"] == "accuracy")
        & (measurements["group"] == target)
        & (measurements["status"] == "ok")
    ]
    rewards = updates.rename(columns={"reward": "value"})
    rows = []
    for label in labels:
        for name, table in (("training reward", rewards), ("target accuracy", accuracy)):
            own = table[table["run"] == label].sort_values("step", kind="stable")
            if len(own):
                best = own.iloc[int(own["value"].to_numpy().argmax())]
                rows.append({"run": label, "quantity": name, "step": int(best["step"]), "value": float(best["value"])})
    return pd.DataFrame(rows, columns=["run", "quantity", "step", "value"])
