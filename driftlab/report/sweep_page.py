"""A grid of runs as a folder: table, figure and CSV. The same runs give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from driftlab.report.folders import check_replaceable, replace_folder
from driftlab.report.formats import NOT_MEASURED, Table, interval, markdown_text, points, to_markdown
from driftlab.report.plots import save
from driftlab.report.sweep_figure import sweep_figure
from driftlab.report.sweeps import SweepFrames, average_name, shown_value

CAPTION = (
    "Against the first swept key, mean over seeds. Top: accuracy at the end, with the 95 % interval of its paired "
    "change since the base (dotted). Middle: that change of the average of the prior tasks. Bottom: update norm with "
    "its interval over seeds, beside a random walk with the same coefficients and anchor. Dashed: without anchor. A "
    "cross on the bottom edge: not measured, or failed."
)


def sweep_table(frames: SweepFrames, name: str, title: str, judged: Mapping[str, str]) -> Table:
    """Per cell the means over seeds; ``judged`` adds a word to the cells that it names."""
    rows = []
    for row in frames.cells.to_dict("records"):
        cells = [shown_value(row[key]) for key in frames.keys]
        cells += [str(row["seeds"]), _percent(row["target_base"]), _percent(row["target_final"])]
        cells += [_change(row, prefix, "change", "") for prefix in frames.quantities]
        if frames.compared:
            cells += [_change(row, prefix, "against", "against_") for prefix in frames.quantities]
        cells += [_number(row, "update_norm", "#.4g"), _number(row, "predicted_norm", "#.4g")]
        cells.append(_number(row, "random_walk_ratio", ".3f"))
        rows.append((*cells, judged.get(row["cell"], "–")) if judged else tuple(cells))
    averages = [average_name(frames, prefix) for prefix in frames.priors]
    columns = [*frames.keys, "seeds", "target at base, %", "target at end, %", "target change"]
    columns += [f"change, {average}" for average in averages]
    if frames.compared:
        columns += ["target against no anchor", *(f"{average} against no anchor" for average in averages)]
    columns += ["update norm", "random walk", "norm / random walk"]
    return Table(
        name=name,
        title=title,
        columns=(*columns, "verdict") if judged else tuple(columns),
        rows=tuple(rows),
        data=frames.cells,
        source="Means over training seeds of the last measured step. Changes since the base and differences from the "
        "cell without anchor are those of `correct` of the same items in `examples/` (the latter within each seed); "
        "the seed is the unit, and the interval is no narrower than the one over items; with one seed it is the one "
        "over items, and another seed can move the number further. Norms: `value` of rows with probe `weights`, group "
        "`all` in `measurements.jsonl`, with the t interval over seeds; the random walk follows the applied "
        "coefficients and the anchor. Every interval is of one comparison, not corrected for the number of cells.",
    )


def _percent(value: float) -> str:
    return NOT_MEASURED if pd.isna(value) else points(value, sign=False)


def _change(row: Mapping[Any, Any], prefix: str, name: str, ends: str) -> str:
    value, low, high = (row[f"{prefix}_{column}"] for column in (name, f"{ends}low", f"{ends}high"))
    if pd.isna(value):
        # A cell without anchor has nothing to be held against.
        return "–" if name == "against" and pd.isna(row["against"]) else NOT_MEASURED
    return f"{points(value)} [no interval]" if pd.isna(low) else interval(value, low, high)


def _number(row: Mapping[Any, Any], quantity: str, digits: str) -> str:
    values = [row[name] for name in (quantity, f"{quantity}_low", f"{quantity}_high")]
    if pd.isna(values[0]):
        return NOT_MEASURED
    value, low, high = (f"{number:{digits}}".replace("-", "−") for number in values)
    # The prediction is the same for every seed, but for rounding.
    return value if pd.isna(values[1]) or value == low == high else f"{value} [{low}, {high}]"


def terminal_table(table: Table) -> Table:
    """What fits a terminal: without the columns that stand in the page only."""
    left_out = ("seeds", "target at base, %", "target at end, %", "random walk", "norm / random walk")
    kept = [index for index, column in enumerate(table.columns) if column not in left_out]
    return replace(
        table,
        columns=tuple(table.columns[index] for index in kept),
        rows=tuple(tuple(row[index] for index in kept) for row in table.rows),
    )


def check_results(out: Path, name: str) -> None:
    """Raises DriftlabError when ``out`` holds something that is not an earlier result of that name."""
    check_replaceable(out, [f"{name}.csv"], f"the result of a {name}")


def write_sweep(
    frames: SweepFrames, out: Path, *, name: str, title: str, sentences: Sequence[str], judged: Mapping[str, str]
) -> Table:
    """Write ``NAME.md``, ``NAME.csv`` (cell and seed), ``NAME-cells.csv`` (means) and the figure to folder ``out``.

    An earlier result there is replaced as a whole.

    Args:
        name: ``sweep`` or ``search``.
        sentences: what the numbers say, above the table.
        judged: by cell, the word of a verdict; empty for none.

    Returns:
        The table.

    Raises:
        DriftlabError: ``out`` holds something else.
    """
    check_results(out, name)
    table = sweep_table(frames, name, title, judged)
    figure = sweep_figure(frames)
    files = {
        f"{name}.csv": _csv(frames.rows, frames),
        f"{name}-cells.csv": _csv(frames.cells, frames),
        f"{name}.md": _markdown(frames, table, sentences, drawn=figure is not None).encode(),
    }
    if figure is not None:
        files[f"{name}.png"], files[f"{name}.svg"] = save(figure)
    replace_folder(out, files)
    return table


def _markdown(frames: SweepFrames, table: Table, sentences: Sequence[str], *, drawn: bool) -> str:
    rows = frames.rows
    listed = {name: ", ".join(str(value) for value in dict.fromkeys(rows[name])) for name in ("target", "seed", "step")}
    said = [f"Target: {listed['target']}. Training seeds: {listed['seed']}. Last step: {listed['step']}.", *sentences]
    if frames.inert:
        said.append(f"No item of {', '.join(frames.inert)} changed in any run; such a task is in no average.")
    if frames.cells[[f"{prefix}_tasks" for prefix in frames.priors]].nunique().gt(1).any():
        said.append("The cells do not measure the same prior tasks, so their averages cannot be compared.")
    if not frames.cells["step"].eq(frames.cells["step"].iloc[0]).all():
        said.append("The cells do not end at the same step; every number is that of a cell's own last step.")
    parts = [
        f"# {markdown_text(table.title)}",
        *map(markdown_text, said),
        to_markdown(table).rstrip("\n"),
        table.source,
    ]
    if drawn:
        parts += [f"![{table.name}]({table.name}.svg)", CAPTION]
    files = f"`{table.name}.csv` holds every cell and seed, `{table.name}-cells.csv` the means, unrounded."
    return "\n\n".join([*parts, files]) + "\n"


def _csv(table: pd.DataFrame, frames: SweepFrames) -> bytes:
    """Levels in percent, changes and their errors in percentage points: the unit stands in the column's name."""
    levels, changes = ("base", "final"), ("change", "stderr", "low", "high", "against", "against_low", "against_high")
    units = dict.fromkeys(levels, "percent") | dict.fromkeys(changes, "points")
    names = {f"{p}_{part}": f"{p}_{part}_{unit}" for p in frames.quantities for part, unit in units.items()}
    known = [name for name in names if name in table]
    scaled = table.assign(**{name: 100 * table[name].astype("float64") for name in known}).rename(columns=names)
    return scaled.to_csv(index=False, lineterminator="\n").encode()
