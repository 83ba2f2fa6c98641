"""Arms side by side: what each run had spent, reached and lost at the step where it matches the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from driftlab.drift.curves import MARGIN
from driftlab.errors import DriftlabError
from driftlab.report.compare_changes import change_table, pair_table, seed_pairs
from driftlab.report.compare_weights import kl_table_of, norm_table_of, ratio_table
from driftlab.report.frames import Frames, build_frames
from driftlab.report.ledger import ledger_rows, spent
from driftlab.report.matching import Match, Track, match_runs
from driftlab.report.pairing import accuracy_rows, each
from driftlab.report.runs import RunData, distinct_arms, target_task
from driftlab.report.scores import Scores, task_scores
from driftlab.report.unpaired import stated_unpaired

_MATCHED_NUMBERS = ["step", "rollouts", "flops", "seconds", "target_accuracy"]
MATCHED_COLUMNS = ["run", "arm", "seed", *_MATCHED_NUMBERS, "note"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AtMatch:
    """Everything about one match. Accuracies and their changes are fractions, KL in nats per token, norms L2.

    Attributes:
        match: the steps.
        runs: one row per run: its step and what it had spent and reached there.
        changes: per (arm, task): change since the base over the arm's runs, and the verdicts on the curves up to the
            matched step. Averages over prior tasks have the task ``AVERAGE``.
        pairs: per (arm, against, task): arm minus the other, paired on items, and over pairs of runs.
        norms: per arm: update norm.
        kl: per (arm, text set): KL(base || step); the unweighted mean over the prior tasks' texts has the group
            ``AVERAGE``.
        ratios: per (arm, against, quantity): ratio of norms and of KL.
    """

    match: Match
    runs: pd.DataFrame
    changes: pd.DataFrame
    pairs: pd.DataFrame
    norms: pd.DataFrame
    kl: pd.DataFrame
    ratios: pd.DataFrame


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Arms compared.

    Attributes:
        frames: the report's tables of the whole runs.
        trainers: by arm, ``es``, ``grpo`` or ``folders``.
        plain: arms trained as published: no control, and no anchor.
        ledger: ``ledger.ledger_rows`` of every run, with run and arm.
        tracks: what each run had spent and reached at its measured steps.
        chosen: the match that was asked for.
        at_target: the match at equal target accuracy; None where there is none, and ``no_target`` says why.
        same_texts: whether all runs measured KL on texts drawn alike.
    """

    frames: Frames
    trainers: Mapping[str, str]
    plain: tuple[str, ...]
    ledger: pd.DataFrame
    tracks: tuple[Track, ...]
    chosen: AtMatch
    at_target: AtMatch | None
    no_target: str
    same_texts: bool

    @property
    def arms(self) -> list[str]:
        return list(dict.fromkeys(self.frames.runs["arm"]))


def build_comparison(
    runs: Sequence[RunData], *, kind: str = "step", value: float | None = None, margin: float = MARGIN
) -> Comparison:
    """Compare runs of two or more arms.

    Args:
        kind, value: see ``matching.match_runs``.
        margin: largest change that still counts as stable, a fraction.

    Raises:
        DriftlabError: fewer than two arms, runs that do not share base, target, tasks and items, runs without items,
            or a match that cannot be made.
    """
    runs = distinct_arms(runs)
    check_comparable(runs)
    frames = build_frames(runs, margin=margin)
    labelled = dict(zip(frames.runs["run"], runs, strict=True))
    ledger = _ledger(labelled)
    tracks = tuple(_track(frames, ledger, row) for row in each(frames.runs))
    scores = task_scores(frames.examples)
    chosen = at_match(match_runs(tracks, kind, value), frames, ledger, scores)
    at_target, why = (chosen, "") if kind == "target" else (None, "")
    if at_target is None:
        try:
            at_target = at_match(match_runs(tracks, "target"), frames, ledger, scores)
        except DriftlabError as error:
            why = str(error)
    specs = {run.manifest.spec["arm"]: run.manifest.spec for run in runs}
    kl = {str(run.manifest.spec["probes"].get("kl")) for run in runs}
    return Comparison(
        frames=frames,
        trainers={arm: spec.get("trainer", "es") for arm, spec in specs.items()},
        plain=tuple(
            arm
            for arm, spec in specs.items()
            if spec.get("control", "none") == "none" and (spec.get("anchor") or {}).get("penalty", "none") == "none"
        ),
        ledger=ledger,
        tracks=tracks,
        chosen=chosen,
        at_target=at_target,
        no_target=why,
        same_texts=len(kl) == 1,
    )


