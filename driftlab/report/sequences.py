"""Sequences of stages as tidy tables: accuracy after each stage, transfer, norms and angles, with their meanings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift import sequences
from driftlab.drift.paired import over_seeds
from driftlab.drift.sequences import Change, Estimate, TaskRecord
from driftlab.drift.stats import Array
from driftlab.errors import DriftlabError
from driftlab.report.pairing import accuracy_rows
from driftlab.report.runs import RunData, prior_tasks, record_table, target_task
from driftlab.report.scores import Scores, task_scores
from driftlab.report.sequence_columns import table
from driftlab.run.records import Example, Measurement, Update

MEAN = "mean"
BASE = "base"

Place = tuple[str, int]
"""A run, by its place among all, and a measured step of it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SequenceData:
    """One sequence of one arm.

    Attributes:
        seed: of the sequence; later stages have seeds derived from it.
        targets: target tasks in the order in which they were trained on.
        walks: whether the weights took steps along fresh noise, so that the random-walk law speaks of them.
        runs: one per stage, finished.
        products: inner products [K, K] of the stage displacements.
        parameters: d, a tied tensor once.
    """

    seed: int
    targets: tuple[str, ...]
    walks: bool
    runs: tuple[RunData, ...]
    products: Array
    parameters: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SequenceFrames:
    """What a page of sequences tells; ``COLUMNS`` says what the columns of its tables mean.

    Attributes:
        arm, name: of the spec.
        targets: target tasks by name, in order; ``evaluations`` their lm-eval tasks, ``priors`` the other tasks.
        seeds: training seeds, one sequence each.
        runs: of all stages, sequence by sequence.
        matrix, per_seed, transfer, norms, angles, repeats: tidy tables.
    """

    arm: str
    name: str
    targets: tuple[str, ...]
    evaluations: tuple[str, ...]
    priors: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: tuple[RunData, ...]
    matrix: pd.DataFrame
    per_seed: pd.DataFrame
    transfer: pd.DataFrame
    norms: pd.DataFrame
    angles: pd.DataFrame
    repeats: pd.DataFrame

    @property
    def tasks(self) -> tuple[str, ...]:
        return (*self.evaluations, *self.priors)


def build_sequences(data: Sequence[SequenceData]) -> SequenceFrames:
    """The tables of an arm's sequences, one per seed.

    Raises:
        DriftlabError: a stage measured other items or prompts than another.
    """
    first = data[0]
    runs = tuple(run for one in data for run in one.runs)
    _refuse_other_items(runs)
    labelled = [(str(index), run) for index, run in enumerate(runs)]
    measurements = record_table(labelled, "measurements", Measurement)
    scores = task_scores(record_table(labelled, "examples", Example))
    evaluations = tuple(target_task(run.manifest) for run in first.runs)
    priors = tuple(task for task in prior_tasks(runs, measurements, evaluations[0]) if task not in evaluations)
    places = _places(data)
    records = {task: _record(task, places, scores) for task in (*evaluations, *priors)}
    targets = [records[task] for task in evaluations]
    spec = first.runs[0].manifest.spec
    return SequenceFrames(
        arm=str(spec["arm"]),
        name=str(spec["name"]),
        targets=first.targets,
        evaluations=evaluations,
        priors=priors,
        seeds=tuple(one.seed for one in data),
        runs=runs,
        matrix=_matrix(records, evaluations, _notes(accuracy_rows(measurements), places)),
        per_seed=_per_seed(records, [one.seed for one in data]),
        transfer=_transfer(targets, evaluations),
        norms=_norms(data),
        angles=_angles(data),
        repeats=_repeats(data, places, scores),
    )


def _places(data: Sequence[SequenceData]) -> list[list[Place]]:
    """By seed, where each checkpoint was measured: the base at the start of stage 1, others at the end of theirs."""
    found, number = [], 0
    for one in data:
        ends = [max(row.step for row in run.measurements) for run in one.runs]
        found.append([(str(number), 0), *((str(number + index), end) for index, end in enumerate(ends))])
        number += len(one.runs)
    return found


