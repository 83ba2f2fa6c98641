"""The tables that judge: verdicts on prior tasks and target, arms beside the null control, stopping rules, noise floor.

Changes of accuracy are in percentage points ("points").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pandas as pd

from driftlab.report.formats import NOT_MEASURED, Table, interval, points
from driftlab.report.frames import Frames
from driftlab.report.pairing import each
from driftlab.report.verdicts import AVERAGE


def average_name(frames: Frames, profile: str | None = None) -> str:
    """``average of 3 prior tasks``, with the profile where there are two."""
    tasks = [task for task in frames.averaged if profile is None or frames.profiles[task] == profile]
    name = f"average of {len(tasks)} prior task{'' if len(tasks) == 1 else 's'}"
    return f"{name}, {profile}" if profile is not None and len(profiles(frames)) > 1 else name


def profiles(frames: Frames) -> list[str]:
    """The profiles of the averaged prior tasks, in the tasks' order."""
    return list(dict.fromkeys(frames.profiles[task] for task in frames.averaged))


def _task(frames: Frames, row: Any) -> str:
    return average_name(frames, row.profile) if row.task == AVERAGE else str(row.task)


def floor_of(frames: Frames, task: str) -> str:
    """The measured noise floor of a task, in points."""
    found = frames.floors.loc[frames.floors["task"] == task, "difference"]
    return points(found.iloc[0], sign=False) if len(found) else NOT_MEASURED


def verdict_table(frames: Frames) -> Table:
    """One row per prior task and run, and per average."""
    kept = _retained(frames)
    rows = []
    for row in each(frames.verdicts):
        known = pd.notna(row.final_change)
        lowest = f"{points(row.lowest_change)} (step {row.lowest_step:.0f})" if known else "–"
        rows.append(
            (
                _task(frames, row),
                row.run,
                row.verdict,
                interval(row.final_change, row.final_low, row.final_high) if known else "–",
                lowest,
                _flips(row) if known else "–",
                "–" if row.task == AVERAGE else floor_of(frames, row.task),
                points(row.detectable, sign=False) if known else "–",
                kept.get((row.run, row.task), "–"),
            )
        )
    return Table(
        name="verdicts",
        title="Verdicts on prior tasks: final change in points [95 % interval, corrected for all tasks and steps]",
        columns=(
            "prior task", "run", "verdict", "final change", "lowest", "gained / lost", "floor, points",
            "visible from, points", "retained, %",
        ),
        rows=tuple(rows),
        data=frames.verdicts,
        source="`correct` of the same items at step 0 and at every measured step in `examples/`. The intervals of one "
        "run hold for all its prior tasks, their average and all measured steps together (max-T; half of the error is "
        "the final step's); the lowest point is among them, so picking it costs nothing. The floor is the largest "
        "change between two scorings of the base (rows with probe `floor`). Visible from: the true change that would "
        "be found with 80 % power after the correction. Retained: (accuracy − chance) / (base accuracy − chance) in %, "
        f"Fieller's 95 % interval, uncorrected. Stable means within ±{100 * frames.margin:g} points at every step. The "
        "largest fall from an earlier to a later value stands beside what 95 % of unchanged curves with the same flips "
        "stay below.",
    )  # fmt: skip


def _flips(row: Any) -> str:
    """Items gained and lost; a run of other code stores accuracies without items."""
    return ("not stored" if pd.isna(row.gained) else f"{row.gained:.0f} / {row.lost:.0f}") + f" of {row.n:.0f}"


def short_verdict_table(frames: Frames) -> Table:
    """What fits a terminal of the verdicts: task, run, word and corrected change."""
    whole = verdict_table(frames)
    return replace(whole, columns=whole.columns[:4], rows=tuple(row[:4] for row in whole.rows))


def _retained(frames: Frames) -> dict[tuple[str, str], str]:
    last = frames.runs.set_index("run")["last_step"]
    table = frames.differences[frames.differences["step"] == frames.differences["run"].map(last)]
    found = {}
    for row in each(table[table["retention"].notna()]):
        values = [f"{100 * value:.0f}" for value in (row.retention, row.retention_low, row.retention_high)]
        ends = "no interval" if pd.isna(row.retention_low) else f"{values[1]}, {values[2]}"
        found[row.run, row.task] = f"{values[0]} [{ends}]".replace("-", "−")
    return found


