"""Which choices a match needs: the same walks with one choice changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from driftlab.drift.emulator import WalkCurve
from driftlab.es.precision import Dtype, Rule
from driftlab.published.comparison import Compared, Planned, number, published
from driftlab.report.formats import Table

Change = Callable[[Planned], Planned]
Cell = tuple[float, float] | float | str | None
"""A norm with its error, one without, a text, or nothing."""

INTRODUCTION = (
    "One choice changed at a time, the rest as in the line `emulated`; mostly a quarter of the coordinates, – where a "
    "change was not tried. In float32 the norms are those of exact arithmetic."
)
STDS = (0.012, 0.02, 0.03)
UNRESTORED = "no member on the master itself"


def master(dtype: Dtype) -> Change:
    """Another number format."""
    return lambda planned: _precise(planned, dtype, planned.walk.precision.update, _in_place(planned))


def rule(update: Rule) -> Change:
    """Another order of rounding."""
    return lambda planned: _precise(planned, planned.walk.precision.master, update, _in_place(planned))


def restored(members: int) -> Change:
    """Another number of members that are added to the master and subtracted again."""
    return lambda planned: _precise(planned, planned.walk.precision.master, planned.walk.precision.update, members)


def weights(std: float) -> Change:
    """Another standard deviation of the weights."""
    return lambda planned: replace(planned, weight_std=std)


def other_weights() -> dict[str, Change]:
    """The weight scales of ``STDS``, by what the table calls them."""
    return {_scale(std): weights(std) for std in STDS}


def varied(
    plan: Mapping[str, Planned], changes: Mapping[str, Change], step: int, *, thinned: bool = True
) -> dict[str, Planned]:
    """The walks of ``plan`` up to ``step`` under every change, named by ``place``; ``thinned`` as in ``Planned``."""
    found = {}
    for name, change in changes.items():
        for label, planned in plan.items():
            changed = change(planned)
            walk = replace(changed.walk, steps=step)
            found[place(name, label)] = replace(changed, thinned=thinned, at=(step,), walk=walk)
    return found


def place(change: str, label: str) -> str:
    """Key of a varied walk."""
    return f"{label}, {change}"


def choices_table(
    rows: Sequence[Compared], changes: Sequence[str], curves: Mapping[str, WalkCurve], once: float
) -> Table:
    """Norms of ``rows``, published, emulated and under every change.

    Args:
        rows: one of each walk that was varied, at the step of the variations.
        once: share of the norm that is left when a tied embedding is counted once; 1 adds no line.
    """
    lines: list[tuple[str, list[Cell]]] = [
        ("published", [None if row.published is None else published(row.published, row.error) for row in rows]),
        ("exact arithmetic", [row.exact for row in rows]),
        ("emulated", [(row.ours, row.stderr) for row in rows]),
    ]
    if once != 1.0:
        lines.append(("tied embedding counted once", [(once * row.ours, once * row.stderr) for row in rows]))
    for name in changes:
        found = [curves.get(place(name, row.run)) for row in rows]
        lines.append((name, [None if curve is None else (curve.norm[-1], curve.stderr[-1]) for curve in found]))
    data = pd.DataFrame(
        [
            {"run": row.run, "step": row.step, "choice": name, "emulated": cell[0], "emulated_stderr": cell[1]}
            for name, cells in lines[3:]
            for row, cell in zip(rows, cells, strict=True)
            if isinstance(cell, tuple)
        ]
    )
    return Table(
        name="choices",
        title=f"Which choices matter, step {rows[0].step}",
        columns=("choice", *(row.run for row in rows)),
        rows=tuple((name, *map(_cell, cells)) for name, cells in lines),
        data=data,
        source="emulated",
    )


def wanted_std(row: Compared, std: float, curves: Mapping[str, WalkCurve]) -> float | None:
    """The weight scale that would meet the published norm, read between those of the table and ``std``, the row's own.

    Linear between neighbours; None where the published norm lies outside all of them.
    """
    known = sorted([(std, row.ours), *((other, curves[place(_scale(other), row.run)].norm[-1]) for other in STDS)])
    for (low, less), (high, more) in pairwise(known):
        if row.published is not None and min(less, more) <= row.published <= max(less, more) and less != more:
            return low + (high - low) * (row.published - less) / (more - less)
    return None


def _scale(std: float) -> str:
    return f"weights of standard deviation {std:g}"


def _in_place(planned: Planned) -> int:
    return planned.walk.precision.in_place_members


def _precise(planned: Planned, dtype: Dtype, update: Rule, in_place: int) -> Planned:
    precision = replace(planned.walk.precision, master=dtype, update=update, in_place_members=in_place)
    return replace(planned, walk=replace(planned.walk, precision=precision))


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return number(cell) if isinstance(cell, float) else f"{number(cell[0])} ± {cell[1]:.2g}"