def _refuse_other_items(runs: Sequence[RunData]) -> None:
    first = runs[0].manifest
    for run in runs[1:]:
        for task in sorted(first.tasks.keys() | run.manifest.tasks.keys()):
            if first.tasks.get(task) != run.manifest.tasks.get(task):
                raise DriftlabError(
                    f"all stages must measure the same items and prompts, but those of {task} differ between "
                    f"{first.run_id} and {run.manifest.run_id}: run the sequence anew with another --out"
                )


def _record(task: str, places: Sequence[Sequence[Place]], scores: Scores) -> TaskRecord | None:
    """None where no stage stored an item of the task."""
    known = [scores[run, task] for checkpoints in places for run, _ in checkpoints if (run, task) in scores]
    if not known:
        return None
    like = known[0]
    correct = []
    for checkpoints in places:
        rows = np.full((len(checkpoints), len(like.items)), np.nan)
        for row, (run, step) in enumerate(checkpoints):
            own = scores.get((run, task))
            if own is not None and step in own.steps:
                rows[row] = own.aligned(like, step)
        correct.append(rows)
    return TaskRecord(correct=correct, clusters=like.clusters, strata=like.strata)


def _notes(accuracies: pd.DataFrame, places: Sequence[Sequence[Place]]) -> dict[tuple[str, int], str]:
    """By task and checkpoint, why its accuracy is missing somewhere."""
    stored = {(row.run, row.step, row.group): row for row in accuracies.itertuples(index=False)}
    notes: dict[tuple[str, int], str] = {}
    for task in sorted(set(accuracies["group"])):
        for checkpoints in places:
            for checkpoint, (run, step) in enumerate(checkpoints):
                row: Any = stored.get((run, step, task))
                if row is None:
                    notes.setdefault((task, checkpoint), "no accuracy was stored")
                elif row.status != "ok":
                    notes.setdefault((task, checkpoint), f"{row.status}: {row.note or 'no reason stored'}")
    return notes


def _matrix(
    records: Mapping[str, TaskRecord | None], evaluations: Sequence[str], notes: Mapping[tuple[str, int], str]
) -> pd.DataFrame:
    rows = []
    for task, record in records.items():
        for checkpoint in range(len(evaluations) + 1):
            row: dict[str, Any] = {"checkpoint": checkpoint, "task": task}
            row["target_of_stage"] = evaluations.index(task) + 1 if task in evaluations else None
            note = notes.get((task, checkpoint))
            found = None if record is None or note else sequences.level(record, checkpoint)
            row |= _told("accuracy", found) | {"n": None if found is None else found.n}
            row["n_clusters"] = None if found is None else found.n_clusters
            if record is not None and found is not None and checkpoint > 0:
                row |= _told("since_base", sequences.change(record, checkpoint, 0))
                row |= _told("over_stage", sequences.change(record, checkpoint, checkpoint - 1))
            row |= {
                "status": "ok" if found else "not measured",
                "note": None if found else note or "no item was stored",
            }
            rows.append(row)
    return table("matrix", rows)


def _per_seed(records: Mapping[str, TaskRecord | None], seeds: Sequence[int]) -> pd.DataFrame:
    rows = []
    for task, record in records.items():
        if record is None:
            continue
        for seed, correct in zip(seeds, record.correct, strict=True):
            for checkpoint, row in enumerate(correct):
                known = row[np.isfinite(row)]
                accuracy = float(known.mean()) if known.size else None
                rows.append(
                    {"seed": seed, "checkpoint": checkpoint, "task": task, "accuracy": accuracy, "n": known.size}
                )
    return table("per_seed", rows)


def _transfer(targets: Sequence[TaskRecord | None], evaluations: Sequence[str]) -> pd.DataFrame:
    """One row per target and one with the means; nothing where a target was never scored."""
    known = [record for record in targets if record is not None]
    count = len(evaluations)
    if len(known) < count:
        return table("transfer", [])
    learned, backward, forward = sequences.learned(known), sequences.backward(known), sequences.forward(known)
    lost = sequences.forgetting(known)
    rows = []
    for index, task in enumerate(evaluations):
        row: dict[str, Any] = {"stage": index + 1, "task": task}
        row |= _told("learned", learned[index])
        row |= _told("forward", forward[index - 1] if index else None)
        if index < count - 1:
            row |= _told("backward", backward[index])
            own = lost[index]
            row["forgetting"] = None if own is None else own.mean
            row["best_stages"] = None if own is None else ", ".join(map(str, own.stages))
        rows.append(row)
    mean: dict[str, Any] = {"stage": None, "task": MEAN}
    for name, changes in (("learned", learned), ("forward", forward), ("backward", backward)):
        mean |= _told(name, sequences.mean_change(changes))
    values = [one.mean for one in lost if one is not None]
    mean["forgetting"] = float(np.mean(values)) if len(values) == len(lost) else None
    return table("transfer", [*rows, mean])