REASON_COLUMNS = (
    "prior task", "run", "verdict", "reason", "final minus lowest", "largest fall (noise alone)", "time average",
)  # fmt: skip


def reason_rows(frames: Frames) -> list[tuple[str, ...]]:
    """What stands behind each verdict, for the page; columns as in ``REASON_COLUMNS``."""
    rows: list[tuple[str, ...]] = []
    for row in each(frames.verdicts):
        back = fall = mean = "–"
        if pd.notna(row.final_change):
            fall = f"{points(row.drawdown, sign=False)} ({points(row.drawdown_noise, sign=False)})"
            mean = interval(row.average_change, row.average_low, row.average_high)
        if pd.notna(row.came_back_change):
            back = interval(row.came_back_change, row.came_back_low, row.came_back_high)
        rows.append((_task(frames, row), row.run, row.verdict, row.reason, back, fall, mean))
    return rows


def target_curve_table(frames: Frames) -> Table:
    """Target accuracy and training reward of every run: verdict, peak and where it may lie."""
    highest = {(row.run, row.quantity): (row.value, row.step) for row in each(frames.peaks)}
    rows = []
    for row in each(frames.targets):
        known = pd.notna(row.peak)
        value, step = (row.highest, row.peak) if known else highest.get((row.run, row.curve), (None, None))
        rows.append(
            (
                row.run,
                row.curve,
                row.verdict,
                NOT_MEASURED if value is None else f"{value:.3f}",
                NOT_MEASURED if step is None else f"{step:.0f}",
                f"{row.peak_low:.0f} to {row.peak_high:.0f}" if known else "–",
                interval(row.late_change, row.late_low, row.late_high) if known else "–",
                row.reason,
            )
        )
    return Table(
        name="target",
        title="The target's own curves: target accuracy (fraction) and training reward (mean over members)",
        columns=(
            "run",
            "curve",
            "verdict",
            "highest",
            "at step",
            "peak lies at [95 %]",
            "last third, in hundredths",
            "reason",
        ),
        rows=tuple(rows),
        data=frames.targets,
        source="Accuracy: `correct` of the target's items in `examples/`, paired; reward: `rewards` in "
        "`updates.jsonl`, its error from the scatter of the members (long runs in groups of iterations). The peak lies "
        "where no other step is better beyond their common error (comparisons with the best); the last third is the "
        "change over the last third of the steps by a straight line, with its 95 % interval (accuracy: points).",
    )


def seed_means_table(frames: Frames) -> Table:
    """Per task and arm: mean final change over seeds, its interval with the seed as unit, and the seeds' verdicts."""
    last = frames.runs.groupby("arm", sort=False)["last_step"].min()
    table = frames.seeds[frames.seeds["step"] == frames.seeds["arm"].map(last)]
    rows = []
    order = [*dict.fromkeys([frames.target, *frames.priors]), AVERAGE]
    for task in order:
        for arm in last.index:
            for row in each(table[(table["task"] == task) & (table["arm"] == arm)]):
                said = _counted(frames.verdicts, arm, task)
                name = f"{task} (target)" if task == frames.target else _task(frames, row)
                spread = "–" if pd.isna(row.sd) else points(row.sd, sign=False)
                known = pd.notna(row.low)
                ends = interval(row.mean, row.low, row.high) if known else f"{points(row.mean)} [no interval]"
                floor = "–" if task == AVERAGE else floor_of(frames, task)
                rows.append((name, arm, f"{row.seeds:.0f}", ends, spread, floor, said))
    return Table(
        name="seeds",
        title="Mean over training seeds: final change in points [95 % interval over seeds]",
        columns=("task", "arm", "seeds", "mean change", "SD over seeds", "floor", "verdicts of the seeds"),
        rows=tuple(rows),
        data=frames.seeds,
        source="`correct` of the same items at the step and at step 0 in `examples/`; the seed is the unit: a t "
        "interval with (seeds − 1) degrees of freedom, made no narrower than the interval over items of the same mean, "
        "because seeds share their items; with one seed the interval over items. The CSV holds every step.",
    )


def _counted(verdicts: pd.DataFrame, arm: Any, task: str) -> str:
    """``2 stable, 1 declined``."""
    own = verdicts[(verdicts["arm"] == arm) & (verdicts["task"] == task)]
    counts = Counter(own["verdict"])
    return ", ".join(f"{count} {word}" for word, count in counts.most_common()) or "–"


