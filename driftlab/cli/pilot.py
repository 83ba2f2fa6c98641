"""The command that tries a run out before it is run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Column
from rich.table import Table as RichTable

from driftlab.cli.common import (
    STOPPED,
    ArmsOption,
    DataOption,
    ModelOption,
    SetOption,
    SpecArgument,
    err,
    out,
    overridden,
    plan_of,
    stay_offline,
)
from driftlab.errors import SpecError

if TYPE_CHECKING:
    from driftlab.pilot.project import Pilot
    from driftlab.run.plan import PlannedRun


def pilot(
    spec: SpecArgument,
    set_: SetOption = None,
    arm: ArmsOption = None,
    model: ModelOption = None,
    data: DataOption = None,
    iterations: Annotated[int, typer.Option("--iterations", help="Iterations to run, of every arm.")] = 5,
    to_score: Annotated[
        float | None, typer.Option("--to-score", help="Project to the step at which the mean training reward is this.")
    ] = None,
    to_step: Annotated[
        int | None, typer.Option("--to-step", help="Project to this step; default the spec's last.", min=1)
    ] = None,
    out_file: Annotated[Path | None, typer.Option("--out", help="JSON file for every number.")] = None,
) -> None:
    """Run a few iterations of every arm of SPEC, and say what the whole run would take. Nothing is kept."""
    if to_score is not None and to_step is not None:
        raise SpecError("--to-score and --to-step both say where the projection ends: give one of them")
    if to_score is not None and not math.isfinite(to_score):
        raise SpecError(f"--to-score is {to_score}, but it must be a number")
    plan = plan_of(spec, overridden(set_, model, data), arm, None)
    specs = [planned.spec for planned in plan]
    stay_offline([s.model.source for s in specs], [s.data for s in specs], [s.only_embedded_tasks for s in specs])
    from driftlab.pilot.observe import shortened
    from driftlab.pilot.words import NOTES, SCORE_NOTES, check_file, document, write

    for planned in plan:
        shortened(planned, iterations)  # refused before the first one runs
    if out_file is not None:
        check_file(out_file)
    found = []
    for planned in plan:
        found.append(_pilot(planned, iterations, to_score, to_step))
        _show(found[-1])
    for note in (*NOTES, *(SCORE_NOTES if to_score is not None else ())):
        out.print(escape(note))
    if out_file is not None:
        write(document(found, specs[0].name), out_file)
        out.print(f"written: {escape(str(out_file))}")


def _pilot(planned: PlannedRun, iterations: int, to_score: float | None, to_step: int | None) -> Pilot:
    from driftlab.console import RunProgress
    from driftlab.pilot.observe import shortened
    from driftlab.pilot.project import Goal, run_pilot

    goal: Goal | float = Goal.at(planned.spec.iterations, "the spec's last step")
    if to_score is not None:
        goal = to_score
    elif to_step is not None:
        goal = Goal.at(to_step, "as asked")
    try:
        with RunProgress(shortened(planned, iterations).spec, err, STOPPED.is_set) as progress:
            return run_pilot(planned, iterations, goal, progress)
    except KeyboardInterrupt:
        err.print("stopped; a pilot keeps nothing, so it begins anew")
        raise typer.Exit(130) from None


def _show(found: Pilot) -> None:
    from driftlab.pilot.words import sentences, shown

    goal = found.goal
    ends = f"step {goal.step}" + (f" [{goal.low}, {goal.high}]" if goal.low < goal.high else "")
    table = RichTable(
        Column(escape(found.arm)), Column("value", justify="right"), "95 % interval", "n", "", box=None, pad_edge=False
    )
    parts = (
        ("one rollout", () if isinstance(found.rollout, str) else found.rollout),
        ("one iteration", found.iteration),
        (f"up to {ends}", found.projected),
    )
    for heading, quantities in parts:
        if quantities:
            table.add_row(f"[bold]{escape(heading)}[/]")
        for quantity in quantities:
            value, interval = map(escape, shown(quantity))
            table.add_row(f"  {escape(quantity.name)}", value, interval, str(quantity.n), escape(quantity.note or ""))
    out.print(table)
    for sentence in sentences(found):
        out.print(escape(sentence))