def _told(name: str, found: Estimate | Change | None) -> dict[str, float | None]:
    one = found.estimate if isinstance(found, Change) else found
    values = (None, None, None) if one is None else (one.mean, one.low, one.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _norms(data: Sequence[SequenceData]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for one in data:
        updates = [[u for u in run.updates if isinstance(u, Update)] if one.walks else None for run in one.runs]
        cumulative = sequences.cumulative_norms(one.products)
        for stage, norm in enumerate(cumulative, start=1):
            walk = sequences.walk_norm(updates[:stage], one.parameters)
            alone = sequences.walk_norm(updates[stage - 1 : stage], one.parameters)
            row: dict[str, Any] = {"seed": one.seed, "stage": stage, "task": one.targets[stage - 1]}
            row |= {"iterations": len(one.runs[stage - 1].updates), "norm": norm, "predicted": walk.predicted}
            row |= {"predicted_sd": walk.sd, "ratio": norm / walk.predicted if walk.predicted else None}
            row |= {"alpha_form": walk.alpha_form, "increment": float(np.sqrt(one.products[stage - 1, stage - 1]))}
            row |= {"increment_predicted": alone.predicted, "parameters": one.parameters, "note": walk.note}
            rows.append(row)
    return table("norms", rows)


def mean_norms(frames: SequenceFrames) -> pd.DataFrame:
    """Per stage the mean over seeds of every number of ``norms``, with the 95 % interval of the norm."""
    rows = []
    for stage, own in frames.norms.groupby("stage", sort=True):
        summary = over_seeds([float(value) for value in own["norm"]])
        row: dict[str, Any] = {"stage": stage, "norm": summary.mean, "norm_low": summary.low, "norm_high": summary.high}
        for name in ("predicted", "predicted_sd", "ratio", "alpha_form", "increment", "increment_predicted"):
            # A number that one seed lacks is no mean over the seeds.
            row[name] = own[name].astype(float).mean(skipna=False)
        rows.append(row | {"note": own["note"].iloc[0]})
    return pd.DataFrame(rows)


def _angles(data: Sequence[SequenceData]) -> pd.DataFrame:
    rows = []
    for one in data:
        for second in range(2, len(one.runs) + 1):
            for first in range(1, second):
                cosine = sequences.stage_cosine(one.products, first, second)
                degrees = None if cosine is None else float(np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0))))
                row = {"seed": one.seed, "first": first, "second": second, "cosine": cosine, "angle": degrees}
                row["random_sd"] = one.parameters**-0.5
                rows.append(row | {"z": None if cosine is None else cosine * one.parameters**0.5})
    return table("angles", rows)


def _repeats(data: Sequence[SequenceData], places: Sequence[Sequence[Place]], scores: Scores) -> pd.DataFrame:
    """The same weights scored at the end of a stage and at the start of the next one."""
    rows = []
    for one, checkpoints in zip(data, places, strict=True):
        for stage in range(1, len(one.runs)):
            (run, end), (following, _) = checkpoints[stage], checkpoints[stage + 1]
            count = differing = 0
            for (name, task), own in scores.items():
                other = scores.get((following, task))
                if name != run or other is None or end not in own.steps or 0 not in other.steps:
                    continue
                before, after = own.aligned(own, end), other.aligned(own, 0)
                both = np.isfinite(before) & np.isfinite(after)
                count += int(both.sum())
                differing += int((before[both] != after[both]).sum())
            rows.append({"seed": one.seed, "stage": stage, "results": count, "differing": differing})
    return table("repeats", rows)