def short_seed_table(frames: Frames) -> Table:
    """What fits a terminal of the means over seeds: the target and the averages over the prior tasks."""
    whole = seed_means_table(frames)
    names = {f"{frames.target} (target)", *(average_name(frames, profile) for profile in profiles(frames))}
    return replace(whole, rows=tuple(row for row in whole.rows if row[0] in names))


def control_comparison_table(frames: Frames) -> Table:
    """Each arm beside its null control, and beside the first arm."""
    rows = []
    for row in each(frames.controls):
        name = f"{row.task} (target)" if row.task == frames.target else _task(frames, row)
        control = row.against if row.alike else f"{row.against} (other settings)"
        if pd.isna(row.difference):
            rows.append((name, row.arm, control, "–", NOT_MEASURED, NOT_MEASURED, row.note, "–"))
            continue
        unit = f"{row.n:.0f} {row.unit}"
        ends = interval(row.difference, row.low, row.high) if pd.notna(row.low) else f"{points(row.difference)} [–]"
        step = f"{row.step:.0f}"
        rows.append((name, row.arm, control, step, points(row.change), points(row.walk), ends, unit))
    return Table(
        name="controls",
        title="Arm beside random walk (what chance alone does), and beside the first arm, in points [95 % interval]",
        columns=("task", "arm", "against", "step", "its change", "change of the other", "difference", "unit"),
        rows=tuple(rows),
        data=frames.controls,
        source="The shuffled-reward arm has the same members, budget and step sizes, but its coefficients are dealt to "
        "other members, so it walks at random. `correct` of the same items at the last common step of both arms in "
        "`examples/`, paired by item; over seeds the pair of runs with one seed is the unit, and the interval is no "
        "narrower than that over items. Not corrected for the number of tasks. A control with other settings (no "
        "anchor, say) walks another distance.",
    )


def rule_comparison_table(frames: Frames) -> Table:
    """Which step each stopping rule would have chosen, and the change of every task there."""
    tasks = [frames.target, *frames.priors]
    changes = {(row.run, row.task, row.step): row.difference for row in each(frames.differences)}
    means = {(row.run, row.profile, row.step): row.difference for row in each(frames.averages)}
    for table in (changes, means):
        # The base has changed by 0, where anything is known about it.
        table |= {(*key[:2], 0): 0.0 for key, value in table.items() if pd.notna(value)}
    columns, rows, data = profiles(frames), [], []
    for row in each(frames.rules):
        chosen = "–" if pd.isna(row.chosen_step) else str(row.chosen_step)
        at = None if pd.isna(row.measured_step) else int(row.measured_step)
        values = [changes.get((row.run, task, at)) for task in tasks]
        values += [means.get((row.run, profile, at)) for profile in columns]
        texts = ["–" if value is None or pd.isna(value) else points(value) for value in values]
        rows.append(
            (row.run, row.rule, chosen, "–" if at is None else str(at), "" if pd.isna(row.note) else row.note, *texts)
        )
        names = [*tasks, *(average_name(frames, profile) for profile in columns)]
        data.append({**row._asdict(), **dict(zip(names, values, strict=True))})
    averages = (average_name(frames, profile) for profile in columns)
    return Table(
        name="rules",
        title="Where each stopping rule would have stopped, and the change of every task there, in points",
        columns=("run", "rule", "stops at", "read at", "note", *tasks, *averages),
        rows=tuple(rows),
        data=pd.DataFrame(data),
        source="The rule to use is the peak of the target's own reward; a prior decline is no reason to stop, because "
        "it may come back. Changes are those of `final-minus-base` at the measured step nearest to the one chosen.",
    )


def floor_table(frames: Frames) -> Table:
    """The measured noise floor of every task."""
    rows = [
        (row.task, points(row.difference, sign=False), f"{100 * row.flips:.2f}", str(row.n), row.variants)
        for row in each(frames.floors)
    ]
    return Table(
        name="floor",
        title="Noise floor: the base scored again under conditions that ought not to matter",
        columns=("task", "largest change, points", "items that flipped, %", "items", "conditions"),
        rows=tuple(rows),
        data=frames.floors,
        source="Rows with probe `floor` in `measurements.jsonl`; the largest over the conditions (batch: half the "
        "batch size; order: items in another order; layout: one prompt per row) and over runs.",
    )
