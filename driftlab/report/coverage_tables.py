"""Coverage in a report: pass@1 and pass@k at base and later, problems won and lost, and how much answers vary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pandas as pd

from driftlab.drift.coverage import Flips, Sampled, common_problems, flips, pass_difference, pass_rates
from driftlab.drift.stats import PairedDifference
from driftlab.report.formats import NOT_MEASURED, Table, interval, points
from driftlab.report.frames import Frames
from driftlab.report.pairing import each
from driftlab.report.tables import cell_text

PASS = "pass_at_"
_PAIRED = ["difference", "stderr", "low", "high", "n", "n_clusters"]
_FLIPS = ["progressions", "regressions", "expected", "sd"]
COLUMNS = ["run", "task", "step", "k", "base", "value", *_PAIRED, *_FLIPS]


def coverage_rows(frames: Frames) -> pd.DataFrame:
    """Rows of the coverage probe, whatever their status."""
    return frames.measurements[frames.measurements["probe"] == "coverage"]


def pass_levels(rows: pd.DataFrame) -> list[int]:
    """Every k of the pass@k rows, ascending."""
    names = rows.loc[rows["quantity"].str.startswith(PASS), "quantity"]
    return sorted({int(name.removeprefix(PASS)) for name in names})


def coverage_table(frames: Frames) -> Table | None:
    """pass@1 and the largest pass@k of every run and task at base and final step; None where no run asked."""
    stored = coverage_rows(frames)
    if stored.empty:
        return None
    data = pd.DataFrame(_changes(frames, stored), columns=COLUMNS)
    rows = []
    for (task, run), own in stored.groupby(["group", "run"], sort=False):
        last = int(own["step"].max())
        found = data[(data["run"] == run) & (data["task"] == task) & (data["step"] == last)]
        told = {row.k: row for row in each(found)}
        one, most = _level(own, told, last, 1), _level(own, told, last, max(pass_levels(own)))
        drawn = own["note"].iloc[0].partition(";")[0]
        rows.append((task, run, f"{last}", drawn, *one[1:3], *most, *_variety(own, last)))
    return Table(
        name="coverage",
        title="Sampled answers, base → last sampled step: pass@k in %, its change in points [95 % interval]",
        columns=(
            "task", "run", "step", "drawn", "pass@1", "change of pass@1", "largest k", "pass@k", "change of pass@k",
            "progressed / regressed", "by chance", "entropy, nats", "distinct right",
        ),
        rows=tuple(rows),
        data=data,
        source="`samples`, `correct` of the same problems at step 0 and later in `coverage/`, and rows with probe "
        "`coverage` in `measurements.jsonl`. pass@k is the unbiased estimate, problems with one `cluster` not taken as "
        "independent; intervals are of one comparison each. Progressed: no right answer among k at the base and at "
        "least one later; regressed: the other way. By chance: either number to be expected (± its standard deviation) "
        "where nothing changed, because a problem that is seldom solved flips between two draws from one model. "
        "Entropy: that of a problem's readable answers with Miller and Madow's correction; distinct right: different "
        "right answers per problem. The CSV holds every sampled step and every k.",
    )  # fmt: skip


def _sampled(frames: Frames) -> dict[tuple[str, str, int], Sampled]:
    """Problems by run, task and step."""
    grouped: dict[tuple[str, str, int], list[Any]] = defaultdict(list)
    for row in each(frames.coverage):
        grouped[row.run, row.task, row.step].append(row)
    return {
        where: Sampled(
            items=tuple(row.item for row in rows),
            clusters=tuple(row.cluster for row in rows),
            samples=tuple(int(row.samples) for row in rows),
            correct=tuple(int(row.correct) for row in rows),
        )
        for where, rows in grouped.items()
    }


def _changes(frames: Frames, stored: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """One row per run, task, later step and k, over the problems sampled at the base too."""
    sampled, levels = _sampled(frames), pass_levels(stored)
    for (run, task, step), after in sampled.items():
        base = sampled.get((run, task, 0))
        if step == 0 or base is None or not set(base.items) & set(after.items):
            continue
        before, after = common_problems(base, after)
        for k in levels:
            if k <= min(*before.samples, *after.samples):
                change, won = pass_difference(before, after, k), flips(before, after, k)
                means = {"base": pass_rates(before, k).mean(), "value": pass_rates(after, k).mean()}
                yield {"run": run, "task": task, "step": step, "k": k} | means | _plain(change, won)


def _plain(change: PairedDifference, won: Flips) -> dict[str, Any]:
    both = asdict(won) | asdict(change)
    return {name: both[name] for name in (*_PAIRED, *_FLIPS)}


def _level(own: pd.DataFrame, told: dict[int, Any], last: int, k: int) -> tuple[str, ...]:
    """k, pass@k base → last, its change, problems won and lost, and what chance gives."""
    values = _both(own, f"{PASS}{k}", last, lambda row: points(row["value"], sign=False))
    row = told.get(k)
    if row is None:
        return f"{k}", values, "–", "–", "–"
    change = f"{points(row.difference)} [–]" if pd.isna(row.low) else interval(row.difference, row.low, row.high)
    won = f"{row.progressions:.3g} / {row.regressions:.3g} of {row.n}"
    return f"{k}", values, change, won, f"{row.expected:.1f} ± {row.sd:.1f}"


def _variety(own: pd.DataFrame, last: int) -> tuple[str, str]:
    names = ("answer_entropy_corrected", "distinct_correct")
    entropy, right = (_both(own, name, last, lambda row: f"{row['value']:.2f}") for name in names)
    return entropy, right


def _both(own: pd.DataFrame, quantity: str, last: int, text: Any) -> str:
    """``base → last``; one of them alone where they are one step."""
    part = own[own["quantity"] == quantity]
    cells = []
    for step in dict.fromkeys((0, last)):
        at = part[part["step"] == step]
        row = None if at.empty else {str(key): value for key, value in at.iloc[0].items()}
        # A task that failed has no rows but those of pass@k.
        failed = own[(own["step"] == step) & (own["status"] == "failed")]
        cells.append("failed" if row is None and len(failed) else cell_text(row, text) if row else NOT_MEASURED)
    return " → ".join(cells)
