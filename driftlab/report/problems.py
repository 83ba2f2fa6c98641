"""What failed, was skipped, was not measured or contradicts itself: one table, so that no gap is silent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import pandas as pd

from driftlab.report.pairing import accuracy_rows, each

# Rows whose absence at a measured step is reported; the rest follow from these or are undefined at some steps.
HEADLINES = (("lm_eval", "accuracy"), ("kl", "kl_base_to_step"), ("weights", "update_norm"))

COLUMNS = ["run", "step", "what", "status", "note"]
Problem = tuple[str, str, str, str, str]


def problem_table(
    runs: pd.DataFrame,
    measurements: pd.DataFrame,
    updates: pd.DataFrame,
    examples: pd.DataFrame,
    tasks: Sequence[str],
    inert: Sequence[str],
    unpaired: Collection[tuple[str, str]],
) -> pd.DataFrame:
    """One row per problem: run, step (or steps; empty for the whole run), what, status, note.

    ``inert``: tasks none of whose items changed at any step of any run. ``unpaired``: run and task without items.
    """
    headline = measurements[pd.MultiIndex.from_frame(measurements[["probe", "quantity"]]).isin(HEADLINES)]
    measured = headline[["probe", "quantity", "group"]].itertuples(index=False, name=None)
    expected = list(dict.fromkeys([*(("lm_eval", "accuracy", task) for task in tasks), *measured]))
    rows: list[Problem] = []
    for run in each(runs):
        own = measurements[measurements["run"] == run.run]
        if run.status != "finished":
            rows.append((run.run, "", "run", run.status, run.error or "the run did not finish"))
        rows += [(run.run, "", "run", "repaired", notice) for notice in run.notices]
        rows += [(run.run, "", "import", "noted", note) for note in run.import_notes]
        rows += _itemless(run.run, [task for label, task in unpaired if label == run.run])
        notes = updates[(updates["run"] == run.run) & updates["note"].notna()]
        rows += [(run.run, str(row.step), "update", "noted", row.note) for row in each(notes)]
        rows += _not_ok(own)
        rows += _absent(own, run.run, expected)
        rows += _inert(run.run, own, inert)
        rows += _unpaired(run.run, examples[examples["run"] == run.run])
        rows += _disagreements(own, examples[examples["run"] == run.run])
    return pd.DataFrame(rows, columns=COLUMNS)


def _not_ok(rows: pd.DataFrame) -> Iterator[Problem]:
    for row in each(rows):
        what = f"{row.probe} {row.quantity}, {row.group}"
        if row.status == "skipped":
            # Skipped means not defined there, such as a step size at the base: the row's note says why.
            continue
        if row.status != "ok":
            yield row.run, str(row.step), what, row.status, row.note or "no reason stored"
        elif row.n_failed:
            yield row.run, str(row.step), what, "failed", f"{row.n_failed} of {row.n} items failed"


def _itemless(run: str, tasks: Sequence[str]) -> Iterator[Problem]:
    if tasks:
        note = (
            "no items are stored: changes, intervals and verdicts come from the accuracies with unpaired binomial "
            "errors, wherever this report speaks of pairs, of `correct` or of `examples/`"
        )
        yield run, "", f"lm_eval accuracy, {', '.join(tasks)}", "unpaired", note


def _absent(rows: pd.DataFrame, run: str, expected: Sequence[tuple[str, str, str]]) -> Iterator[Problem]:
    seen = set(rows[["probe", "quantity", "group", "step"]].itertuples(index=False, name=None))
    steps = sorted(set(rows["step"]))
    for probe, quantity, group in expected:
        absent = [str(step) for step in steps if (probe, quantity, group, step) not in seen]
        if absent:
            yield run, ", ".join(absent), f"{probe} {quantity}, {group}", "not measured", "no row stored"


def _inert(run: str, rows: pd.DataFrame, inert: Sequence[str]) -> Iterator[Problem]:
    """Tasks none of whose answers ever changed, and steps at which the weights are the base again."""
    for task in inert:
        note = "no item changed at any measured step of any run: the metric is constant and in no average"
        yield run, "", f"lm_eval accuracy, {task}", "noted", note
    same = rows[(rows["quantity"] == "zero_fraction") & (rows["group"] == "all") & (rows["value"] == 1.0)]
    for row in each(same[same["step"] > 0]):
        yield run, str(row.step), "weights", "noted", "the weights are exactly the base: nothing was trained"


def _unpaired(run: str, examples: pd.DataFrame) -> Iterator[Problem]:
    """Items that some measured steps of a task have and others lack (``scores.TaskScores.curve_steps``)."""
    for task, part in examples.groupby("task", sort=False):
        sets = {step: set(items) for step, items in part.groupby("step")["item"]}
        common, every = set.intersection(*sets.values()), set.union(*sets.values())
        if common != every:
            lacking = ", ".join(str(step) for step, items in sets.items() if items != every)
            note = (
                f"{len(every - common)} of {len(every)} items are not stored at every step, for example "
                f"{min(every - common)}; verdicts leave out these items, or the step where it lacks many"
            )
            yield run, lacking, f"lm_eval items, {task}", "unpaired", note


def _disagreements(rows: pd.DataFrame, examples: pd.DataFrame) -> Iterator[Problem]:
    """Accuracy rows that their own items do not give."""
    own = examples.groupby(["task", "step"])["correct"].agg(["mean", "size"])
    for row in each(accuracy_rows(rows)):
        if row.status != "ok" or (row.group, row.step) not in own.index:
            continue
        mean, size = own.loc[(row.group, row.step)]
        if size == row.n - row.n_failed and abs(mean - row.value) > 1e-6:
            note = f"the accuracy row says {row.value:.4f}, its {row.n} items give {mean:.4f}"
            yield row.run, str(row.step), f"lm_eval accuracy, {row.group}", "disagrees", note
