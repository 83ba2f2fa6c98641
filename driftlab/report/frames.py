"""Runs to the tidy pandas tables of a report.

In every table ``run`` is the label a reader sees and ``arm`` decides the colour. A number that is missing is NaN beside
a ``status`` that is not ``ok`` and a ``note`` that says why; it is never 0 and never left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from driftlab.drift.curves import MARGIN
from driftlab.report.arms import control_table, seed_table
from driftlab.report.lost import lost_table
from driftlab.report.pairing import accuracy_rows, average_table, difference_table, prior_average_table
from driftlab.report.problems import problem_table
from driftlab.report.rules import rule_table
from driftlab.report.runs import (
    RunData,
    check_together,
    distinct_arms,
    item_texts,
    prior_tasks,
    record_table,
    run_labels,
    run_row,
    target_task,
    update_table,
)
from driftlab.report.scores import Scores, TaskScores, named_profile, task_scores
from driftlab.report.unpaired import TaskAccuracies, task_accuracies, with_controls, with_seeds
from driftlab.report.verdicts import target_table, verdict_tables
from driftlab.run.records import CoverageItem, Example, Measurement


@dataclass(frozen=True, kw_only=True, slots=True)
class Frames:
    """The tidy tables of one report; runs keep the order given.

    Attributes:
        target: lm-eval name of the task trained on.
        priors: names of the other tasks.
        averaged: the priors that count in an average; one none of whose items ever changes, in any run, does not.
        profiles: how each prior task is measured, log-likelihood or generative; they are never averaged together.
        margin: largest change that still counts as stable, a fraction.
        runs: one row per run: run, arm, control, settings (ES and anchor, as text), run_id, name, seed, status, error,
            last_step (last measured), updates, notices.
        measurements: the stored rows, with run and arm.
        updates: per iteration: reward (mean over members), reward_low, reward_high, step_norm, step_cosine, note, ...
        examples: the stored rows, with run and arm.
        coverage: the stored problems of sampled answers, with run and arm; empty where no run has any.
        differences: per (run, task, step > 0): paired change since step 0 as a fraction, and what could not be paired.
        averages: per (run, profile, step > 0): unweighted mean change; only when every prior could be paired.
        prior_averages: per (run, profile, step): mean accuracy over priors, and ``target_accuracy``; same rule.
        verdicts, bands: on prior tasks and their average, see ``verdicts.verdict_tables``.
        targets: verdicts on target accuracy and training reward, with the peak's interval.
        seeds: per (arm, task, step): mean change over the arm's runs.
        controls: every arm beside its shuffled-reward arm, and beside the first arm.
        rules: which step each stopping rule would have chosen.
        floors: per task: largest difference and share of flips between two scorings of the base.
        lost: items that were right at the base and wrong later.
        peaks: per run: highest training reward and highest target accuracy, and the step (first of equals).
        problems: what failed, was skipped, was not measured, or does not agree with itself.
    """

    target: str
    priors: tuple[str, ...]
    averaged: tuple[str, ...]
    profiles: Mapping[str, str]
    margin: float
    runs: pd.DataFrame
    measurements: pd.DataFrame
    updates: pd.DataFrame
    examples: pd.DataFrame
    coverage: pd.DataFrame
    differences: pd.DataFrame
    averages: pd.DataFrame
    prior_averages: pd.DataFrame
    verdicts: pd.DataFrame
    bands: pd.DataFrame
    targets: pd.DataFrame
    seeds: pd.DataFrame
    controls: pd.DataFrame
    rules: pd.DataFrame
    floors: pd.DataFrame
    lost: pd.DataFrame
    peaks: pd.DataFrame
    problems: pd.DataFrame

    @property
    def repeated(self) -> bool:
        """Whether some arm has several runs, so that arms and not runs are compared."""
        return bool(self.runs["arm"].duplicated().any())

    def rows(self, quantity: str, *, probe: str, ok: bool = True) -> pd.DataFrame:
        """Measurements of one quantity; only those with status ``ok`` unless told otherwise."""
        table = self.measurements
        chosen = (table["probe"] == probe) & (table["quantity"] == quantity)
        return table[chosen & (table["status"] == "ok")] if ok else table[chosen]


def build_frames(runs: Sequence[RunData], *, margin: float = MARGIN) -> Frames:
    """Tidy tables of runs that share base model and target.

    Args:
        margin: largest change that still counts as stable, a fraction.

    Raises:
        DriftlabError: no run, a run without measurements, or runs that cannot stand in one report.
    """
    runs = distinct_arms(runs)
    check_together(runs)
    labels = run_labels(runs)
    target = target_task(runs[0].manifest)
    pairs = list(zip(labels, runs, strict=True))
    measurements = record_table(pairs, "measurements", Measurement)
    priors = prior_tasks(runs, measurements, target)
    examples = record_table(pairs, "examples", Example)
    scores, accuracies = task_scores(examples), task_accuracies(pairs)
    evidence: dict[tuple[str, str], TaskScores | TaskAccuracies] = {**accuracies, **scores}
    inert = inert_tasks(scores)
    averaged = tuple(task for task in priors if task not in inert)
    found = {task: one.profile for (_, task), one in evidence.items()}
    profiles = {task: found.get(task, named_profile(task)) for task in priors}
    updates = update_table(pairs)
    table = pd.DataFrame([run_row(label, run) for label, run in pairs])
    differences = difference_table(table, measurements, scores, accuracies, target, priors)
    averages = average_table(differences, averaged, profiles)
    verdicts, bands = verdict_tables(table, evidence, priors, averaged, profiles, margin=margin)
    rewards = {
        label: [update.rewards for update in run.updates] for label, run in pairs if "imported" not in run.manifest.spec
    }
    peaks = _peaks(labels, target, measurements, updates)
    targets = target_table(table, evidence, rewards, target, margin=margin)
    tasks = (target, averaged, profiles)
    return Frames(
        target=target,
        priors=priors,
        averaged=averaged,
        profiles=profiles,
        margin=margin,
        runs=table,
        measurements=measurements,
        updates=updates,
        examples=examples,
        coverage=record_table(pairs, "coverage", CoverageItem),
        differences=differences,
        averages=averages,
        prior_averages=prior_average_table(measurements, target, averaged, profiles),
        verdicts=verdicts,
        bands=bands,
        targets=targets,
        seeds=with_seeds(seed_table(table, scores, *tasks), table, accuracies, *tasks),
        controls=with_controls(control_table(table, scores, *tasks), table, accuracies, *tasks),
        rules=rule_table(table, peaks, bands, differences, averages),
        floors=_floors(measurements, (target, *priors)),
        lost=lost_table(examples, item_texts(runs), priors),
        peaks=peaks,
        problems=problem_table(table, measurements, updates, examples, (target, *priors), inert, accuracies),
    )


def inert_tasks(scores: Scores) -> tuple[str, ...]:
    """Tasks none of whose items changed at any step of any run: they say nothing, and would narrow an average.

    A run with the base only says nothing either way.
    """
    moved: dict[str, bool] = {}
    for (_, task), found in scores.items():
        if len(found.steps) > 1:
            spread = np.nanmax(found.correct, axis=0) - np.nanmin(found.correct, axis=0)
            moved[task] = moved.get(task, False) or bool((spread > 0).any())
    return tuple(task for task, changed in moved.items() if not changed)


def _floors(measurements: pd.DataFrame, tasks: Sequence[str]) -> pd.DataFrame:
    """Per task: the largest absolute difference and share of flips over all variants and runs."""
    floor = measurements[(measurements["probe"] == "floor") & (measurements["status"] == "ok")]
    rows = []
    for task in tasks:
        own = floor[floor["group"] == task]
        difference = own[own["quantity"].str.startswith("floor_difference_")]
        flips = own[own["quantity"].str.startswith("floor_flips_")]
        if len(difference) and len(flips):
            variants = sorted(set(flips["quantity"].str.removeprefix("floor_flips_")))
            values = (float(difference["value"].abs().max()), float(flips["value"].max()))
            rows.append((task, *values, int(flips["n"].max()), ", ".join(variants)))
    return pd.DataFrame(rows, columns=["task", "difference", "flips", "n", "variants"])


def _peaks(labels: Sequence[str], target: str, measurements: pd.DataFrame, updates: pd.DataFrame) -> pd.DataFrame:
    accuracy = accuracy_rows(measurements)
    accuracy = accuracy[(accuracy["group"] == target) & (accuracy["status"] == "ok")]
    rewards = updates.rename(columns={"reward": "value"}).dropna(subset="value")
    rows = []
    for label in labels:
        for name, table in (("training reward", rewards), ("target accuracy", accuracy)):
            own = table[table["run"] == label].sort_values("step", kind="stable")
            if len(own):
                best = own.iloc[int(own["value"].to_numpy().argmax())]
                rows.append({"run": label, "quantity": name, "step": int(best["step"]), "value": float(best["value"])})
    return pd.DataFrame(rows, columns=["run", "quantity", "step", "value"])