def check_comparable(runs: Sequence[RunData]) -> None:
    """Raises DriftlabError for fewer than two arms, unlike tasks, or a run without items."""
    arms = dict.fromkeys(run.manifest.spec["arm"] for run in runs)
    if len(arms) < 2:
        got = f"only {next(iter(arms))}" if arms else "no run"
        raise DriftlabError(f"a comparison needs runs of two or more arms, got {got}; give runs of another arm too")
    for run in runs:
        if stated_unpaired(run):
            raise DriftlabError(
                f"run {run.manifest.run_id} stores accuracies without their items, but a comparison is paired on "
                "items; 'driftlab report' puts it beside others"
            )
    tasks = {run.manifest.run_id: _tasks(run) for run in runs}
    first = next(iter(tasks))
    for run_id, own in tasks.items():
        if own ^ tasks[first]:
            lacking, has = (run_id, first) if tasks[first] - own else (first, run_id)
            listed = ", ".join(sorted(tasks[has] - tasks[lacking]))
            raise DriftlabError(
                f"compared runs must have measured the same tasks, but {lacking} lacks {listed}, which {has} has; "
                "compare runs of one set of tasks"
            )


def _tasks(run: RunData) -> set[str]:
    """Tasks whose accuracy the run measured or tried to, its target included."""
    measured = {row.group for row in run.measurements if (row.probe, row.quantity) == ("lm_eval", "accuracy")}
    return measured | {target_task(run.manifest)}


def _ledger(runs: Mapping[str, RunData]) -> pd.DataFrame:
    parts = []
    for label, run in runs.items():
        spec = run.manifest.spec
        # What other code did was read from its logs, which hold neither rewards nor tokens.
        own = spec.get("trainer", "es") == "es" and "imported" not in spec
        items = spec["target"].get("train_items") if own else None
        parts.append(ledger_rows(run.updates, items).assign(run=label, arm=spec["arm"]))
    return pd.concat(parts, ignore_index=True)


def _track(frames: Frames, ledger: pd.DataFrame, run: Any) -> Track:
    steps = tuple(
        sorted({int(step) for step in frames.measurements.loc[frames.measurements["run"] == run.run, "step"]})
    )
    own = ledger[ledger["run"] == run.run]
    rows = accuracy_rows(frames.measurements)
    rows = rows[(rows["run"] == run.run) & (rows["group"] == frames.target) & (rows["status"] == "ok")]
    accuracy = dict(zip(rows["step"], rows["value"], strict=True))
    flops = spent(own, "forward_flops", steps) + spent(own, "backward_flops", steps)
    return Track(
        run=run.run,
        arm=run.arm,
        seed=int(run.seed),
        steps=steps,
        rollouts=tuple(float(one) for one in spent(own, "rollouts", steps)),
        flops=tuple(float(one) for one in flops),
        accuracy=tuple(float(accuracy.get(step, np.nan)) for step in steps),
        control=run.control != "none",
    )


def at_match(match: Match, frames: Frames, ledger: pd.DataFrame, scores: Scores) -> AtMatch:
    """Every table of one match."""
    arms = list(dict.fromkeys(frames.runs["arm"]))
    pairs = {
        (arm, against): seed_pairs(match, arm, against)
        for number, against in enumerate(arms)
        for arm in arms[number + 1 :]
    }
    return AtMatch(
        match=match,
        runs=_matched_table(match, frames, ledger),
        changes=change_table(match, frames, scores, arms),
        pairs=pair_table(match, frames, scores, pairs),
        norms=norm_table_of(match, frames, arms),
        kl=kl_table_of(match, frames, arms),
        ratios=ratio_table(frames, pairs),
    )


def _matched_table(match: Match, frames: Frames, ledger: pd.DataFrame) -> pd.DataFrame:
    stored = accuracy_rows(frames.measurements)
    stored = stored[(stored["group"] == frames.target) & (stored["status"] == "ok")]
    accuracy = {(row.run, row.step): row.value for row in each(stored)}
    rows = []
    for one in match.rows:
        row: dict[str, Any] = {"run": one.run, "arm": one.arm, "seed": one.seed, "step": one.step, "note": one.note}
        if one.step is not None:
            own = ledger[ledger["run"] == one.run]
            names = ("rollouts", "forward_flops", "backward_flops", "total_seconds")
            found = {name: float(spent(own, name, [one.step])[0]) for name in names}
            row |= {"rollouts": found["rollouts"], "flops": found["forward_flops"] + found["backward_flops"]}
            row |= {"seconds": found["total_seconds"], "target_accuracy": accuracy.get((one.run, one.step), np.nan)}
        rows.append(row)
    return pd.DataFrame(rows, columns=MATCHED_COLUMNS).astype(dict.fromkeys(_MATCHED_NUMBERS, "float64"))
