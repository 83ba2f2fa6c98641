"""The audit of reward functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from driftlab.cli.common import err, out
from driftlab.errors import DriftlabError, SpecError

if TYPE_CHECKING:
    from driftlab.tasks.audit import Crash, Finding


def audit(
    targets: Annotated[list[str] | None, typer.Argument(help="Target tasks; default all.")] = None,
    items: Annotated[int, typer.Option("--items", help="Training items to score outputs on.", min=1)] = 20,
    fuzz: Annotated[int, typer.Option("--fuzz", help="Random texts that the scorer must survive.", min=0)] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Draws items and random texts.", min=0)] = 0,
    data: Annotated[
        Path | None, typer.Option("--data", help="Benchmark files in the hub's names; default $DRIFTLAB_DATA.")
    ] = None,
) -> None:
    """What reward functions pay for outputs that answer nothing. Exit code 1 where one counts as a right answer."""
    from driftlab.tasks import audit as checks
    from driftlab.tasks.targets import TARGETS, target

    for name in targets or ():
        target(name)  # an unknown name is refused before anything is scored
    folder = data or (Path(os.environ["DRIFTLAB_DATA"]) if os.environ.get("DRIFTLAB_DATA") else None)
    faults = 0
    for name in targets or TARGETS:
        task = target(name)
        try:
            drawn = task.train_items(count=items, seed=seed, data=folder)
        except DriftlabError as error:
            if targets:
                raise
            err.print(f"{name}: not audited, {escape(str(error))}")
            continue
        form = checks.FORMS.get(name)
        if form is None:
            raise SpecError(f"{name} has no form in driftlab/tasks/audit.py: say there how it wants its answers")
        findings = checks.audit(task, drawn, form)
        crashes = checks.fuzz(task, drawn, form, count=fuzz, seed=seed)
        _show(name, items, findings, crashes, fuzz)
        faults += sum(finding.correct > 0 for finding in findings) + len(crashes)
    if faults:
        raise typer.Exit(1)


def _show(name: str, items: int, findings: list[Finding], crashes: list[Crash], fuzzed: int) -> None:
    from driftlab.tasks.audit import shown

    paid = [finding for finding in findings if finding.highest > 0]
    wrong = sum(finding.correct > 0 for finding in findings)
    out.print(
        f"{name}: {len(findings)} degenerate outputs on {items} items, {len(paid)} earn more than 0, {wrong} count as "
        f"right; {fuzzed:,} random texts, {len(crashes)} not survived"
    )
    if paid:
        table = RichTable("output", "items", "mean reward", "highest", "counted right", "example", box=None)
        for one in paid:
            right = f"{one.correct} (a fault)" if one.correct else "0 (form only)"
            numbers = (str(one.n), f"{one.mean:.3f}", f"{one.highest:.3f}", right)
            table.add_row(one.output, *numbers, escape(shown(one.example, 50)))
        out.print(table)
    for crash in crashes[:10]:
        out.print(f"  not survived: {escape(shown(crash.text))} ({escape(crash.problem)})")
