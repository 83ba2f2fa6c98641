"""The audit of reward functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from driftlab.cli.common import DataOption, err, out, stay_offline, work_bar
from driftlab.errors import DriftlabError

if TYPE_CHECKING:
    from driftlab.report.audit_page import Audit, Audited


def audit(
    targets: Annotated[list[str] | None, typer.Argument(help="Target tasks; default all that can be loaded.")] = None,
    items: Annotated[int, typer.Option("--items", help="Training items to score outputs on.", min=1)] = 20,
    fuzz: Annotated[int, typer.Option("--fuzz", help="Random texts that each scorer must survive.", min=0)] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Draws items and random texts.", min=0)] = 0,
    data: DataOption = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Folder for a page and CSV files.")] = None,
) -> None:
    """What reward functions pay for outputs that answer nothing. Exit code 1 where there is a fault."""
    from driftlab.run.plan import default_data

    named = default_data()
    folder = data if data is not None or named is None else Path(named)
    stay_offline([], [folder], [False])
    from driftlab.console import printable
    from driftlab.report.audit_page import check_folder, outputs_table, summary, texts_table, verdict, write_audit

    # Refused before the work, not after it.
    if out_dir is not None:
        check_folder(out_dir)
    try:
        with work_bar() as start:
            found = _audited(targets or [], items, fuzz, seed, folder, start)
    except KeyboardInterrupt:
        err.print("stopped; nothing was written")
        raise typer.Exit(130) from None
    for one in found.audited:
        out.print(escape(summary(one)))
    for name, reason in found.skipped:
        out.print(escape(f"{name}: not audited, {reason}"))
    for table in (outputs_table(found), texts_table(found)):
        out.print(printable(table))
    out.print(escape(verdict(found)))
    if out_dir is not None:
        out.print(f"page: {escape(str(write_audit(found, out_dir) / 'audit.md'))}")
    if found.faults:
        raise typer.Exit(1)


def _audited(
    names: list[str],
    items: int,
    fuzz: int,
    seed: int,
    data: Path | None,
    start: Callable[[str], Callable[[float], None]],
) -> Audit:
    """Audit every target; one that was not named and cannot be loaded is left out with the reason."""
    from driftlab.report.audit_page import Audit
    from driftlab.tasks.targets import TARGETS, target

    for name in names:
        target(name)  # an unknown name is refused before anything is scored
    audited, skipped = [], []
    tell = start("targets")
    for done, name in enumerate(names or TARGETS):
        try:
            audited.append(_one(name, items, fuzz, seed, data))
        except DriftlabError as error:
            if names:
                raise
            skipped.append((name, str(error)))
        tell((done + 1) / len(names or TARGETS))
    return Audit(audited=tuple(audited), skipped=tuple(skipped), seed=seed)


def _one(name: str, items: int, fuzz: int, seed: int, data: Path | None) -> Audited:
    from driftlab.report.audit_page import Audited
    from driftlab.tasks import audit as checks
    from driftlab.tasks import audit_fuzz
    from driftlab.tasks.targets import target

    task = target(name)
    drawn, form = task.train_items(count=items, seed=seed, data=data), checks.FORMS[name]
    return Audited(
        target=name,
        items=len(drawn),
        solved=sum(form.right(item) is not None for item in drawn),
        form=form,
        findings=tuple(checks.audit(task, drawn, form)),
        fuzzed=audit_fuzz.fuzz(task, drawn, form, count=fuzz, seed=seed),
    )
