"""Grids of runs and the search for an anchor's strength: which cells there are, in which order they run, what is said.

A cell is a set of values of some keys of a spec, run once per training seed by the ordinary loop. This module runs
nothing itself: the search is told how.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from driftlab.errors import SpecError
from driftlab.report.runs import read_run
from driftlab.report.sweep_figure import COMBINATIONS
from driftlab.report.sweep_words import ACCEPTED, LAMBDA, verdict
from driftlab.report.sweeps import SweepCell, Value, build_sweep, shown_value
from driftlab.run.plan import PlannedRun, load_plan, refuse_several_arms, resolve

PENALTY = "anchor.penalty"
NO_ANCHOR = {"penalty": "none", "lambda": 0.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One cell before it is run: the arm that is swept, the value of every swept key as resolved, a run per seed."""

    arm: str
    values: Mapping[str, Value]
    runs: tuple[PlannedRun, ...]

    @property
    def label(self) -> str:
        """The arm of its runs, for example ``ES, population 10``."""
        return self.runs[0].spec.arm

    def read(self, group: Path) -> SweepCell:
        """Its runs as stored below ``group``. Raises RunError when one cannot be read."""
        return SweepCell(values=self.values, runs=[read_run(group / run.folder) for run in self.runs])


def plan_sweep(
    source: str, over: Sequence[str], overrides: Sequence[str], arm: str | None, seeds: Sequence[int]
) -> list[Cell]:
    """The grid of all ``over``, the last key fastest.

    ``anchor.lambda=0`` and ``anchor.penalty=none`` both mean a run without anchor, whatever else of the anchor the cell
    or the spec sets; where several cells come to that, it is one cell.

    Args:
        source: a preset's name or a TOML file.
        over: ``KEY=V1,V2,...``; values as in ``--set``, without commas of their own.
        overrides: ``KEY=VALUE``, for every cell.
        arm: of the spec; None where it has only one.
        seeds: one run per cell and seed; none for the spec's own seed.

    Raises:
        SpecError: a key or value that cannot be swept, an arm that is not named, or a cell whose spec cannot be run.
    """
    grid = _grid(over, overrides)
    arms = _one_arm(source, overrides, [f"{name}={values[0]}" for name, values in grid.items()], arm)
    cells: list[Cell] = []
    for combination in product(*grid.values()):
        given = dict(zip(grid, combination, strict=True))
        asked = [*overrides, *(f"{name}={value}" for name, value in given.items())]
        anchored = not _means_no_anchor(given)
        runs = load_plan(source, asked, arms, seeds) if anchored else _without_anchor(source, asked, arms, seeds)
        values = {name: _value(runs[0], name, anchored) for name in given}
        if values in [cell.values for cell in cells]:
            if anchored:
                raise SpecError(f"--over asks twice for {_named(values, grid)}: every value is one cell of the grid")
            continue
        swept = runs[0].spec.arm
        renamed = _renamed(runs, f"{swept}, {_named(values, grid)}", source)
        cells.append(Cell(arm=swept, values=values, runs=renamed))
    _check_folders(cells)
    first = next(iter(grid))
    combinations = {tuple(value for name, value in cell.values.items() if name != first) for cell in cells}
    if len(combinations) > COMBINATIONS:
        raise SpecError(
            f"the keys after the first --over have {len(combinations)} combinations of values, and a figure tells "
            f"{COMBINATIONS} apart: sweep fewer values at once, or put the key with the most values first"
        )
    return cells


def plan_search(
    source: str,
    *,
    penalty: str,
    start: float,
    factor: float,
    steps: int,
    overrides: Sequence[str],
    arm: str | None,
    seeds: Sequence[int],
) -> list[Cell]:
    """The arm without anchor, then with lambda = ``start``, ``start * factor``, ... (six digits): ``steps`` of them.

    Raises:
        SpecError: a value out of range, an override of the anchor that the search sets itself, an arm that is not named
            or learns nothing, or a lambda that the spec refuses, such as alpha * lambda >= 1 under L2.
    """
    if not (math.isfinite(start) and start > 0):
        raise SpecError(f"--from is {start:g}, but the search starts from a lambda above 0")
    if not 0 < factor < 1:
        raise SpecError(
            f"--factor is {factor:g}, but lambda is lowered from step to step: give a number between 0 and 1"
        )
    if steps < 1:
        raise SpecError(f"--steps is {steps}, but at least one lambda must be tried")
    if penalty == "none":
        raise SpecError("--penalty none has no lambda to search for: name a penalty, such as l1 or l2")
    for name in map(_key, overrides):
        if name in ("anchor", PENALTY, LAMBDA):
            raise SpecError(f"--set {name}=... is what the search itself sets, by --penalty and --from: leave it out")
    lambdas = list(dict.fromkeys(float(f"{start * factor**step:.6g}") for step in range(steps)))
    trials = [[*overrides, f"{PENALTY}={penalty}", f"{LAMBDA}={value!r}"] for value in lambdas]
    arms = _one_arm(source, overrides, trials[0][len(overrides) :], arm)
    plain = _without_anchor(source, overrides, arms, seeds)
    chosen, control = plain[0].spec.arm, plain[0].spec.control
    if control != "none":
        raise SpecError(f"arm {chosen!r} of {source} is a {control} control, which learns no target that it could lose")
    if plain[0].spec.probes.lm_eval is None:
        raise SpecError(f"{source} has no probes.lm_eval, but the search judges by the target's accuracy: add it")
    cells = [Cell(arm=chosen, values={LAMBDA: 0.0}, runs=_renamed(plain, f"{chosen}, no anchor", source))]
    for value, trial in zip(lambdas, trials, strict=True):
        label = f"{chosen}, {penalty} lambda {shown_value(value)}"
        runs = load_plan(source, trial, arms, seeds)
        cells.append(Cell(arm=chosen, values={LAMBDA: value}, runs=_renamed(runs, label, source)))
    _check_folders(cells)
    return cells


