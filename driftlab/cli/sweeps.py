"""Commands that run many cells of one spec: a grid, and the search for an anchor's strength."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from driftlab.cli.common import (
    ArmOption,
    OutOption,
    ResumeOption,
    SeedsOption,
    SetOption,
    SpecArgument,
    err,
    out,
    run_all,
    seeds_of,
)

if TYPE_CHECKING:
    from driftlab.report.formats import Table
    from driftlab.run.plan import PlannedRun


def sweep(
    spec: SpecArgument,
    over: Annotated[
        list[str],
        typer.Option("--over", help="Values of one key, for example es.population=10,30,100. Repeatable: a grid."),
    ],
    set_: SetOption = None,
    arm: ArmOption = None,
    seeds: SeedsOption = None,
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
) -> None:
    """Run one arm of SPEC with every combination of values, and put the ends side by side."""
    from driftlab.report.sweep_page import check_results, write_sweep
    from driftlab.report.sweeps import build_sweep
    from driftlab.sweep import in_running_order, plan_sweep

    cells = plan_sweep(spec, over, set_ or [], arm, seeds_of(seeds))
    name = cells[0].runs[0].spec.name
    group = out_dir / f"{name}-sweep"
    check_results(group / "sweep", "sweep")
    plan = in_running_order(cells)
    err.print(f"{len(cells)} cells, {len(plan)} runs in {group}")
    run_all(plan, group, resume)
    keys = ", ".join(cells[0].values)
    table = write_sweep(
        build_sweep([cell.read(group) for cell in cells]),
        group / "sweep",
        name="sweep",
        title=f"Sweep of {name}, {cells[0].arm}, over {keys}: changes in points [95 % interval]",
        sentences=[],
        judged={},
    )
    _show(table, [], group / "sweep" / "sweep.md")


def search_lambda(
    spec: SpecArgument,
    penalty: Annotated[str, typer.Option("--penalty", help="Penalty of the anchor: l1, l2 or another of the spec's.")],
    start: Annotated[float, typer.Option("--from", help="The first and largest lambda.")],
    factor: Annotated[float, typer.Option("--factor", help="Each lambda is the one before times this.")] = 0.5,
    steps: Annotated[int, typer.Option("--steps", help="Lambdas to try at most.")] = 6,
    set_: SetOption = None,
    arm: ArmOption = None,
    seeds: SeedsOption = None,
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
) -> None:
    """Lower lambda from above until the target loses nothing against no anchor within error (not: until it is equal).

    Rejected: the 95 % interval of the target's final accuracy, with the anchor minus without it, lies wholly below 0.
    Accepted: it does not. The first lambda accepted ends the search.
    """
    from driftlab.report.sweep_page import check_results, write_sweep
    from driftlab.report.sweep_words import search_sentences, verdicts
    from driftlab.report.sweeps import build_sweep
    from driftlab.sweep import in_running_order, plan_search, search_from_above

    cells = plan_search(
        spec,
        penalty=penalty,
        start=start,
        factor=factor,
        steps=steps,
        overrides=set_ or [],
        arm=arm,
        seeds=seeds_of(seeds),
    )
    name = cells[0].runs[0].spec.name
    group = out_dir / f"{name}-search-lambda"
    results = group / f"search-{penalty}"
    check_results(results, "search")
    refuse_unstartable(in_running_order(cells), group, resume)
    err.print(f"at most {len(cells)} cells, {len(in_running_order(cells))} runs in {group}")
    frames = build_sweep(search_from_above(cells, group, lambda plan: run_all(plan, group, resume)))
    sentences = search_sentences(frames)
    table = write_sweep(
        frames,
        results,
        name="search",
        title=f"Search for lambda from above, {name}, {cells[0].arm}, {penalty}: changes in points [95 % interval]",
        sentences=sentences,
        judged=verdicts(frames),
    )
    _show(table, sentences, results / "search.md")


def refuse_unstartable(plan: Sequence[PlannedRun], group: Path, resume: bool) -> None:
    """A search any of whose runs could not start is refused before the first one does."""
    from driftlab import loop

    loop.unfinished(plan, group, resume=resume)


def _show(table: Table, sentences: Sequence[str], page: Path) -> None:
    from driftlab.console import printable
    from driftlab.report.sweep_page import terminal_table

    out.print(printable(terminal_table(table)))
    for sentence in sentences:
        out.print(escape(sentence))
    out.print(f"written: {page}")