def in_running_order(cells: Sequence[Cell]) -> list[PlannedRun]:
    """Seed by seed and the cells within: a grid that is interrupted leaves cells that can be compared."""
    return [run for runs in zip(*(cell.runs for cell in cells), strict=True) for run in runs]


def search_from_above(
    cells: Sequence[Cell], group: Path, execute: Callable[[Sequence[PlannedRun]], None]
) -> list[SweepCell]:
    """Run the cell without anchor, then lambda after lambda until one is accepted (see ``RULE``) or none is left.

    Args:
        cells: as ``plan_search`` gives them.
        group: folder of the runs.
        execute: runs what is not finished yet.

    Returns:
        The cells that were run, in that order.
    """
    found: list[SweepCell] = []
    for cell in cells:
        execute(cell.runs)
        found.append(cell.read(group))
        if len(found) > 1 and verdict(build_sweep([found[0], found[-1]]).cells.iloc[-1]) == ACCEPTED:
            break
    return found


def _grid(over: Sequence[str], overrides: Sequence[str]) -> dict[str, list[str]]:
    fixed = [_key(override) for override in overrides]
    grid: dict[str, list[str]] = {}
    for text in over:
        name, equals, listed = text.partition("=")
        name, values = name.strip(), [value.strip() for value in listed.split(",")]
        if not equals or not name:
            raise SpecError(f"--over takes KEY=V1,V2,..., got {text!r}; for example --over es.population=10,30,100")
        if "" in values:
            raise SpecError(f"--over {text!r} holds an empty value; for example --over es.population=10,30,100")
        if name in ("name", "arm", "seed"):
            hint = "seeds come from --seeds" if name == "seed" else "it names runs and changes nothing in them"
            raise SpecError(f"--over cannot sweep {name}: {hint}")
        if len({_comparable(value) for value in values}) < len(values):
            raise SpecError(f"--over {text!r} holds a value twice: every value is one cell of the grid")
        if name in grid:
            raise SpecError(f"--over names {name} twice: give all its values at once")
        if name in fixed:
            raise SpecError(f"--over and --set both name {name}: give one of them")
        grid[name] = values
    if not grid:
        raise SpecError("a sweep needs at least one --over KEY=V1,V2,...")
    return grid


def _key(override: str) -> str:
    return override.partition("=")[0].strip()


def _comparable(text: str) -> float | str:
    """10 and 10.0 are one value, and so are l2 and "l2"."""
    try:
        return float(text)
    except ValueError:
        return text.strip("\"'")


def _means_no_anchor(given: Mapping[str, str]) -> bool:
    return _comparable(given.get(LAMBDA, "")) == 0.0 or _comparable(given.get(PENALTY, "")) == "none"


def _one_arm(source: str, overrides: Sequence[str], swept: Sequence[str], arm: str | None) -> list[str]:
    """The arm as ``load_plan`` wants it; none where the spec has only one."""
    if arm is not None:
        return [arm]
    try:
        plan = load_plan(source, overrides)
    except SpecError:
        # A key that the file leaves out may be one of those that are swept.
        plan = load_plan(source, [*overrides, *swept])
    refuse_several_arms(plan, source, "swept")
    return []


def _without_anchor(
    source: str, overrides: Sequence[str], arms: Sequence[str], seeds: Sequence[int]
) -> list[PlannedRun]:
    """Penalty none, lambda 0 and nothing else of the anchor, so that equal runs are equal specs."""
    kept = [override for override in overrides if _key(override).split(".")[0] != "anchor"]
    plan = load_plan(source, [*kept, f"{LAMBDA}=0"], arms, seeds)
    changed = [{**run.given, "anchor": NO_ANCHOR} for run in plan]
    return [PlannedRun(given=given, spec=resolve(given, source)) for given in changed]


def _renamed(runs: Sequence[PlannedRun], label: str, source: str) -> tuple[PlannedRun, ...]:
    changed = [{**run.given, "arm": label} for run in runs]
    return tuple(PlannedRun(given=given, spec=resolve(given, source)) for given in changed)


def _value(run: PlannedRun, name: str, anchored: bool) -> Value:
    """What the resolved spec holds under a key."""
    if not anchored and name.startswith("anchor.") and name not in (PENALTY, LAMBDA):
        return None
    found: Any = run.spec.as_dict()
    for part in name.split("."):
        if not isinstance(found, dict) or part not in found:
            raise SpecError(
                f"--over names {name}, but the arm has no such key, or run.json spells it otherwise; "
                "'driftlab show' prints them"
            )
        found = found[part]
    if isinstance(found, dict):
        raise SpecError(f"--over names {name}, which holds other keys: sweep one of {', '.join(sorted(found))}")
    return found if isinstance(found, str | int | float) else json.dumps(found)


def _named(values: Mapping[str, Value], grid: Mapping[str, Any]) -> str:
    """``population 10, lambda 3``; a key whose last part another one shares is given whole."""
    last = {name: name.rpartition(".")[2] for name in grid}
    short = {name: part if list(last.values()).count(part) == 1 else name for name, part in last.items()}
    return ", ".join(f"{short[name]} {shown_value(value)}" for name, value in values.items() if value is not None)


def _check_folders(cells: Sequence[Cell]) -> None:
    folders: dict[str, str] = {}
    for cell in cells:
        other = folders.setdefault(cell.runs[0].folder, cell.label)
        if other != cell.label:
            raise SpecError(f"{other!r} and {cell.label!r} would write to the same folder: sweep them apart")
